"""ConsumerGroups whose readers are pods of a workload: lag scales them, a reset stops them."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from support.kube import KubeOperator, apply, condition, get, kubectl, resource
from support.kube_cluster import KubeCluster
from support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC, GROUP, READERS = "work", "readers", "readers"
PARTITIONS = 4
#: So many that each partition is still behind when the last reader is due.
RECORDS = 12_000
#: A reader reads one partition to its end before it begins with its next.
READ_SECONDS = 150
#: Each of them reads some 40 records a second; it leaves its group when it ends.
READER = """
import signal, sys, time
from kafka import KafkaConsumer
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
reader = KafkaConsumer(
    sys.argv[2], bootstrap_servers=sys.argv[1], group_id=sys.argv[3],
    auto_offset_reset="earliest", auto_commit_interval_ms=500, max_poll_records=10,
)
try:
    for record in reader:
        time.sleep(0.025)
finally:
    reader.close()
"""


@pytest.fixture(scope="module")
def cluster(shared_namespace: str) -> Iterator[KubeCluster]:
    pool = {"name": "a", "replicas": 1, "storage": {"type": "Ephemeral"}}
    config = {"default.replication.factor": 1, "offsets.topic.replication.factor": 1}
    with KubeCluster(shared_namespace, pools=[pool], config=config) as found:
        yield found


def workload(
    cluster: KubeCluster, replicas: int, kind: str = "Deployment", name: str = READERS
) -> dict[str, Any]:
    """Return the readers, whose group has the workload's name."""
    labels = {"app": name}
    container = {
        "name": "reader",
        "image": broker_image(cluster),
        "imagePullPolicy": "IfNotPresent",
        "command": ["/opt/headrace/venv/bin/python", "-c", READER],
        "args": [cluster.resource()["status"]["bootstrapServers"], TOPIC, name],
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
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [container], "securityContext": security},
    }
    service = {"serviceName": name} if kind == "StatefulSet" else {}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": cluster.namespace,
            "annotations": {"headrace.dev/scaled-by": GROUP if name == READERS else name},
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": template,
            **service,
        },
    }


def broker_image(cluster: KubeCluster) -> str:
    """Return the image that the brokers run: its Python has a Kafka client."""
    pod = next(iter(cluster.pods().values()))
    return str(pod["spec"]["containers"][0]["image"])


def group(
    cluster: KubeCluster, kind: str = "Deployment", name: str = GROUP, **spec: Any
) -> dict[str, Any]:
    """Return the ConsumerGroup."""
    return resource(
        "ConsumerGroup",
        cluster.namespace,
        name,
        clusterRef={"name": cluster.name},
        topics=[TOPIC],
        targetRef={"kind": kind, "name": name},
        **spec,
    )


def replicas(cluster: KubeCluster, kind: str = "deployment", name: str = READERS) -> int:
    """Return how many readers are wanted."""
    return int(get(cluster.namespace, kind, name)["spec"]["replicas"])


def seen(cluster: KubeCluster, name: str = GROUP) -> dict[str, Any]:
    """Return the ConsumerGroup."""
    found: dict[str, Any] = get(cluster.namespace, "consumergroup", name)
    return found


def produce(cluster: KubeCluster, count: int) -> None:
    """Spread records evenly over the partitions."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(count):
        producer.produce(TOPIC, str(number), partition=number % PARTITIONS)
        if number % 1000 == 0:
            producer.flush()
    assert producer.flush(30) == 0


def committed(cluster: KubeCluster, name: str = GROUP) -> list[int]:
    """Return the group's offsets."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": name})
    partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
    found = [each.offset for each in consumer.committed(partitions, timeout=10)]
    consumer.close()
    return found


@pytest.fixture(scope="module")
def readers(cluster: KubeCluster) -> KubeCluster:
    """One reader, many records, and a group that says how far behind it is."""
    reference = {"name": cluster.name}
    apply(resource("Topic", cluster.namespace, TOPIC, clusterRef=reference, partitions=PARTITIONS))
    wait_until(
        lambda: condition(get(cluster.namespace, "topic", TOPIC)).get("status") == "True", 30
    )
    produce(cluster, RECORDS)
    apply(workload(cluster, 1), group(cluster))
    wait_until(lambda: seen(cluster).get("status", {}).get("members") == 1, 90, "a member")
    wait_until(lambda: 0 < seen(cluster)["status"].get("lagRecords", 0) < RECORDS, 90, "its lag")
    return cluster


def test_lag_scales_the_readers_up_to_one_for_each_partition_and_down_again(
    readers: KubeCluster,
) -> None:
    policy = {
        "target": {"maxLagRecords": 50},
        "minReplicas": 1,
        "maxReplicas": PARTITIONS + 3,
        "scaleDownDelay": "10s",
    }
    apply(group(readers, lagPolicy=policy))
    most, deadline = 1, time.monotonic() + 240
    while most < PARTITIONS and time.monotonic() < deadline:
        most = max(most, replicas(readers))
        time.sleep(1)
    assert most == PARTITIONS
    verdict = condition(seen(readers), "LagWithinTarget")
    assert (verdict["status"], verdict["reason"]) == ("False", "LagAboveTarget")
    # It is far behind, and still nobody stands by.
    for _ in range(20):
        assert replicas(readers) <= PARTITIONS
        time.sleep(1)
    wait_until(lambda: replicas(readers) == 1, 240, "one reader to be enough again")
    verdict = condition(seen(readers), "LagWithinTarget")
    assert (verdict["status"], verdict["reason"]) == ("True", "LagWithinTarget")
    assert condition(seen(readers))["status"] == "True"


def test_a_reset_stops_the_readers_moves_the_group_and_starts_as_many_again(
    readers: KubeCluster,
) -> None:
    apply(group(readers))
    kubectl("-n", readers.namespace, "scale", f"deployment/{READERS}", "--replicas=2")
    wait_until(lambda: seen(readers)["status"].get("members") == 2, 90, "two members")
    wait_until(
        lambda: min(committed(readers)) > 0, READ_SECONDS, "everything to have been read once"
    )
    before = committed(readers)
    to = {"position": "Earliest"}
    apply(group(readers, reset={"requestId": "again", "to": to, "whenActive": "ScaleDown"}))
    wait_until(lambda: replicas(readers) == 0, 30, "the readers to be stopped")
    assert seen(readers)["status"]["pausedReplicas"] == 2

    def is_done() -> bool:
        return bool(seen(readers)["status"].get("lastReset", {}).get("completedAt"))

    wait_until(is_done, 90, "the reset to be done")
    wait_until(lambda: replicas(readers) == 2, 30, "as many readers as before")
    wait_until(
        lambda: "pausedReplicas" not in seen(readers)["status"], 30, "the note to be taken away"
    )
    note = seen(readers)["status"]
    assert [each["offset"] for each in note["lastReset"]["offsets"]] == [0] * PARTITIONS
    undo = [each["offset"] for each in note["lastReset"]["previousOffsets"]]
    assert all(old >= known for old, known in zip(undo, before, strict=True))
    wait_until(lambda: max(committed(readers)) < max(before), 60, "records to be read again")


def killed_until_reset(cluster: KubeCluster, name: str, operator: KubeOperator) -> int:
    """Kill the operator each time that it got further with a reset, until it is done."""
    kills, last = 0, None
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        status = seen(cluster, name)["status"]
        reset = status.get("lastReset", {})
        now = (
            replicas(cluster, "statefulset", name),
            status.get("pausedReplicas"),
            status.get("members"),
            reset.get("state"),
        )
        if now != last:
            operator.kill()
            kills += 1
        if reset.get("completedAt") and "pausedReplicas" not in status:
            return kills
        last = now
        time.sleep(0.05)
    raise TimeoutError(f"the reset is not done: {status}")


@pytest.mark.parametrize("is_killed", [False, True], ids=["in peace", "the operator is killed"])
def test_a_reset_of_a_stateful_set_is_done_once_and_can_be_undone(
    readers: KubeCluster, operator: KubeOperator, *, is_killed: bool
) -> None:
    kind, name = "StatefulSet", f"ordered-{is_killed}".lower()
    apply(workload(readers, 2, kind, name), group(readers, kind, name))
    wait_until(lambda: seen(readers, name).get("status", {}).get("members") == 2, 90, "members")
    wait_until(lambda: min(committed(readers, name)) > 0, READ_SECONDS, "each partition to be read")
    reset = {"requestId": "again", "to": {"position": "Earliest"}, "whenActive": "ScaleDown"}
    apply(group(readers, kind, name, reset=reset))
    if is_killed:
        assert killed_until_reset(readers, name, operator) > 1
        operator.wait_ready()

    def is_over() -> bool:
        status = seen(readers, name)["status"]
        return "pausedReplicas" not in status and "completedAt" in status.get("lastReset", {})

    wait_until(is_over, 120, "the reset to be done and its readers to be started")
    assert replicas(readers, "statefulset", name) == 2
    done = seen(readers, name)["status"]["lastReset"]
    assert [each["offset"] for each in done["offsets"]] == [0] * PARTITIONS
    assert min(each["offset"] for each in done["previousOffsets"]) > 0
    wait_until(lambda: seen(readers, name)["status"].get("members") == 2, 90, "its readers")
    wait_until(lambda: min(committed(readers, name)) > 0, READ_SECONDS, "records to be read again")
    assert seen(readers, name)["status"]["lastReset"] == done
    kubectl("-n", readers.namespace, "scale", f"statefulset/{name}", "--replicas=0")


def test_a_target_that_does_not_exist_is_named(readers: KubeCluster) -> None:
    missing = group(readers, lagPolicy={"target": {"maxLagRecords": 1}, "maxReplicas": 2})
    missing["metadata"]["name"] = "without-readers"
    missing["spec"]["groupId"] = "without-readers"
    missing["spec"]["targetRef"]["name"] = "nobody"
    apply(missing)

    def reason() -> str:
        found = get(readers.namespace, "consumergroup", "without-readers")
        return str(condition(found).get("reason", ""))

    wait_until(lambda: reason() == "TargetNotFound", 30, "the missing target to be named")
