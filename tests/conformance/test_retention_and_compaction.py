"""What a log forgets, and what it keeps, as clients see it (M8)."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.headrace_broker import HeadraceBroker
from support.processes import wait_until

WAIT_SECONDS = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceBroker]:
    quick = {"log.cleaner.backoff.ms": "100", "log.retention.check.interval.ms": "100"}
    with HeadraceBroker(tmp_path_factory.mktemp("forgetful"), quick) as running:
        yield running


def make_topic(broker: HeadraceBroker, **config: str) -> str:
    name = f"forget-{uuid4().hex[:8]}"
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name].result(30)
    return name


def produce(broker: HeadraceBroker, topic: str, records: list[tuple[bytes, bytes | None]]) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "batch.num.messages": 1}
    )
    for key, value in records:
        producer.produce(topic, key=key, value=value, partition=0)
    assert producer.flush(WAIT_SECONDS) == 0


def read_all(broker: HeadraceBroker, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": uuid4().hex,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = []
    while True:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            break
        found.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return found


def watermarks(broker: HeadraceBroker, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": uuid4().hex})
    found = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    consumer.close()
    return found


def test_compaction_keeps_the_newest_value_of_each_key_at_its_offset(
    broker: HeadraceBroker,
) -> None:
    topic = make_topic(
        broker, cleanup_policy="compact", segment_bytes="1048576", min_cleanable_dirty_ratio="0.01"
    )
    produce(broker, topic, [(b"key-%d" % (n % 5), b"%06d" % n + bytes(20_000)) for n in range(200)])
    # The active segment is never compacted: 4 MB of 1 MB segments leave at most 60 records in it.
    wait_until(lambda: len(read_all(broker, topic)) <= 70, what="old values are still there")
    found = read_all(broker, topic)
    newest = {key: (offset, value[:6]) for offset, key, value in found if value is not None}
    assert newest == {b"key-%d" % k: (195 + k, b"%06d" % (195 + k)) for k in range(5)}
    assert watermarks(broker, topic)[1] == 200


def test_a_tombstone_takes_its_key_away_and_then_goes_itself(broker: HeadraceBroker) -> None:
    topic = make_topic(
        broker,
        cleanup_policy="compact",
        segment_bytes="1048576",
        min_cleanable_dirty_ratio="0.01",
        delete_retention_ms="100",
    )
    produce(broker, topic, [(b"gone", b"a value"), (b"gone", None)])

    def filled() -> bool:
        produce(broker, topic, [(b"filler-%d" % n, bytes(200_000)) for n in range(6)])
        return b"gone" not in {key for _, key, _ in read_all(broker, topic)}

    wait_until(filled, what="the tombstone or its key is still there")
    assert watermarks(broker, topic)[0] == 0


def test_retention_by_size_drops_whole_old_segments(broker: HeadraceBroker) -> None:
    topic = make_topic(broker, segment_bytes="1048576", retention_bytes="2097152")
    produce(broker, topic, [(b"k", bytes(100_000)) for _ in range(80)])
    wait_until(lambda: watermarks(broker, topic)[0] > 0, what="nothing was dropped")
    first, end = watermarks(broker, topic)
    found = read_all(broker, topic)
    assert [offset for offset, _, _ in found] == list(range(first, end))
    assert end == 80
    assert sum(len(value or b"") for _, _, value in found) >= 2_000_000


def test_retention_by_time_empties_even_the_active_segment(broker: HeadraceBroker) -> None:
    topic = make_topic(broker, retention_ms="500")
    produce(broker, topic, [(b"k", b"v")] * 10)
    wait_until(
        lambda: watermarks(broker, topic) == (10, 10), what="expired records are still there"
    )
    produce(broker, topic, [(b"k", b"later")])
    assert watermarks(broker, topic)[1] == 11


def test_a_record_without_a_key_is_refused_by_a_compacted_topic(broker: HeadraceBroker) -> None:
    topic = make_topic(broker, cleanup_policy="compact")
    errors: list[str] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(
        topic,
        value=b"no key",
        on_delivery=lambda error, _: errors.append(error.name() if error else ""),
    )
    producer.flush(WAIT_SECONDS)
    assert errors == ["INVALID_RECORD"]


def test_a_deleted_topic_leaves_no_files(broker: HeadraceBroker) -> None:
    topic = make_topic(broker)
    produce(broker, topic, [(b"k", b"v")])
    folder = broker.log_directory / f"{topic}-0"
    assert folder.is_dir()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    assert not folder.exists()

    def left() -> list[Path]:
        return [path for path in broker.log_directory.iterdir() if path.name.startswith(topic)]

    wait_until(lambda: not left(), what="the renamed folder is still there")
