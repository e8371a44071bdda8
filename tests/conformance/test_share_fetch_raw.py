"""What a share consumer would hide of ShareFetch: how long the broker waits for `min_bytes`."""

import time

import pytest
from confluent_kafka import Producer

from support.batches import BatchFields, NewRecord, build_batch
from support.hostile import produce_error
from support.share_consumers import configure_group
from support.share_fetches import acquired, id_of, share_fetch_of
from support.wire import RawConnection

SECONDS = 30


@pytest.fixture
def group(new_group, bootstrap):
    return beginning(new_group(), bootstrap, "earliest")


def beginning(group, bootstrap, reset):
    """Have a group begin somewhere; return it."""
    configure_group(bootstrap, group, {"share.auto.offset.reset": reset})
    return group


def send(bootstrap, topic, value):
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value)
    assert producer.flush(SECONDS) == 0


def test_a_share_fetch_waits_for_as_many_bytes_as_it_asks_for(bootstrap, new_topic, group):
    topic = new_topic(1)
    with RawConnection(bootstrap, timeout_seconds=SECONDS) as connection:
        request = share_fetch_of(group, id_of(connection, topic), 2_000, SECONDS)
        send(bootstrap, topic, b"small")
        connection.send(request)
        send(bootstrap, topic, b"smaller")
        send(bootstrap, topic, b"x" * 3_000)
        assert acquired(connection.receive(request)) == [(0, 2)]


def test_a_share_fetch_gets_what_there_is_when_it_has_waited(bootstrap, new_topic, group):
    topic = new_topic(1)
    with RawConnection(bootstrap, timeout_seconds=SECONDS) as connection:
        send(bootstrap, topic, b"small")
        request = share_fetch_of(group, id_of(connection, topic), 2_000, 1)
        assert acquired(connection.call(request)) == [(0, 0)]


def timed(timestamp_ms, count=1, **changes):
    """A batch of as many records of one time."""
    fields = BatchFields(base_timestamp=timestamp_ms, max_timestamp=timestamp_ms, **changes)
    return build_batch([NewRecord(value=b"v")] * count, fields)


@pytest.mark.parametrize(
    ("reset", "first"), [("PT1H", 1), ("P7D", 0), ("PT1M", 3), ("PT0S", 4)], ids=str
)
def test_a_group_begins_by_time_before_a_batch_that_cannot_be_unpacked(
    bootstrap, new_topic, new_group, reset, first
):
    """Rather than never: the record that it should begin with may be in that batch."""
    group = beginning(new_group(), bootstrap, f"by_duration:{reset}")
    topic = new_topic(1)
    now_ms, minute_ms = int(time.time() * 1000), 60_000
    gzip = 1
    for batch in (
        timed(now_ms - 120 * minute_ms),
        timed(now_ms - 30 * minute_ms, 2, attributes=gzip),
        timed(now_ms),
    ):
        assert produce_error(bootstrap, topic, batch) == "none"
    with RawConnection(bootstrap, timeout_seconds=SECONDS) as connection:
        request = share_fetch_of(group, id_of(connection, topic), 1, 1)
        assert acquired(connection.call(request)) == ([(first, 3)] if first < 4 else [])


def test_a_group_begins_by_time_at_the_end_where_nothing_is_as_new(bootstrap, new_topic, new_group):
    group = beginning(new_group(), bootstrap, "by_duration:PT1H")
    topic = new_topic(1)
    with RawConnection(bootstrap, timeout_seconds=SECONDS) as connection:
        request = share_fetch_of(group, id_of(connection, topic), 1, SECONDS)
        connection.send(request)
        time.sleep(1)
        send(bootstrap, topic, b"v")
        assert acquired(connection.receive(request)) == [(0, 0)]
