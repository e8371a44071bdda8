"""What a Cluster brings along, how clients find it, and what its status says meanwhile."""

import json

import pytest

from support.kube import apply, condition, get
from support.kube_cluster import KubeCluster
from support.kube_status import Timeline, kstatus
from support.processes import wait_until

pytestmark = pytest.mark.timeout(300)

#: A first cluster on a busy machine of two cores. What it takes is printed.
ARRIVAL_SECONDS = 60
CLIENT = """
import sys
from kafka import KafkaConsumer, KafkaProducer, KafkaAdminClient
from kafka.admin import NewTopic
servers = sys.argv[1]
KafkaAdminClient(bootstrap_servers=servers).create_topics([NewTopic("t", 1, 3)])
producer = KafkaProducer(bootstrap_servers=servers, acks="all")
for number in range(100):
    producer.send("t", str(number).encode())
producer.flush()
consumer = KafkaConsumer("t", bootstrap_servers=servers, auto_offset_reset="earliest",
                         consumer_timeout_ms=20000)
seen = []
for record in consumer:
    seen.append(int(record.value))
    if len(seen) == 100:
        break
assert seen == list(range(100)), seen
with open("/dev/termination-log", "w") as said:
    said.write("all came")
"""


@pytest.fixture(scope="module")
def cluster(shared_namespace):
    with KubeCluster(shared_namespace) as running:
        yield running


def client_pod(namespace, image, servers):
    """A pod as users write them: restricted, with nothing of the cluster's own."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "client", "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "client",
                    "image": image,
                    "command": ["/opt/headrace/venv/bin/python", "-c", CLIENT, servers],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }


def test_a_cluster_comes_up_and_a_pod_uses_it_by_the_bootstrap_service(cluster):
    namespace = cluster.namespace
    assert cluster.ready_seconds < ARRIVAL_SECONDS
    status = cluster.resource()["status"]
    assert (status["brokers"], status["readyBrokers"]) == (3, 3)
    assert status["bootstrapServers"] == f"c-bootstrap.{namespace}.svc:9092"
    pods = cluster.pods().values()
    assert all(condition(pod)["status"] == "True" for pod in pods)
    image = next(iter(pods))["spec"]["containers"][0]["image"]
    apply(client_pod(namespace, image, status["bootstrapServers"]))
    wait_until(
        lambda: get(namespace, "pod", "client")["status"]["phase"] in ("Succeeded", "Failed"),
        60,
    )
    # Not from its log: kubelets of several nodes that share a machine collect each other's.
    (container,) = get(namespace, "pod", "client")["status"]["containerStatuses"]
    assert container["state"]["terminated"].get("message") == "all came", container


def test_a_cluster_brings_what_it_needs_and_nothing_that_others_own(cluster):
    namespace = cluster.namespace
    found = get(namespace, "sts,svc,cm,sa,pdb,networkpolicy", "-l", cluster.labels)["items"]
    names = {(each["kind"], each["metadata"]["name"]) for each in found}
    assert names >= {
        ("StatefulSet", "c-a"),
        ("Service", "c-brokers"),
        ("Service", "c-bootstrap"),
        ("Service", "c-bootstrap-external"),
        ("ServiceAccount", "c-brokers"),
        ("ConfigMap", "c-a"),
        ("ConfigMap", "c-identity"),
    }
    assert {kind for kind, _ in names} >= {"PodDisruptionBudget", "NetworkPolicy"}
    owner = cluster.resource()["metadata"]["uid"]
    for each in found:
        assert [o["uid"] for o in each["metadata"]["ownerReferences"]] == [owner]
    (budget,) = [each for each in found if each["kind"] == "PodDisruptionBudget"]
    assert budget["spec"]["maxUnavailable"] == 1
    settings = next(
        each["data"]
        for each in found
        if each["kind"] == "ConfigMap" and each["metadata"]["name"] == "c-a"
    )
    assert len(settings) == 3
    for text in settings.values():
        assert "advertised.listeners=" in text
        assert "controller.quorum" in text
    for pod in cluster.pods().values():
        assert not pod["spec"]["automountServiceAccountToken"]
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]


def test_a_broker_can_be_reached_from_outside_at_the_address_that_it_advertises(cluster):
    namespace = cluster.namespace
    ports = {
        service["spec"]["ports"][0]["nodePort"]
        for service in get(namespace, "svc", "-l", cluster.labels)["items"]
        if service["metadata"]["name"].startswith("c-a-")
    }
    brokers = cluster.brokers()
    assert sorted(brokers) == [1, 2, 3]
    assert {address.port for address in brokers.values()} == ports


@pytest.mark.slow
def test_at_every_moment_its_status_says_what_is_so(namespace):
    """kstatus says Current only when the spec, as it is now, is what all pods run and are ready."""
    cluster = KubeCluster(namespace)
    with Timeline(namespace) as timeline:
        for config in ({"log.retention.ms": 1000}, {"num.partitions": 2}, {"num.partitions": 3}):
            cluster.spec["config"] = config
            cluster.apply()
            cluster.wait_ready(200)
        cluster.delete()
    assert (
        timeline.states()[:-1] == ["InProgress", "Current"] * 3
        or timeline.states()
        == [
            "InProgress",
            "Current",
        ]
        * 3
    )
    current = [each for each in timeline.samples if kstatus(each[0]) == "Current"]
    assert {each["metadata"]["generation"] for each, _ in current} == {1, 2, 3}
    for found, pods in current:
        assert found["status"]["readyBrokers"] == found["status"]["brokers"] == 3
        assert found["metadata"].get("deletionTimestamp") or len(pods) == 3
        wanted = str(found["spec"]["config"].get("num.partitions"))
        for pod in pods:
            config = json.loads(pod["metadata"]["annotations"]["headrace.dev/config"])
            assert config.get("num.partitions", "None") == wanted
            assert condition(pod)["status"] == "True"
