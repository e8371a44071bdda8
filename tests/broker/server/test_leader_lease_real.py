"""A leader that hears neither the controller nor its followers sends its clients away.

The controller is a process of its own, so that it and the followers can fall silent apart.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v11 import request as fetch
from kio.schema.produce.v10 import request as produce

from support.batches import NewRecord, build_batch
from support.headrace_cluster import HeadraceCluster
from support.processes import wait_until
from support.wire import RawConnection, broker_ids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

_TOPIC = "led"
_LEASE_SECONDS = 3.0  # twice the sum of the two timeouts below
_TIMEOUTS = {"broker.session.timeout.ms": "1000", "controller.quorum.fetch.timeout.ms": "500"}
_BATCH = build_batch([NewRecord(value=b"v")])
_NO_LEADER = -1


@contextmanager
def _paused(node):
    node.pause()
    try:
        yield
    finally:
        node.resume()


@pytest.fixture
def cluster(tmp_path):
    """A controller (1) and three brokers."""
    made = HeadraceCluster(tmp_path, 4, _TIMEOUTS)
    controller, *brokers = made.nodes
    for node in made.nodes:
        node.settings["controller.quorum.voters"] = f"1@{controller.controller_address}"
    del controller.settings["advertised.listeners"]
    controller.settings["process.roles"] = "controller"
    controller.settings["listeners"] = f"CONTROLLER://{controller.controller_address}"
    for node in brokers:
        node.settings["process.roles"] = "broker"
        node.settings["listeners"] = f"PLAINTEXT://{node.bootstrap}"
    try:
        for node in made.nodes:
            node.start()
        for node in brokers:
            wait_until(lambda node=node: broker_ids(node.bootstrap) == {2, 3, 4}, 30)
        yield made
    finally:
        made.kill()


def _produce(acks, timeout_seconds):
    data = produce.PartitionProduceData(index=0, records=_BATCH)
    topics = (produce.TopicProduceData(name=_TOPIC, partition_data=(data,)),)
    return produce.ProduceRequest(
        acks=acks, timeout=timedelta(seconds=timeout_seconds), topic_data=topics
    )


def _ask(node, request):
    """Return a partition's answer, and whether the connection was closed with it."""
    with RawConnection(node.bootstrap, 40) as connection:
        (topic,) = connection.call(request).responses
        (partition,) = getattr(topic, "partitions", None) or topic.partition_responses
        was_refused = partition.error_code is ErrorCode.not_leader_or_follower
        return partition, was_refused and connection.is_closed_by_peer(5)


def _write(node, acks=-1, timeout_seconds=20):
    return _ask(node, _produce(acks, timeout_seconds))


def _is_written(node):
    return _write(node)[0].error_code is ErrorCode.none


def _read(node, offset, max_wait_ms):
    partition = fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = fetch.FetchRequest(
        replica_id=-1,
        max_wait=timedelta(milliseconds=max_wait_ms),
        min_bytes=1,
        isolation_level=0,
        topics=(fetch.FetchTopic(topic=_TOPIC, partitions=(partition,)),),
        forgotten_topics_data=(),
    )
    return _ask(node, request)


def test_a_leader_that_is_cut_off_sends_clients_away_and_one_without_a_controller_does_not(cluster):
    controller, leader, follower, _ = cluster.nodes
    admin = AdminClient({"bootstrap.servers": leader.bootstrap})
    topic = NewTopic(_TOPIC, 1, replica_assignment=[[2, 3, 4]])
    admin.create_topics([topic])[_TOPIC].result(20)
    wait_until(lambda: _is_written(leader), 20, "a first write")
    controller.pause()
    try:
        end = time.monotonic() + 2 * _LEASE_SECONDS
        while time.monotonic() < end:
            # Nobody answers heartbeats, but the followers fetch.
            assert _is_written(leader)
        committed = _write(leader)[0].base_offset + 1
        with ThreadPoolExecutor() as threads, _paused(follower):
            # It waits for records that cannot come while nothing is committed.
            reading = threads.submit(_read, leader, committed, 30_000)
            # It waits for the follower that is silent, until the leader gives itself up.
            waiting, is_closed = _write(leader, timeout_seconds=30)
            assert waiting.error_code is ErrorCode.not_leader_or_follower
            assert is_closed
            refused, is_closed = _write(leader)
            assert refused.error_code is ErrorCode.not_leader_or_follower
            assert refused.current_leader.leader_id == _NO_LEADER
            assert is_closed
            assert _write(leader, acks=1)[0].error_code is ErrorCode.none
            for ended, is_closed in (reading.result(), _read(leader, committed, 30_000)):
                assert ended.error_code is ErrorCode.not_leader_or_follower
                assert is_closed
            found, _ = _read(leader, committed - 1, 0)
            assert found.error_code is ErrorCode.none
            assert found.records
        wait_until(lambda: _is_written(leader), 20, "writes without a controller")
    finally:
        controller.resume()
    assert _is_written(leader)
