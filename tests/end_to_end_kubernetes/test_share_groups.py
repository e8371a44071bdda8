"""A share group whose members are pods: lag scales them beyond the partitions, and back."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from support.kube import apply, condition, get, resource
from support.kube_cluster import KubeCluster
from support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC, WORKERS = "queue", "workers"
MEMBERS_MAX = 3
#: One partition: members of a share group read it together.
PARTITIONS = 1
RECORDS = 15_000
#: Each of them works off some 100 records a second; what it has not done it gives back.
WORKER = """
import signal, sys, time
from confluent_kafka import AcknowledgeType, ShareConsumer
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
worker = ShareConsumer({
    "bootstrap.servers": sys.argv[1], "group.id": sys.argv[3],
    "share.acknowledgement.mode": "explicit",
})
worker.subscribe([sys.argv[2]])
try:
    while True:
        for record in worker.poll(1.0):
            time.sleep(0.01)
            worker.acknowledge(record, AcknowledgeType.ACCEPT)
        worker.commit_sync(30)
finally:
    worker.close()
"""


@pytest.fixture(scope="module")
def cluster(shared_namespace: str) -> Iterator[KubeCluster]:
    pool = {"name": "a", "replicas": 1, "storage": {"type": "Ephemeral"}}
    config = {
        "default.replication.factor": 1,
        "offsets.topic.replication.factor": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
    }
    with KubeCluster(shared_namespace, pools=[pool], config=config) as found:
        yield found


def workload(cluster: KubeCluster) -> dict[str, Any]:
    """Return the workers, of which there is one at first."""
    labels = {"app": WORKERS}
    container = {
        "name": "worker",
        # Its Python has librdkafka's client.
        "image": "headrace/jobs:0.1.0",
        "imagePullPolicy": "IfNotPresent",
        "command": ["/opt/headrace/venv/bin/python", "-c", WORKER],
        "args": [cluster.resource()["status"]["bootstrapServers"], TOPIC, WORKERS],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    security = {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": WORKERS,
            "namespace": cluster.namespace,
            "annotations": {"headrace.dev/scaled-by": WORKERS},
        },
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "securityContext": security},
            },
        },
    }


def group(cluster: KubeCluster, **spec: Any) -> dict[str, Any]:
    """Return the ConsumerGroup."""
    reference = {"name": cluster.name}
    return resource(
        "ConsumerGroup",
        cluster.namespace,
        WORKERS,
        clusterRef=reference,
        type="Share",
        topics=[TOPIC],
        **spec,
    )


def status(cluster: KubeCluster) -> dict[str, Any]:
    found: dict[str, Any] = get(cluster.namespace, "consumergroup", WORKERS).get("status", {})
    return found


def replicas(cluster: KubeCluster) -> int:
    """Return how many workers are wanted."""
    return int(get(cluster.namespace, "deployment", WORKERS)["spec"]["replicas"])


def test_lag_of_a_share_group_scales_its_workers_beyond_the_partitions_and_back(
    cluster: KubeCluster,
) -> None:
    topic = resource(
        "Topic", cluster.namespace, TOPIC, clusterRef={"name": cluster.name}, partitions=PARTITIONS
    )
    apply(topic)
    wait_until(
        lambda: condition(get(cluster.namespace, "topic", TOPIC)).get("status") == "True", 30
    )
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(RECORDS):
        producer.produce(TOPIC, str(number))
        producer.poll(0)
    assert producer.flush(30) == 0
    begin = {"requestId": "begin", "to": {"position": "Earliest"}}
    apply(group(cluster, reset=begin))
    wait_until(lambda: status(cluster).get("lastReset", {}).get("completedAt"), 60, "the beginning")
    wait_until(lambda: status(cluster).get("lagRecords") == RECORDS, 30, "all of it as lag")
    target = {"kind": "Deployment", "name": WORKERS}
    apply(workload(cluster), group(cluster, reset=begin, targetRef=target))
    wait_until(lambda: status(cluster).get("members") == 1, 90, "a member")
    wait_until(lambda: 0 < status(cluster)["lagRecords"] < RECORDS, 90, "records worked off")
    policy = {
        "target": {"maxLagRecords": 500},
        "minReplicas": 1,
        "maxReplicas": MEMBERS_MAX,
        "scaleDownDelay": "10s",
    }
    apply(group(cluster, reset=begin, targetRef=target, lagPolicy=policy))
    wait_until(lambda: replicas(cluster) == MEMBERS_MAX, 120, "more workers than partitions")
    wait_until(lambda: status(cluster).get("members") == MEMBERS_MAX, 90, "all of them as members")
    verdict = condition(get(cluster.namespace, "consumergroup", WORKERS), "LagWithinTarget")
    assert (verdict["status"], verdict["reason"]) == ("False", "LagAboveTarget")
    most, deadline = 0, time.monotonic() + 240
    while replicas(cluster) > 1 and time.monotonic() < deadline:
        most = max(most, status(cluster).get("members", 0))
        time.sleep(1)
    assert (replicas(cluster), most) == (1, MEMBERS_MAX)
    wait_until(lambda: status(cluster).get("members") == 1, 90, "the others to be gone")
    wait_until(lambda: status(cluster)["lagRecords"] == 0, 60, "everything to be worked off")
    found = get(cluster.namespace, "consumergroup", WORKERS)
    verdict = condition(found, "LagWithinTarget")
    assert (verdict["status"], verdict["reason"]) == ("True", "LagWithinTarget")
    assert condition(found)["status"] == "True"
