"""A broker whose memory for requests is used up by requests that never end."""

import contextlib
import socket
import struct
import time
import uuid

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.batches import NewRecord, build_batch
from support.headrace_broker import HeadraceBroker
from support.hostile import fetch_request, produce_error
from support.share_consumers import configure_group
from support.share_fetches import acquired, id_of, share_fetch_of
from support.wire import RawConnection, split_address

BUDGET_BYTES = 1_048_576


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    settings = {"queued.max.request.bytes": str(BUDGET_BYTES)}
    with HeadraceBroker(tmp_path_factory.mktemp("budget"), settings) as started:
        yield started


@pytest.fixture
def topic(broker):
    """A topic with two batches."""
    name = uuid.uuid4().hex
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    for value in (b"first", b"second"):
        assert (
            produce_error(broker.bootstrap, name, build_batch([NewRecord(value=value)])) == "none"
        )
    return name


@contextlib.contextmanager
def spent(broker):
    """Use up the budget with lengths of requests that do not come."""
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            client = stack.enter_context(socket.create_connection(split_address(broker.bootstrap)))
            client.sendall(struct.pack(">i", 900_000))
        time.sleep(0.5)
        yield


def test_a_fetch_returns_a_batch_however_little_memory_is_free(broker, topic):
    with spent(broker), RawConnection(broker.bootstrap) as connection:
        (partition,) = connection.call(fetch_request(topic, min_bytes=1)).responses[0].partitions
        assert partition.records
        assert b"first" in bytes(partition.records)


def test_a_share_fetch_acquires_a_batch_however_little_memory_is_free(broker, topic):
    group = uuid.uuid4().hex
    configure_group(broker.bootstrap, group, {"share.auto.offset.reset": "earliest"})
    with spent(broker), RawConnection(broker.bootstrap) as connection:
        request = share_fetch_of(group, id_of(connection, topic), 1, 5)
        assert acquired(connection.call(request)) == [(0, 0)]


def test_memory_stays_bounded_while_many_send_large_requests(broker, topic):
    before, part = broker.rss_bytes(), bytes(1 << 20)
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(50):
            client = stack.enter_context(socket.create_connection(split_address(broker.bootstrap)))
            client.setblocking(False)  # noqa: FBT003 (socket's own)
            client.send(struct.pack(">i", 20_000_000))
            clients.append(client)
        deadline = time.monotonic() + 8  # some sweeps
        while time.monotonic() < deadline:
            for client in clients:
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    client.send(part)
            time.sleep(0.05)
        grown = broker.rss_bytes() - before
        # The budget, one whole request with the buffer it was copied from, 64 KiB for each other.
        assert grown < 80_000_000, grown
        with RawConnection(broker.bootstrap) as connection:
            assert connection.call(fetch_request(topic)).responses[0].partitions[0].records
