"""Brokers say the zone of the machine that they run on as their rack, whatever they began with."""

import json

import pytest

from support.kube import condition, get, kubectl
from support.kube_cluster import KubeCluster
from support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ZONE = "topology.kubernetes.io/zone"
OTHER = "zone-that-nobody-is-in"


@pytest.fixture
def zone(lab):
    """The zone of some node; a lab's only node is put into one for this test."""
    nodes = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    zones = [node["metadata"]["labels"].get(ZONE) for node in nodes]
    if any(zones):
        yield next(filter(None, zones))
        return
    if not lab.is_there:
        pytest.skip("no node of this cluster has a zone")
    name = nodes[0]["metadata"]["name"]
    kubectl("label", "node", name, f"{ZONE}=test-zone")
    yield "test-zone"
    kubectl("label", "node", name, f"{ZONE}-")


def pool(zone):
    return {
        "name": "a",
        "replicas": 2,
        "racks": [OTHER, zone],
        "storage": {"size": "1Gi", "deletionPolicy": "Delete"},
    }


def racks(cluster):
    return [node["rack"] for node in cluster.identity()["nodes"]]


def test_the_rack_is_the_zone_of_the_node(namespace, zone):
    with KubeCluster(namespace, pools=[pool(zone)]) as cluster:
        assert racks(cluster) == [zone, zone]
        settings = get(namespace, "configmap", "c-a")["data"].values()
        assert all(f"broker.rack={zone}\n" in text for text in settings)
        wait_until(lambda: set(cluster.racks().values()) == {zone}, 60, "the racks in Metadata")


def test_ready_waits_for_racks_that_the_operator_learns_of_late(namespace, zone, lab, operator):
    """It is away from before a pod has a machine until all brokers serve."""
    if not lab.is_there:
        pytest.skip("nothing may be scheduled for a moment, which is for labs alone")
    nodes = [
        node["metadata"]["name"]
        for node in json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    ]
    cluster = KubeCluster(namespace, pools=[pool(zone)])
    try:
        kubectl("cordon", *nodes)
        try:
            cluster.apply()
            wait_until(lambda: len(cluster.pods()) == 2, 60, "the pods")
            operator.scale(0)
        finally:
            kubectl("uncordon", *nodes)
        wait_until(
            lambda: all(condition(pod).get("status") == "True" for pod in cluster.pods().values()),
            60,
            "brokers that serve",
        )
        assert racks(cluster) == [zone, OTHER]
        operator.scale(1)
        cluster.wait_ready()
        assert racks(cluster) == [zone, zone]
        assert set(cluster.racks().values()) == {zone}
    finally:
        operator.scale(1)
        cluster.delete()
