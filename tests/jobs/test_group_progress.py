"""Progress reaches the consumer group, after the checkpoint and never in the query's way."""

import time
import uuid
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.errors import KafkaError
from prometheus_client import CollectorRegistry

from headrace_jobs.progress import group as group_module
from headrace_jobs.progress.drivers import DriverEpoch
from headrace_jobs.progress.group import CommitError, GroupClient, GroupProgress
from headrace_jobs.progress.metrics import JobMetrics
from headrace_jobs.progress.offsets import TopicPartition
from headrace_jobs.sources.kafka import KafkaSource, read_stream
from support.headrace_cluster import HeadraceCluster
from support.processes import LOOPBACK, free_port, wait_until
from support.wire import broker_ids


@pytest.fixture
def metrics():
    return JobMetrics("app", "query", trigger_interval_seconds=0.0)


@pytest.fixture
def client(broker):
    found = GroupClient(broker.bootstrap, client_id="tests")
    yield found
    found.close()


@pytest.fixture
def group():
    return f"group-{uuid.uuid4().hex[:10]}"


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(
        f"headrace_job_{name}", {"job": "app", "query": "query", **labels}
    )


def produce(broker, topic, count, partition=0):
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        producer.produce(topic, str(number), partition=partition)
    assert producer.flush(30) == 0


def test_the_first_position_is_committed_before_any_batch_so_lag_is_seen_at_once(
    broker, client, metrics, group, new_topic, group_offsets
):
    topic = new_topic(2)
    produce(broker, topic, 5)
    progress = GroupProgress(client, group, metrics)
    progress.start({TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0})
    lag = {"topic": topic}
    wait_until(lambda: value(metrics.registry, "lag_records", **lag) == 5, what="lag")
    assert group_offsets(group) == {(topic, 0): 0, (topic, 1): 0}
    progress.processed({TopicPartition(topic, 0): 5})
    wait_until(lambda: value(metrics.registry, "lag_records", **lag) == 0, what="no lag")
    progress.close()
    assert group_offsets(group) == {(topic, 0): 5, (topic, 1): 0}
    assert value(metrics.registry, "offset_commits_total") == 2


def test_a_driver_that_was_replaced_moves_the_group_no_more(
    client, metrics, group, new_topic, group_offsets, tmp_path
):
    place = TopicPartition(new_topic(), 0)
    zombie = GroupProgress(client, group, metrics, DriverEpoch(tmp_path))
    zombie.start({place: 5})
    wait_until(lambda: list(group_offsets(group).values()) == [5], what="the first commit")
    successor = GroupProgress(client, group, metrics, DriverEpoch(tmp_path))
    successor.start({place: 20})
    wait_until(lambda: list(group_offsets(group).values()) == [20], what="the successor's commit")
    zombie.processed({place: 10})
    zombie.close()
    assert list(group_offsets(group).values()) == [20]
    successor.close()


def test_what_is_pending_is_committed_on_close(client, metrics, group, new_topic, group_offsets):
    topic = new_topic()
    progress = GroupProgress(client, group, metrics)
    progress.start({})
    for offset in range(50):
        progress.processed({TopicPartition(topic, 0): offset})
    progress.close()
    assert group_offsets(group) == {(topic, 0): 49}


def test_a_refused_commit_is_given_up_counted_and_never_raised(client, metrics, group, monkeypatch):
    monkeypatch.setattr(group_module, "RETRY_SECONDS", 0.01)
    progress = GroupProgress(client, group, metrics)
    progress.start({TopicPartition(f"no-topic-{group}", 0): 1})
    progress.close(30)
    assert value(metrics.registry, "offset_commit_failures_total") == 1
    assert value(metrics.registry, "offset_commits_total") == 0


def test_a_broker_that_is_away_does_not_hold_up_the_query(metrics, group):
    topic = "t"
    client = GroupClient(f"{LOOPBACK}:{free_port()}", client_id="tests", timeout_ms=500)
    progress = GroupProgress(client, group, metrics)
    progress.start({TopicPartition(topic, 0): 0})
    began = time.monotonic()
    for offset in range(100):
        progress.processed({TopicPartition(topic, 0): offset})
    assert time.monotonic() - began < 1
    progress.close(30)
    assert value(metrics.registry, "offset_commits_total") == 0


def test_a_client_that_began_before_all_brokers_were_there_finds_the_last_one(tmp_path):
    with HeadraceCluster(tmp_path) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("t", 3, 1)])["t"].result(30)
        last = cluster.nodes[-1]
        last.stop()
        first = cluster.nodes[0].bootstrap
        wait_until(lambda: broker_ids(first) == {1, 2}, 30, "the brokers to know that one is gone")
        client = GroupClient(first, client_id="tests")
        every = [TopicPartition("t", index) for index in range(3)]
        wait_until(lambda: client.partitions(["t"]) == {"t": 3}, 30, "the topic")
        last.start()
        cluster.wait_complete()

        def is_answered() -> bool:
            with suppress(KafkaError, CommitError):
                client.commit("group", dict.fromkeys(every, 0))
                return len(client.end_offsets(every)) == 3
            return False

        # By itself the client would ask who the brokers are after five minutes.
        wait_until(is_answered, 60, "the offsets of all partitions")
        client.close()


class CheckpointWitness:
    """Stands where the group's progress does, and notes what the checkpoint had by then."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.seen: list[tuple[dict[TopicPartition, int], list[int]]] = []

    def processed(self, offsets):
        names = (path.name for path in (self.checkpoint / "commits").iterdir())
        self.seen.append((dict(offsets), sorted(int(name) for name in names if name.isdigit())))


def test_a_report_whose_metrics_are_not_understood_moves_the_group(metrics):
    from headrace_jobs.progress.listener import ProgressListener

    moved = []
    group = SimpleNamespace(processed=moved.append)
    source = SimpleNamespace(description="KafkaV2[in]", endOffset='{"in":{"0":5}}')
    report = SimpleNamespace(runId="run", batchId=0, sources=[source])  # and nothing else
    ProgressListener(metrics, group).take(report)
    assert moved == [{TopicPartition("in", 0): 5}]


@pytest.mark.spark
def test_offsets_are_passed_on_only_after_the_checkpoint_has_the_batch(
    spark, broker, metrics, new_topic, tmp_path
):
    from headrace_jobs.progress.listener import ProgressListener

    topic = new_topic(2)
    produce(broker, topic, 30)
    checkpoint = tmp_path / "checkpoint"
    witness = CheckpointWitness(checkpoint)
    listener = ProgressListener(metrics, witness)
    source = KafkaSource(
        bootstrap_servers=broker.bootstrap, topic=topic, max_offsets_per_trigger=10
    )
    spark.streams.addListener(listener)
    try:
        query = (
            read_stream(spark, source)
            .writeStream.format("noop")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        wait_until(lambda: len(witness.seen) == 3, what="three progress events")
    finally:
        spark.streams.removeListener(listener)
    for progress in query.recentProgress:
        listener.take(progress)  # a second time changes nothing
    assert [offsets[TopicPartition(topic, 0)] for offsets, _ in witness.seen] == [10, 20, 30]
    for batch, (_, committed) in enumerate(witness.seen):
        assert batch in committed
    assert value(metrics.registry, "input_rows_total") == 30
    assert value(metrics.registry, "batches_total") == 3
