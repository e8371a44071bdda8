"""Brokers say the zone of the machine that they run on as their rack, whatever they began with."""

import json

import pytest

from support.kube import get, kubectl
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


def test_the_rack_is_the_zone_of_the_node(namespace, zone):
    pool = {
        "name": "a",
        "replicas": 2,
        "racks": [OTHER, zone],
        "storage": {"size": "1Gi", "deletionPolicy": "Delete"},
    }
    with KubeCluster(namespace, pools=[pool]) as cluster:
        racks = [node["rack"] for node in cluster.identity()["nodes"]]
        assert racks == [zone, zone]
        settings = get(namespace, "configmap", "c-a")["data"].values()
        assert all(f"broker.rack={zone}\n" in text for text in settings)
        wait_until(lambda: set(cluster.racks().values()) == {zone}, 60, "the racks as told")
