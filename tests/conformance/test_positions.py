"""Readers choose where they read: offset, earliest, latest, by time; and what a reset does."""

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    TopicPartition,
)

from support.records import Sent, produce_confluent, run_kcat

_SECONDS = 15
_START_MS = 1_700_000_000_000


@pytest.fixture
def timed_topic(bootstrap, new_topic):
    """One partition with 100 records, a second apart, in several batches."""
    topic = new_topic(retention_ms="-1")  # its times are long past
    for first in range(0, 100, 25):
        sent = [
            Sent(value=b"%d" % i, timestamp_ms=_START_MS + i * 1000)
            for i in range(first, first + 25)
        ]
        produce_confluent(bootstrap, topic, sent, "none")
    return topic


@pytest.fixture
def reader(bootstrap, new_group):
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": new_group(),
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    yield consumer
    consumer.close()


def _next(consumer) -> tuple[int, bytes] | str:
    """The next record's offset and value, or the name of what came instead."""
    message = consumer.poll(_SECONDS)
    assert message is not None, "nothing came"
    if (error := message.error()) is not None:
        return error.name()
    return message.offset(), message.value()


def test_a_reader_begins_at_any_offset(reader, timed_topic):
    for offset in (0, 1, 24, 25, 63, 99):
        reader.assign([TopicPartition(timed_topic, 0, offset)])
        assert _next(reader) == (offset, b"%d" % offset)


def test_a_reader_begins_at_the_earliest_or_the_latest(bootstrap, reader, timed_topic):
    reader.assign([TopicPartition(timed_topic, 0, OFFSET_BEGINNING)])
    assert _next(reader) == (0, b"0")
    reader.assign([TopicPartition(timed_topic, 0, OFFSET_END)])
    assert _next(reader) == "_PARTITION_EOF"
    produce_confluent(bootstrap, timed_topic, [Sent(value=b"new")], "none")
    assert _next(reader) == (100, b"new")


def test_a_reader_rewinds_and_reads_again(reader, timed_topic):
    reader.assign([TopicPartition(timed_topic, 0, 50)])
    first = [_next(reader) for _ in range(20)]
    reader.seek(TopicPartition(timed_topic, 0, 50))
    assert [_next(reader) for _ in range(20)] == first


def test_a_time_is_answered_with_the_first_record_not_before_it(reader, timed_topic):
    for time_ms, offset in [
        (0, 0),
        (_START_MS, 0),
        (_START_MS + 1, 1),
        (_START_MS + 30_000, 30),
        (_START_MS + 29_001, 30),
        (_START_MS + 99_000, 99),
    ]:
        (found,) = reader.offsets_for_times([TopicPartition(timed_topic, 0, time_ms)], _SECONDS)
        assert found.offset == offset, time_ms
    (beyond,) = reader.offsets_for_times(
        [TopicPartition(timed_topic, 0, _START_MS + 200_000)], _SECONDS
    )
    assert beyond.offset == OFFSET_END


def test_an_offset_beyond_the_end_is_out_of_range(reader, timed_topic):
    reader.assign([TopicPartition(timed_topic, 0, 5000)])
    assert _next(reader) in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")


@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", 100)])
def test_a_group_without_offsets_begins_where_it_says(
    bootstrap, timed_topic, new_group, reset, first
):
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": new_group(), "auto.offset.reset": reset}
    )
    try:
        consumer.assign([TopicPartition(timed_topic, 0)])
        if reset == "latest":
            consumer.poll(2)
            produce_confluent(bootstrap, timed_topic, [Sent(value=b"new")], "none")
        message = consumer.poll(_SECONDS)
        assert message.error() is None
        assert message.offset() == first
    finally:
        consumer.close()


def test_committed_offsets_and_their_metadata_are_kept(bootstrap, timed_topic, new_group):
    group = new_group()
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer(settings)
    (done,) = consumer.commit(
        offsets=[TopicPartition(timed_topic, 0, 42, "half way — ok")], asynchronous=False
    )
    assert done.error is None
    consumer.close()
    consumer = Consumer(settings)
    try:
        (found,) = consumer.committed([TopicPartition(timed_topic, 0)], _SECONDS)
        assert (found.offset, found.metadata) == (42, "half way — ok")
        consumer.assign([TopicPartition(timed_topic, 0)])
        assert _next(consumer) == (42, b"42")
    finally:
        consumer.close()


def test_kcat_asks_for_a_time_and_reads_from_it(bootstrap, timed_topic):
    asked = run_kcat("-Q", "-b", bootstrap, "-t", f"{timed_topic}:0:{_START_MS + 30_000}")
    assert asked.split() == [timed_topic, "[0]", "offset", "30"]
    where = ["-C", "-b", bootstrap, "-t", timed_topic, "-p", "0", "-q", "-e"]
    read = run_kcat(*where, "-o", f"s@{_START_MS + 95_000}")
    assert read.split() == ["95", "96", "97", "98", "99"]
