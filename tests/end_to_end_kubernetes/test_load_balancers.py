"""Load balancers: brokers wait for their addresses, advertise them, and follow them."""

import json
import time
from contextlib import suppress

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.kube import get, kubectl
from support.kube_cluster import LISTENER, KubeCluster
from support.processes import wait_until
from support.streams import FAST_CLIENT, read_partition

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BALANCED, PORT = "balanced", 9095
# Addresses for documentation (RFC 5737). On the lab's node, kube-proxy takes what is sent to them.
BOOTSTRAP, FIRST, SECOND, MOVED = (f"198.51.100.{number}" for number in (1, 11, 12, 22))
# An operator that restarts a pod for nothing does so within a second or two.
_QUIET_SECONDS = 8


@pytest.fixture
def cluster(namespace, lab):
    if not lab.is_there:
        pytest.skip("KUBELAB is not set: this cluster may have a cloud controller of its own")
    found = KubeCluster(namespace)
    found.pool["replicas"] = 2
    yield found
    found.delete()


def balance(cluster):
    cluster.spec["listeners"] += [{"name": BALANCED, "port": PORT, "type": "LoadBalancer"}]


def give_address(cluster, service, address):
    """Do what a cloud's controller does when its load balancer is there."""
    status = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
    arguments = ("patch", "service", f"c-{service}-{BALANCED}", "--subresource=status")
    kubectl("-n", cluster.namespace, *arguments, "--type=merge", "-p", json.dumps(status))


def list_brokers(address):
    """Return the addresses that brokers advertise to a client there; {} where nobody answers."""
    admin = AdminClient({**FAST_CLIENT, "bootstrap.servers": f"{address}:{PORT}"})
    with suppress(KafkaException):
        found = admin.list_topics(timeout=2).brokers.items()
        return {node_id: (broker.host, broker.port) for node_id, broker in found}
    return {}


def wait_told(through, *addresses):
    wanted = {node_id: (host, PORT) for node_id, host in enumerate(addresses, 1)}
    what = f"{through} to tell {wanted}"
    wait_until(lambda: list_brokers(through) == wanted, 120, what)


def wait_for_want_of_an_address(cluster, pod):
    message = f"Service c-{pod}-{BALANCED} has no address yet"
    wait_until(
        lambda: message in cluster.condition().get("message", ""), 60, f"the message: {message}"
    )
    assert cluster.condition()["status"] == "False"


def uids(cluster):
    """Return the pods' uids by name; one that is about to end has none any more."""
    return {
        name: None if pod["metadata"].get("deletionTimestamp") else pod["metadata"]["uid"]
        for name, pod in cluster.pods().items()
    }


def are_all_others(now, before):
    """Whether the same pods are there, each made again."""
    is_whole = now.keys() == before.keys() and None not in now.values()
    return is_whole and set(now.values()).isdisjoint(before.values())


def produce(address, numbers):
    producer = Producer({**FAST_CLIENT, "bootstrap.servers": f"{address}:{PORT}"})
    for number in numbers:
        producer.produce("t", str(number))
    assert producer.flush(30) == 0


def test_brokers_advertise_the_addresses_that_their_load_balancers_have_and_follow_them(cluster):
    balance(cluster)
    cluster.apply()
    wait_for_want_of_an_address(cluster, "a-0")
    assert cluster.pods() == {}
    service = get(cluster.namespace, "service", "c-a-0-balanced")
    assert service["spec"]["type"] == "LoadBalancer"
    for name, address in (("bootstrap", BOOTSTRAP), ("a-0", FIRST), ("a-1", SECOND)):
        give_address(cluster, name, address)
    cluster.wait_ready()

    wait_told(BOOTSTRAP, FIRST, SECOND)
    admin = AdminClient({**FAST_CLIENT, "bootstrap.servers": f"{BOOTSTRAP}:{PORT}"})
    admin.create_topics([NewTopic("t", 1, 2)])["t"].result(10)
    produce(BOOTSTRAP, range(10))
    assert [value for _, value in read_partition(f"{BOOTSTRAP}:{PORT}", "t", 0)] == list(range(10))
    # Other clients get the addresses of the listener that they connected to.
    assert LISTENER in {each["name"] for each in cluster.spec["listeners"]}
    assert {FIRST, SECOND}.isdisjoint(broker.host for broker in cluster.brokers().values())

    before = uids(cluster)
    give_address(cluster, "a-1", MOVED)
    wait_told(MOVED, FIRST, MOVED)
    after = uids(cluster)
    assert after["c-a-0"] == before["c-a-0"]
    assert after["c-a-1"] not in (before["c-a-1"], None)
    cluster.wait_ready()
    produce(MOVED, range(10, 20))
    assert [value for _, value in read_partition(f"{MOVED}:{PORT}", "t", 0)] == list(range(20))
    time.sleep(_QUIET_SECONDS)
    assert uids(cluster) == after


def test_a_listener_that_is_added_restarts_nobody_before_its_address_is_there(cluster):
    cluster.apply()
    cluster.wait_ready()
    before = uids(cluster)
    balance(cluster)
    cluster.apply()
    wait_for_want_of_an_address(cluster, "a-0")
    time.sleep(_QUIET_SECONDS)
    assert uids(cluster) == before
    for name, address in (("bootstrap", BOOTSTRAP), ("a-0", FIRST), ("a-1", SECOND)):
        give_address(cluster, name, address)
    cluster.wait_ready()
    wait_told(BOOTSTRAP, FIRST, SECOND)
    assert are_all_others(uids(cluster), before)


def test_while_a_listener_waits_for_its_address_all_else_goes_on(cluster):
    cluster.apply()
    cluster.wait_ready()
    before = uids(cluster)
    balance(cluster)
    cluster.spec["config"] = {**cluster.spec.get("config", {}), "num.partitions": 3}
    cluster.apply()
    wait_for_want_of_an_address(cluster, "a-0")
    wait_until(lambda: are_all_others(uids(cluster), before), 180, "a roll of both")
    after = uids(cluster)
    former = get(cluster.namespace, "statefulset", "c-a")["metadata"]["uid"]
    kubectl("-n", cluster.namespace, "delete", "statefulset", "c-a", "--cascade=orphan")
    wait_until(
        lambda: (
            get(cluster.namespace, "statefulset", "c-a").get("metadata", {}).get("uid", former)
            != former
        ),
        60,
        "another set",
    )
    assert uids(cluster) == after
    for name, address in (("bootstrap", BOOTSTRAP), ("a-0", FIRST), ("a-1", SECOND)):
        give_address(cluster, name, address)
    cluster.wait_ready()
    wait_told(BOOTSTRAP, FIRST, SECOND)
