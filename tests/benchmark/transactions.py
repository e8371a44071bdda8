"""Transactions on three brokers: what a commit takes, and what aborted records cost a reader."""

import statistics
import time
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmark.cluster import replicated_topic
from benchmark.latency import percentile
from benchmark.measure import Figures, Goal, Measure, Scenario
from support.clusters import Cluster

_RECORDS_EACH = 100
_PARTITIONS = 6
_VALUE = bytes(1000)
_PATIENCE_SECONDS = 120
_SILENCE_SECONDS = 10
_FASTER = Goal(bound=0.6, is_at_least=False)
_CHEAPER = Goal(bound=0.4, is_at_least=False)


def transaction_scenarios(*, is_quick: bool, records: int | None = None) -> list[Scenario]:
    """Return the scenarios in the order in which they run; `records` for one round of each."""
    count = records or (100_000 if is_quick else 500_000)
    return [
        commit_scenario(max(10, count // _RECORDS_EACH // 5)),
        *(read_scenario(count, percent) for percent in (0, 10, 50)),
    ]


def commit_scenario(transactions: int) -> Scenario:
    """One producer, one transaction after the other."""

    def run(cluster: Cluster) -> Figures:
        with replicated_topic(cluster, _PARTITIONS) as topic:
            producer = _transactional(cluster)
            for _ in range(max(1, transactions // 5)):
                _write(producer, topic, commits=True)
            cpu_before, began = cluster.cpu_seconds(), time.perf_counter()
            commits = [_write(producer, topic, commits=True) for _ in range(transactions)]
            seconds = time.perf_counter() - began
            cpu = cluster.cpu_seconds() - cpu_before
        return {
            "rate": transactions / seconds,
            "p50": statistics.median(commits) * 1e3,
            "p99": percentile(commits, 0.99) * 1e3,
            "cpu": cpu * 1e3 / transactions,
        }

    return Scenario(
        key="transactions",
        title=f"Transactions of {_RECORDS_EACH} records, 1 KB each, {_PARTITIONS} partitions, RF 3",
        command=f"confluent-kafka Producer with a transactional.id, {transactions} times begin, "
        "produce, commit; the commit alone is timed",
        measures=(
            Measure(key="rate", title="transactions per second", unit="/s"),
            Measure(key="p50", title="p50 of commit", unit="ms", goal=_FASTER),
            Measure(key="p99", title="p99 of commit", unit="ms"),
            Measure(key="cpu", title="CPU of the three per transaction", unit="ms", goal=_CHEAPER),
        ),
        run=run,
    )


def read_scenario(records: int, aborted_percent: int) -> Scenario:
    """Read what is committed of a topic of which a share was aborted."""

    def run(cluster: Cluster) -> Figures:
        with replicated_topic(cluster, _PARTITIONS) as topic:
            wanted = _fill(cluster, topic, records, aborted_percent)
            cpu_before = cluster.cpu_seconds()
            rate = wanted / _read(cluster, topic, wanted)
            cpu = cluster.cpu_seconds() - cpu_before
        return {"rate": rate, "cpu": cpu * 1e6 / records}

    return Scenario(
        key=f"read-committed-{aborted_percent}",
        title=f"A read_committed consumer, {aborted_percent} % of {records:,} records aborted",
        command="confluent-kafka Consumer, isolation.level=read_committed, 1 KB records in "
        f"transactions of {_RECORDS_EACH}",
        measures=(
            Measure(key="rate", title="committed records per second", unit="/s"),
            Measure(
                key="cpu",
                title="CPU of the three per million records, aborted ones too",
                unit="s",
                goal=_CHEAPER,
            ),
        ),
        run=run,
    )


def _transactional(cluster: Cluster) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": f"benchmark-{uuid4().hex[:12]}",
            "linger.ms": 0,
        }
    )
    producer.init_transactions(_PATIENCE_SECONDS)
    return producer


def _write(producer: Producer, topic: str, *, commits: bool) -> float:
    """Write one transaction; return the seconds of its end."""
    producer.begin_transaction()
    for number in range(_RECORDS_EACH):
        producer.produce(topic, _VALUE, partition=number % _PARTITIONS)
    if left := producer.flush(_PATIENCE_SECONDS):
        raise TimeoutError(f"{left} records were not acknowledged")
    began = time.perf_counter()
    if commits:
        producer.commit_transaction(_PATIENCE_SECONDS)
    else:
        producer.abort_transaction(_PATIENCE_SECONDS)
    return time.perf_counter() - began


def _fill(cluster: Cluster, topic: str, records: int, aborted_percent: int) -> int:
    """Write transactions of which a share, evenly spread, is aborted; return what is committed."""
    producer = _transactional(cluster)
    committed = aborted = 0
    for number in range(max(1, records // _RECORDS_EACH)):
        commits = aborted * 100 >= (number + 1) * aborted_percent
        _write(producer, topic, commits=commits)
        committed += commits
        aborted += not commits
    return committed * _RECORDS_EACH


def _read(cluster: Cluster, topic: str, wanted: int) -> float:
    """Return the seconds until all that is committed was read; raise where more or less came."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": topic,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(_PARTITIONS)])
    found, last = 0, time.perf_counter()
    began = last
    try:
        while found < wanted:
            messages = consumer.consume(10_000, 0.5)
            for message in messages:
                if message.error() is not None:
                    raise KafkaException(message.error())
            found += len(messages)
            now = time.perf_counter()
            if messages:
                last = now
            elif now - last > _SILENCE_SECONDS:
                raise TimeoutError(f"{found} of {wanted} committed records came")
        if found > wanted:
            raise ValueError(f"{found} records came, {wanted} were committed")
    finally:
        consumer.close()
    return last - began
