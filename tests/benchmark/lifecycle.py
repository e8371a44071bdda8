"""Starting, and a large log against a small one."""

import os
import time
from statistics import median

from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmark.measure import Figures, Goal, Measure, Scenario, fresh_topic
from benchmark.throughput import Load, produce
from support.peer import Peer

_MB = 1_000_000
_RECORD_SIZE = 1000
_SMALL_BYTES = 10 * _MB
_TAIL_RECORDS = 100_000
_APPENDS = 100_000
_PAIRS = 3
_BATCHES = 131_072


def ready_scenario() -> Scenario:
    """Seconds from the start of the process until Metadata lists the broker."""

    def run(side: Peer) -> Figures:
        side.stop()
        side.restart()
        return {"ready": side.ready_seconds, "rss": side.rss_bytes() / _MB}

    return Scenario(
        key="ready",
        title="Time to ready: a clean stop, then start until Metadata lists the broker",
        command="headrace broker FILE.properties; kafka.Kafka FILE.properties (formatted before)",
        measures=(
            Measure(
                key="ready",
                title="time to ready",
                unit="s",
                goal=Goal(bound=1, is_at_least=False, is_ratio=False),
            ),
            Measure(key="rss", title="memory (RSS) right after", unit="MB"),
        ),
        run=run,
    )


def read_tail(side: Peer, topic: str, count: int) -> float:
    """Return the records/s at which the last `count` records of partition 0 are read."""
    consumer = Consumer(
        {
            "bootstrap.servers": side.bootstrap,
            "group.id": "benchmark-tail",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
        }
    )
    try:
        partition = TopicPartition(topic, 0)
        _, end = consumer.get_watermark_offsets(partition, timeout=30)
        consumer.assign([TopicPartition(topic, 0, end - count)])
        seen, began = 0, time.perf_counter()
        while seen < count:
            for message in consumer.consume(min(10_000, count - seen), timeout=30):
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                seen += 1
        return seen / (time.perf_counter() - began)
    finally:
        consumer.close()


def big_log_scenario(big_bytes: int) -> Scenario:
    """Appends, reads at the tail and start-up with a large partition against a small one."""
    load = Load(records=_APPENDS, record_size=_RECORD_SIZE, batch_size=_BATCHES)

    def rates(side: Peer, topic: str) -> tuple[float, float]:
        append_rate = produce(side, topic, load, _APPENDS, _APPENDS)
        return append_rate, read_tail(side, topic, _TAIL_RECORDS)

    def run(side: Peer) -> Figures:
        with fresh_topic(side) as small, fresh_topic(side) as big:
            produce(side, small, load, _SMALL_BYTES // _RECORD_SIZE, 1)
            produce(side, big, load, big_bytes // _RECORD_SIZE, 1)
            # Written back first: else the disk that still takes 10 GB is measured, not the log.
            os.sync()
            pairs = [(rates(side, small), rates(side, big)) for _ in range(_PAIRS)]
            side.kill()
            side.restart()
            return {
                "append": median(large[0] / little[0] for little, large in pairs),
                "tail": median(large[1] / little[1] for little, large in pairs),
                "ready": side.ready_seconds,
                "read": side.read_bytes() / _MB,
            }

    size = f"{big_bytes / 1e9:g} GB"
    return Scenario(
        key="big-log",
        title=f"A partition of {size} against one of 10 MB, then kill -9 and start",
        command=f"producer-perf until {size}; then {_APPENDS} appends; the last {_TAIL_RECORDS}",
        measures=(
            Measure(key="append", title=f"append rate, {size} / 10 MB", unit="x"),
            Measure(key="tail", title=f"tail read rate, {size} / 10 MB", unit="x"),
            Measure(key="ready", title="time to ready after kill -9", unit="s"),
            Measure(key="read", title="read during that start", unit="MB"),
        ),
        run=run,
        rounds_max=1,
    )
