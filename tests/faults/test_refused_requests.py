"""Requests of a producer that follow one that the leader refused for want of in-sync replicas.

While they are on their way a replica comes back. What the leader then says decides whether the
producer sends again in order, or takes what was refused for written, or writes it twice.
"""

import threading
import time

import pytest
from confluent_kafka import Producer

from faults.workload import create_topic
from support.headrace_cluster import HeadraceCluster
from support.processes import LOOPBACK, free_port, wait_until
from support.streams import read_partition
from support.tcp_proxy import Fate, TcpProxy

_PRODUCE = 0
_TOPIC = "refused"
_SECONDS = 60
LEADER, FOLLOWER = 1, 2


class _Gate:
    """A plan that keeps a Produce request with a text, and what follows it, until it is opened."""

    def __init__(self, text):
        self.text = text
        self.has_come = threading.Event()
        self.open = threading.Event()

    def __call__(self, request):
        if request.api_key == _PRODUCE and self.text in request.frame:
            self.has_come.set()
            assert self.open.wait(_SECONDS)
        return Fate.PASS, 0


@pytest.fixture
def cluster(tmp_path):
    """Three brokers with a topic whose leader's clients go through a proxy, and its plan's gate."""
    port = free_port()
    cluster = HeadraceCluster(tmp_path, properties={"broker.session.timeout.ms": "2000"})
    leader = cluster.node(LEADER)
    leader.settings["advertised.listeners"] = f"PLAINTEXT://{LOOPBACK}:{port}"
    with TcpProxy(port, leader.bootstrap) as proxy, cluster:
        create_topic(cluster, _TOPIC, 1, 2, assignment=[[LEADER, FOLLOWER]])
        cluster.proxy = proxy
        yield cluster


@pytest.fixture
def producer(cluster):
    """Each record in a request of its own."""
    return Producer(
        {
            "bootstrap.servers": f"{cluster.proxy.address}",
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.num.messages": 1,
            "retry.backoff.ms": 50,
            "request.timeout.ms": 1000,
            "log_level": 0,
        }
    )


def lose_follower(cluster):
    cluster.node(FOLLOWER).pause()
    wait_until(lambda: cluster.partitions(_TOPIC)[0].isr == (LEADER,), _SECONDS, "a smaller ISR")


def regain_follower(cluster):
    cluster.node(FOLLOWER).resume()
    cluster.wait_in_sync(_TOPIC)


def send(producer, acknowledged, *values):
    for value in values:
        producer.produce(
            _TOPIC,
            b"%d" % value,
            partition=0,
            on_delivery=lambda error, message: acknowledged.append(
                (int(message.value()), error and str(error))
            ),
        )
    producer.poll(0)


def let_it_go(cluster, producer, gate):
    """Bring the follower back, then let through what the gate kept."""
    assert gate.has_come.wait(_SECONDS)
    time.sleep(0.2)  # what came before it is refused meanwhile
    regain_follower(cluster)
    gate.open.set()
    assert producer.flush(_SECONDS) == 0


def written(cluster):
    return [value for _, value in read_partition(cluster.bootstrap, _TOPIC, 0)]


def test_a_new_producers_first_record_is_not_taken_for_written(cluster, producer):
    """librdkafka takes the success of a later request for that of all before it."""
    lose_follower(cluster)
    gate = cluster.proxy.plan = _Gate(b"1000002")
    acknowledged = []
    send(producer, acknowledged, 1000001, 1000002, 1000003)
    let_it_go(cluster, producer, gate)
    assert sorted(acknowledged) == [(1000001, None), (1000002, None), (1000003, None)]
    assert written(cluster) == [1000001, 1000002, 1000003]


def test_what_was_appended_and_not_acknowledged_is_not_written_twice(cluster, producer):
    """A new epoch, which is librdkafka's way with a gap, would write the first record again."""
    acknowledged = []
    send(producer, acknowledged, 1000000)
    assert producer.flush(_SECONDS) == 0
    cluster.node(FOLLOWER).pause()
    send(producer, acknowledged, 1000001)
    lose_follower(cluster)
    time.sleep(1)  # its request times out
    gate = cluster.proxy.plan = _Gate(b"1000003")
    send(producer, acknowledged, 1000002, 1000003, 1000004)
    let_it_go(cluster, producer, gate)
    assert written(cluster) == [1000000, 1000001, 1000002, 1000003, 1000004]
    assert sorted(acknowledged) == [(value, None) for value in range(1000000, 1000005)]
