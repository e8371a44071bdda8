"""Drivers and executors on nodes that are lost or drained: others take their places elsewhere.

Drivers that are lost are Python scripts, without a JVM. The example's job is to lose its executors,
and to count every reading all the same. What runs where is asked of the API
server: with several nodes logs cannot be relied on.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace_operator.kubernetes.spark.states import LOST_SECONDS
from headrace_operator.render.spark_pods import LOST_NODE_TOLERATED_SECONDS
from support.kube import ROOT, KubeLab, KubeOperator, condition, get, kubectl
from support.kube_spark import KubeJob, driver, executors, readings
from support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NODES_MIN = 3
#: Until a lab's node counts as not ready, until somebody looks again, and the next pod's start.
MORE_SECONDS = 90
ALWAYS = {"type": "Always", "onFailureRetryInterval": 1}
WAITS = "import time; print('started', flush=True); time.sleep(3600)"


def other_nodes(operator: KubeOperator) -> list[str]:
    """Return nodes that run neither the control plane (a lab's first) nor the operator."""
    items = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    names = sorted(each["metadata"]["name"] for each in items)
    if len(names) < NODES_MIN:
        pytest.skip("NODES: this cluster has fewer than three nodes")
    pods = get(operator.namespace, "pods").get("items", [])
    taken = {each["spec"].get("nodeName") for each in pods} | {names[0]}
    return [name for name in names if name not in taken]


def preferring(node: str) -> dict[str, Any]:
    """Return an affinity that begins on a node where it can, and may go elsewhere."""
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    term = {"weight": 100, "preference": {"matchExpressions": [expression]}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}


def is_running(job: KubeJob, *, besides: str = "") -> bool:
    found = driver(job.namespace, job.name)
    return (
        found.get("status", {}).get("phase") == "Running"
        and found["metadata"]["uid"] != besides
        and not found["metadata"].get("deletionTimestamp")
        and all(each["ready"] for each in found["status"].get("containerStatuses", []))
    )


def started(namespace: str, name: str, node: str) -> tuple[KubeJob, str]:
    """Start a job on a node; return it and the uid of its driver's pod."""
    job = KubeJob(namespace, name, WAITS, restartPolicy=ALWAYS)
    job.spec["driver"]["affinity"] = preferring(node)
    job.apply()
    wait_until(lambda: is_running(job), 120, "the driver to run")
    found = driver(namespace, name)
    assert found["spec"]["nodeName"] == node
    return job, str(found["metadata"]["uid"])


def test_a_driver_whose_node_is_lost_is_made_again_elsewhere_within_a_bound(
    shared_namespace: str, operator: KubeOperator, nodes_lab: KubeLab
) -> None:
    node = other_nodes(operator)[0]
    job, uid = started(shared_namespace, "lost", node)
    try:
        nodes_lab.run("lose", node)
        began = time.monotonic()
        bound = LOST_NODE_TOLERATED_SECONDS + 2 * LOST_SECONDS + MORE_SECONDS
        wait_until(lambda: is_running(job, besides=uid), bound, "a driver on another node")
        seconds = time.monotonic() - began
        found = driver(job.namespace, job.name)
        assert found["spec"]["nodeName"] != node
        assert seconds > LOST_SECONDS, "a node that was lost a moment ago may be back in the next"
        assert job.resource()["status"]["executionAttempts"] == 2
    finally:
        nodes_lab.heal(node)
    # The former one ends where it was, and takes nothing with it.
    time.sleep(5)
    assert driver(job.namespace, job.name)["metadata"]["uid"] == found["metadata"]["uid"]
    kubectl("-n", job.namespace, "delete", "sparkapplication", job.name)


def test_a_driver_on_a_drained_node_is_made_again_elsewhere(
    shared_namespace: str, operator: KubeOperator
) -> None:
    node = other_nodes(operator)[0]
    job, uid = started(shared_namespace, "drained", node)
    try:
        kubectl(
            *("drain", node, "--ignore-daemonsets", "--delete-emptydir-data"),
            *("--pod-selector=spark-role=driver", "--timeout=120s", "--force"),
        )
        wait_until(lambda: is_running(job, besides=uid), 90, "a driver on another node")
        assert driver(job.namespace, job.name)["spec"]["nodeName"] != node
    finally:
        kubectl("uncordon", node)
    kubectl("-n", job.namespace, "delete", "sparkapplication", job.name)


EXAMPLE = ROOT / "manifests/examples/cpu-load"
PATIENCE_SECONDS = 240


@pytest.fixture
def spread_job(
    new_namespace: Callable[..., str], operator: KubeOperator, nodes_lab: KubeLab
) -> Iterator[tuple[str, str]]:
    """The example, whose executors go to another node than the driver's; yield (namespace, node).

    Its checkpoint is on a folder of this machine, which all of a lab's nodes have, in the place of
    a volume that several nodes may write.
    """
    assert nodes_lab.is_there
    node = other_nodes(operator)[0]
    namespace = new_namespace(**{"pod-security.kubernetes.io/enforce": "privileged"})
    folder = Path(tempfile.mkdtemp(prefix="headrace-checkpoint-"))
    folder.chmod(0o777)
    documents = list(yaml.safe_load_all(kubectl("kustomize", str(EXAMPLE))))
    for each in documents:
        if each["kind"] == "SparkApplication":
            spec = each["spec"]
            spec["volumes"] = [{"name": "checkpoint", "hostPath": {"path": str(folder)}}]
            spec["driver"]["affinity"] = avoiding(node)
            spec["executor"]["affinity"] = preferring(node)
    # The example's own producer would write on for ever.
    documents = [each for each in documents if each["kind"] != "Deployment"]
    text = yaml.safe_dump_all(documents)
    try:
        kubectl("-n", namespace, "apply", "--server-side", "-f", "-", stdin=text)
        yield namespace, node
        kubectl("-n", namespace, "delete", "--ignore-not-found", "-f", "-", stdin=text)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def avoiding(node: str) -> dict[str, Any]:
    expression = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def executors_on(namespace: str) -> dict[str, str]:
    """Return the nodes of executors that run and are to go on, by their names."""
    selector = "spark-role=executor,sparkoperator.k8s.io/app-name=cpu-load"
    items = get(namespace, "pods", "-l", selector).get("items", [])
    running = executors(namespace, "cpu-load")
    return {
        each["metadata"]["name"]: each["spec"]["nodeName"]
        for each in items
        if running.get(each["metadata"]["name"]) == "Running"
        and not each["metadata"].get("deletionTimestamp")
    }


def records(namespace: str, topic: str) -> list[dict[str, Any]]:
    """Return the values of a topic's records."""
    pod = next(iter(ready_brokers(namespace)))
    command = ("exec", pod, "--", "headrace", "consume", topic, "--from", "earliest")
    text = kubectl("-n", namespace, *command, "--bootstrap-server", "localhost:9092", check=False)
    return [json.loads(line) for line in text.splitlines()]


def ready_brokers(namespace: str) -> list[str]:
    items = get(namespace, "pods", "-l", "headrace.dev/cluster=cpu").get("items", [])
    return [
        each["metadata"]["name"]
        for each in items
        if each["metadata"]["name"].startswith("cpu-brokers-")
        and any(
            every["type"] == "Ready" and every["status"] == "True"
            for every in each["status"].get("conditions", [])
        )
    ]


def has_new_driver(namespace: str, former: str) -> bool:
    found = driver(namespace, "cpu-load")
    is_other = found.get("metadata", {}).get("uid") not in (None, former)
    return is_other and found["status"].get("phase") == "Running"


def counted(namespace: str) -> int:
    """Return how many readings the newest results of all windows have."""
    newest = {
        (window["hostname"], window["cpu"], window["window_start"]): window["readings"]
        for window in records(namespace, "cpu-load-windows")
    }
    return sum(newest.values())


@contextmanager
def drained(node: str, role: str) -> Iterator[None]:
    """Evict a role's pods from a node, which takes no others meanwhile."""
    try:
        kubectl(
            *("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force"),
            *(f"--pod-selector=spark-role={role}", "--timeout=120s"),
        )
        yield
    finally:
        kubectl("uncordon", node)


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_executors_of_drained_and_lost_nodes_are_replaced_and_every_reading_counts(
    spread_job: tuple[str, str], nodes_lab: KubeLab
) -> None:
    namespace, node = spread_job

    def write() -> None:
        pod = ready_brokers(namespace)[0]
        with readings(namespace, pod, "cpu-load"):
            time.sleep(5)

    def is_ready() -> bool:
        found = condition(get(namespace, "cluster", "cpu"))
        return found.get("status") == "True"

    wait_until(is_ready, PATIENCE_SECONDS, "brokers")
    wait_until(lambda: list(executors_on(namespace).values()) == [node], PATIENCE_SECONDS, "it")
    before = driver(namespace, "cpu-load")["metadata"]["uid"]
    [first] = executors_on(namespace)
    write()
    with drained(node, "executor"):
        wait_until(lambda: executors_on(namespace).keys() - {first}, PATIENCE_SECONDS, "another")
    write()
    # One that does not register within a minute is given up, and another is made.
    wait_until(lambda: len(executors_on(namespace)) == 1, PATIENCE_SECONDS, "one that stays")
    # Wherever the second one is now, it is lost with its node, if that is not the driver's.
    [(second, where)] = executors_on(namespace).items()
    if where == driver(namespace, "cpu-load")["spec"]["nodeName"]:
        kubectl("-n", namespace, "delete", "pod", second)
        wait_until(lambda: list(executors_on(namespace).values()) == [node], PATIENCE_SECONDS, "it")
        [(second, where)] = executors_on(namespace).items()
    write()
    try:
        nodes_lab.run("lose", where)
        bound = LOST_NODE_TOLERATED_SECONDS + 2 * LOST_SECONDS + 2 * MORE_SECONDS
        wait_until(lambda: executors_on(namespace).keys() - {second}, bound, "one elsewhere")
        assert set(executors_on(namespace).values()) != {where}
        write()
    finally:
        nodes_lab.heal(where)
    found = driver(namespace, "cpu-load")
    assert found["metadata"]["uid"] == before
    # Its driver goes on elsewhere from the same checkpoint.
    place = found["spec"]["nodeName"]
    with drained(place, "driver"):
        wait_until(lambda: has_new_driver(namespace, before), PATIENCE_SECONDS, "another driver")
        assert driver(namespace, "cpu-load")["spec"]["nodeName"] != place
    write()
    wait_until(lambda: bool(ready_brokers(namespace)), 60, "a broker that answers")
    written = len(records(namespace, "cpu-load"))
    assert written > 4 * 200
    # Windows that nothing follows are written when their keys are silent for a minute.
    wait_until(lambda: counted(namespace) == written, PATIENCE_SECONDS, f"{written} readings")
    assert records(namespace, "cpu-load-dead-letters") == []
