"""Load balancers: brokers wait for their addresses and advertise them."""

import json
from contextlib import suppress

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.kube import get, kubectl
from support.kube_cluster import LISTENER, KubeCluster
from support.processes import wait_until
from support.streams import FAST_CLIENT, read_partition

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BALANCED, PORT = "balanced", 9095
# Addresses for documentation (RFC 5737). On the lab's node, kube-proxy takes what is sent to them.
BOOTSTRAP, FIRST = "198.51.100.1", "198.51.100.11"


@pytest.fixture
def cluster(namespace, lab):
    if not lab.is_there:
        pytest.skip("KUBELAB is not set: this cluster may have a cloud controller of its own")
    found = KubeCluster(namespace, pools=[{"name": "a", "replicas": 1}])
    found.pool["storage"] = {"type": "Ephemeral"}
    found.spec["listeners"] += [{"name": BALANCED, "port": PORT, "type": "LoadBalancer"}]
    yield found
    found.delete()


def give_address(namespace, service, address):
    """Do what a cloud's controller does when its load balancer is there."""
    status = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
    arguments = ("patch", "service", service, "--subresource=status", "--type=merge")
    kubectl("-n", namespace, *arguments, "-p", json.dumps(status))


def list_brokers(admin):
    """Return the brokers' addresses as a client is told them; [] where nobody answers."""
    with suppress(KafkaException):
        return [each.host for each in admin.list_topics(timeout=2).brokers.values()]
    return []


def test_brokers_advertise_the_addresses_that_their_load_balancers_have(cluster):
    cluster.apply()
    wait_until(
        lambda: "c-a-0-balanced has no address yet" in cluster.condition().get("message", ""),
        60,
        "the wait for an address to be told",
    )
    assert cluster.condition()["status"] == "False"
    assert cluster.pods() == {}
    service = get(cluster.namespace, "service", "c-a-0-balanced")
    assert service["spec"]["type"] == "LoadBalancer"
    give_address(cluster.namespace, "c-bootstrap-balanced", BOOTSTRAP)
    give_address(cluster.namespace, "c-a-0-balanced", FIRST)
    cluster.wait_ready()

    outside = {**FAST_CLIENT, "bootstrap.servers": f"{BOOTSTRAP}:{PORT}"}
    admin = AdminClient(outside)
    wait_until(lambda: len(list_brokers(admin)) == 1, 30, "the load balancer's address to be open")
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(10)
    producer = Producer(outside)
    for number in range(10):
        producer.produce("t", str(number))
    assert producer.flush(30) == 0
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    assert (broker.host, broker.port) == (FIRST, PORT)
    seen = read_partition(f"{BOOTSTRAP}:{PORT}", "t", 0)
    assert [value for _, value in seen] == list(range(10))
    # Others are told the addresses of the listener that they came in by.
    assert LISTENER in {each["name"] for each in cluster.spec["listeners"]}
    assert cluster.brokers()[1].host != FIRST
