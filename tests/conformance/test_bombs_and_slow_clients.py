"""Batches that grow when they are unpacked, and clients that take their time.

A healthy client writes throughout each test; the broker's memory is looked at after it.
"""

import gzip
import socket
import struct
import time
import urllib.request

import cramjam
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v5.request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from prometheus_client.parser import text_string_to_metric_families

from support.batches import BatchFields, NewRecord, build_batch, encode_record, varint
from support.headrace_broker import HeadraceBroker
from support.hostile import fetch_request, produce_error, produce_request, unharmed
from support.processes import wait_until
from support.wire import RawConnection, encode_request

SLOW_READER_SECONDS = 3
CLOSED = "headrace_broker_slow_readers_closed_total"
TIMESTAMP_MS = 1_700_000_000_000
# Zeros of far more than the 64 MiB that the broker unpacks, in less than a batch may have.
BOMB_BYTES = 200_000_000
CODECS = {"gzip": 1, "lz4": 3, "zstd": 4}


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    """A broker of this module's own: what it suffers must not show elsewhere."""
    settings = {"headrace.slow.reader.timeout.ms": str(SLOW_READER_SECONDS * 1000)}
    with HeadraceBroker(tmp_path_factory.mktemp("slow"), settings) as broker:
        yield broker


@pytest.fixture(autouse=True)
def others_are_unaffected(peer, new_topic):
    with unharmed(peer, new_topic()):
        yield


@pytest.fixture(scope="module", params=CODECS)
def bomb(request):
    """A well-formed batch of two records, whose second one is 200 MB of zeros."""
    first = encode_record(NewRecord(value=b"v", key=b"k"), 0)
    # Attributes, timestamp delta 1, offset delta 1, key, value; no headers.
    head = b"\x00" + varint(1) + varint(1) + varint(1) + b"k" + varint(BOMB_BYTES)
    size = len(head) + BOMB_BYTES + len(varint(0))
    records = first + varint(size) + head + bytes(BOMB_BYTES) + varint(0)
    packed = {
        "gzip": lambda: gzip.compress(records, 6),
        "lz4": lambda: bytes(cramjam.lz4.compress(records)),
        "zstd": lambda: bytes(cramjam.zstd.compress(records)),
    }[request.param]()
    assert len(packed) < 1_000_000
    fields = BatchFields(
        attributes=CODECS[request.param],
        base_timestamp=TIMESTAMP_MS,
        max_timestamp=TIMESTAMP_MS + 1,
        record_count=2,
        last_offset_delta=1,
    )
    return build_batch([], fields, payload=packed)


def offset_at(bootstrap, topic, timestamp_ms):
    """Return the error of a search by time."""
    partition = ListOffsetsPartition(
        partition_index=0, current_leader_epoch=-1, timestamp=timestamp_ms
    )
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        topics=(ListOffsetsTopic(name=topic, partitions=(partition,)),),
    )
    with RawConnection(bootstrap) as connection:
        return connection.call(request).topics[0].partitions[0].error_code


def test_a_bomb_is_passed_on_as_it_came_and_never_unpacked(bootstrap, new_topic, bomb):
    """As Apache Kafka does: the broker looks into a batch only where it must."""
    topic = new_topic()
    assert produce_error(bootstrap, topic, bomb) == "none"
    with RawConnection(bootstrap) as connection:
        partition = connection.call(fetch_request(topic)).responses[0].partitions[0]
    # All but the offset and the leader epoch, which are the broker's.
    assert bytes(partition.records)[16:] == bomb[16:]
    # A search by time has to look inside, and is refused by name: its asker did nothing wrong.
    assert offset_at(bootstrap, topic, TIMESTAMP_MS + 1) is ErrorCode.corrupt_message
    assert produce_error(bootstrap, topic, build_batch([NewRecord(value=b"v")])) == "none"


def test_a_bomb_is_refused_where_the_broker_has_to_look_inside(bootstrap, new_topic, bomb):
    compacted = new_topic(cleanup_policy="compact")
    assert produce_error(bootstrap, compacted, bomb) == "invalid_record"
    good = build_batch([NewRecord(value=b"v", key=b"k")])
    assert produce_error(bootstrap, compacted, good) == "none"


def test_a_group_that_stands_inside_a_bomb_does_not_take_the_metrics_down(
    peer, bootstrap, new_topic, new_group, bomb
):
    topic, group = new_topic(), new_group()
    assert produce_error(bootstrap, topic, bomb) == "none"
    inside = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 1)])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.alter_consumer_group_offsets([inside])[group].result(30)
    assert metric(peer, "kafka_consumergroup_lag_sum", group) == 1


def metric(peer, name, label=None):
    """Return a series of the broker, of those with a label of this value when it is given."""
    with urllib.request.urlopen(f"{peer.http_address}/metrics", timeout=20) as response:  # noqa: S310 - a test's own server
        families = text_string_to_metric_families(response.read().decode())
    return next(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and (label is None or label in sample.labels.values())
    )


def test_slow_writers_take_no_memory_and_are_served_when_they_are_done(bootstrap, new_topic):
    """150 connections announce 900 KB and send a little at a time; one of them goes through."""
    topic = new_topic()
    batch = build_batch([NewRecord(value=bytes(900_000))])
    request = produce_request(topic, batch)
    body = encode_request(request, 1)
    frame = struct.pack(">i", len(body)) + body
    connections = [RawConnection(bootstrap) for _ in range(150)]
    for start in range(0, 10_000, 1000):
        for connection in connections:
            connection.send_bytes(frame[start : start + 1000])
        time.sleep(0.2)
    patient, *others = connections
    for start in range(10_000, len(frame), 50_000):
        patient.send_bytes(frame[start : start + 50_000])
        time.sleep(0.05)
    answer = patient.receive(request).responses[0].partition_responses[0]
    assert answer.error_code is ErrorCode.none
    patient.close()
    for connection in others:
        connection.reset()


def test_a_reader_that_takes_nothing_is_disconnected(peer, bootstrap, new_topic):
    before = metric(peer, CLOSED)
    connections = flood_with_fetches(bootstrap, fill(bootstrap, new_topic()), count=20)
    try:
        wait_until(lambda: metric(peer, CLOSED) == before + 20, 40, "the end of 20 slow readers")
    finally:
        for connection in connections:
            connection.reset()


def test_a_reader_that_is_slow_but_reads_gets_everything(bootstrap, new_topic):
    """For longer than the limit on readers that take nothing."""
    topic = fill(bootstrap, new_topic())
    request = fetch_request(topic)
    with RawConnection(bootstrap) as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        for _ in range(4):
            connection.send(request)
        deadline = time.monotonic() + SLOW_READER_SECONDS * 2
        received = b""
        while time.monotonic() < deadline:
            received += connection.socket.recv(8_192)
            time.sleep(0.05)
        sizes = []
        while len(sizes) < 4:
            while len(received) < 4 or len(received) < 4 + size_of(received):
                part = connection.socket.recv(1 << 20)
                assert part, "the broker closed the connection of a reader that reads"
                received += part
            sizes.append(size_of(received))
            received = received[4 + sizes[-1] :]
    assert min(sizes) > 900_000
    assert len(set(sizes)) == 1


def size_of(frame):
    return struct.unpack_from(">i", frame)[0]


def fill(bootstrap, topic):
    batch = build_batch([NewRecord(value=bytes(900_000))])
    assert produce_error(bootstrap, topic, batch) == "none"
    return topic


def flood_with_fetches(bootstrap, topic, *, count):
    """Open connections that each ask for 50 MB and read nothing."""
    body = encode_request(fetch_request(topic), 1)
    frames = (struct.pack(">i", len(body)) + body) * 50
    connections = [RawConnection(bootstrap) for _ in range(count)]
    for connection in connections:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        connection.send_bytes(frames)
    return connections


def test_a_consumer_that_pauses_longer_than_the_limit_goes_on(bootstrap, new_topic, new_group):
    """A real client reads its socket in the background, however long its user thinks."""
    topic = fill(bootstrap, new_topic())
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": new_group(),
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    assert len(consumer.poll(30).value()) == 900_000
    time.sleep(SLOW_READER_SECONDS * 1.5)
    fill(bootstrap, topic)
    found = []
    wait_until(lambda: found.append(consumer.poll(1)) or found[-1], 30, "the next record")
    assert found[-1].error() is None
    consumer.close()
