"""Start-up after kill -9 reads what the recovery point says, not the log."""

from pathlib import Path

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from support.headrace_broker import HeadraceBroker
from support.metrics import wait_metrics
from support.processes import wait_until

SEGMENT_BYTES = 2_000_000
RECORD_BYTES = 10_000
LOG_BYTES = 60_000_000


def fill(broker: HeadraceBroker, topic: str, size: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    for index in range(size // RECORD_BYTES):
        producer.produce(topic, index.to_bytes(4) + bytes(RECORD_BYTES - 4))
        if index % 1000 == 0:
            producer.poll(0.1)
    assert producer.flush(60) == 0


def checkpointed(broker: HeadraceBroker, topic: str) -> int:
    """The recovery point of the topic's only partition, as the checkpoint has it."""
    path = broker.log_directory / "recovery-point-offset-checkpoint"
    if not path.exists():
        return 0
    for line in path.read_text().splitlines():
        if line.startswith(f"{topic} 0 "):
            return int(line.rpartition(" ")[2])
    return 0


def end_offset(broker: HeadraceBroker, topic: str) -> int:
    # A client of its own: one that saw the broker die waits long before it asks again.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    partition = TopicPartition(topic, 0)
    return admin.list_offsets({partition: OffsetSpec.latest()})[partition].result(30).offset


def bytes_read_by_the_start(broker: HeadraceBroker) -> int:
    """What the process read until it had all it starts: metrics are served last."""
    wait_metrics(broker.http_port)
    return broker.read_bytes()


def test_a_start_after_kill_9_reads_from_the_recovery_point_not_the_whole_log(
    tmp_path: Path,
) -> None:
    settings = {"log.flush.offset.checkpoint.interval.ms": "500"}
    with HeadraceBroker(tmp_path / "broker", settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        config = {"segment.bytes": str(SEGMENT_BYTES)}
        admin.create_topics([NewTopic("large", 1, 1, config=config)])["large"].result(30)
        broker.kill()
        broker.restart()
        # What any start costs: Python's own modules, the metadata log, an empty partition.
        empty_bytes = bytes_read_by_the_start(broker)

        fill(broker, "large", LOG_BYTES)
        records = LOG_BYTES // RECORD_BYTES
        in_two_segments = 2 * SEGMENT_BYTES // RECORD_BYTES
        wait_until(
            lambda: checkpointed(broker, "large") >= records - in_two_segments,
            60,
            "a recovery point near the end",
        )
        broker.kill()
        broker.restart()
        # Twice the segments above the recovery point, and their indexes.
        assert bytes_read_by_the_start(broker) - empty_bytes < 4 * SEGMENT_BYTES
        assert LOG_BYTES > 7 * 4 * SEGMENT_BYTES
        assert end_offset(broker, "large") == records
