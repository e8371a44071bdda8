"""Consumers read the follower of their rack (KIP-392), and the leader where that one cannot serve.

Three brokers, a rack each, and the topics' leader always in the first. Which broker served is shown
by the bytes that each one sent.
"""

import os
import re
import threading
from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.headrace_cluster import HeadraceCluster
from support.metrics import scrape, wait_metrics
from support.processes import wait_until
from support.readers import JavaReader, LibrdkafkaReader
from support.streams import FAST_PRODUCER

_RACKS = {1: "north", 2: "east", 3: "south"}
_NEARBY = 2
_SIZE = 10_000
_RECORDS = 400
_TOTAL = _SIZE * _RECORDS
_SECONDS = 60

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory):
    properties = {
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "replica.lag.time.max.ms": "3000",
        # The leaders stay where the tests put them.
        "auto.leader.rebalance.enable": "false",
    }
    cluster = HeadraceCluster(tmp_path_factory.mktemp("racks"), 3, properties)
    for node in cluster.nodes:
        node.settings["broker.rack"] = _RACKS[node.node_id]
    with cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster):
    shared_cluster.make_whole()
    return shared_cluster


@pytest.fixture
def topic(cluster, request):
    """A topic of one partition that the first broker leads."""
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, 1, replica_assignment=[[1, 2, 3]])])[name].result(_SECONDS)
    cluster.wait_in_sync(name)
    assert cluster.leader(name).node_id == 1
    return name


def _sent(cluster):
    """Return how many bytes each running broker has sent."""
    running = [node for node in cluster.nodes if node.is_running]
    wait_metrics(*(node.http_port for node in running))
    return {node.node_id: _bytes_out(node) for node in running}


def _bytes_out(node):
    return sum(
        sample.value
        for sample in scrape(node.http_port)
        if sample.name == "headrace_broker_network_bytes_total"
        and sample.labels["direction"] == "out"
    )


@pytest.fixture(
    params=[LibrdkafkaReader, pytest.param(JavaReader, marks=pytest.mark.java)],
    ids=["librdkafka", "java"],
)
def read(cluster, topic, request, tmp_path):
    """Return a function that starts a client that reads the topic from its start in a rack."""
    with ExitStack() as end:

        def start(rack, bootstrap=None):
            found = request.param(bootstrap or cluster.bootstrap, topic, rack, tmp_path)
            end.callback(found.stop)
            return found

        yield start


@contextmanager
def _writing(bootstrap, topic):
    """Write all the time; yields the list of acknowledged offsets."""
    acknowledged: list[int] = []
    is_running = True

    def run():
        producer = Producer({**FAST_PRODUCER, "bootstrap.servers": bootstrap})
        while is_running:
            producer.produce(
                topic,
                os.urandom(_SIZE),
                partition=0,
                on_delivery=lambda error, message: error or acknowledged.append(message.offset()),
            )
            producer.poll(0.01)
        assert producer.flush(_SECONDS) == 0

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield acknowledged
    finally:
        is_running = False
        thread.join()


def _fill(cluster, topic):
    producer = Producer({**FAST_PRODUCER, "bootstrap.servers": cluster.bootstrap})
    for _ in range(_RECORDS):
        producer.produce(topic, os.urandom(_SIZE), partition=0)
    assert producer.flush(_SECONDS) == 0


def _wait_read(reader, count):
    wait_until(lambda: len(reader.offsets) >= count, _SECONDS, f"{count} records")


def _growth(before, after):
    return {node: after[node] - before[node] for node in before if node in after}


def test_a_consumer_reads_from_the_follower_in_its_rack(cluster, topic, read):
    _fill(cluster, topic)
    before = _sent(cluster)
    reader = read(_RACKS[_NEARBY])
    _wait_read(reader, _RECORDS)
    grown = _growth(before, _sent(cluster))
    assert reader.offsets == list(range(_RECORDS))
    assert grown[_NEARBY] >= _TOTAL
    assert max(grown[1], grown[3]) < _TOTAL / 10


@pytest.mark.parametrize("rack", ["north", "west", ""], ids=["leaders", "unknown", "none"])
def test_a_consumer_without_a_follower_nearby_reads_from_the_leader(cluster, topic, read, rack):
    _fill(cluster, topic)
    before = _sent(cluster)
    reader = read(rack)
    _wait_read(reader, _RECORDS)
    grown = _growth(before, _sent(cluster))
    assert reader.offsets == list(range(_RECORDS))
    assert grown[1] >= _TOTAL
    assert max(grown[2], grown[3]) < _TOTAL / 10


def test_a_consumer_whose_follower_dies_reads_on_and_returns_to_it(cluster, topic, read):
    nearby = cluster.node(_NEARBY)
    with _writing(cluster.bootstrap, topic) as acknowledged:
        reader = read(_RACKS[_NEARBY])
        _wait_read(reader, 100)
        nearby.kill()
        died_at = len(acknowledged)
        _wait_read(reader, died_at + 200)
        nearby.start()
        cluster.wait_complete()
        cluster.wait_in_sync(topic)
        before = _sent(cluster)
        _wait_read(reader, len(reader.offsets) + 300)
        grown = _growth(before, _sent(cluster))
        assert grown[_NEARBY] >= 150 * _SIZE, "it is read again"
    _wait_read(reader, len(acknowledged))
    assert reader.offsets == list(range(len(reader.offsets)))
