"""A driver on a node that is lost, and on one that is drained: another takes its place elsewhere.

Drivers here are Python scripts, without a JVM. Where they are is asked of the API server: with
several nodes logs cannot be relied on.
"""

import json
import time
from typing import Any

import pytest

from headrace_operator.kubernetes.spark.states import LOST_SECONDS
from support.kube import KubeLab, KubeOperator, get, kubectl
from support.kube_spark import KubeJob, driver
from support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NODES_MIN = 3
#: What Kubernetes waits before it takes pods away from a node that does not answer; 300 unsaid.
TOLERATED_SECONDS = 10
#: Until a lab's node counts as not ready, until somebody looks again, and the next pod's start.
MORE_SECONDS = 90
ALWAYS = {"type": "Always", "onFailureRetryInterval": 1}
WAITS = "import time; print('started', flush=True); time.sleep(3600)"
TOLERATIONS = [
    {
        "key": f"node.kubernetes.io/{taint}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": TOLERATED_SECONDS,
    }
    for taint in ("not-ready", "unreachable")
]


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
    job.spec["driver"] |= {"affinity": preferring(node), "tolerations": TOLERATIONS}
    job.apply()
    wait_until(lambda: is_running(job), 120, "the driver to run")
    found = driver(namespace, name)
    assert found["spec"]["nodeName"] == node
    return job, str(found["metadata"]["uid"])


def test_a_driver_whose_node_is_lost_is_made_again_elsewhere_within_a_bound(
    shared_namespace: str, operator: KubeOperator, lab: KubeLab
) -> None:
    if not lab.is_there:
        pytest.skip("NODES: only a lab's node may be powered off")
    node = other_nodes(operator)[0]
    job, uid = started(shared_namespace, "lost", node)
    try:
        lab.run("lose", node)
        began = time.monotonic()
        bound = TOLERATED_SECONDS + 2 * LOST_SECONDS + MORE_SECONDS
        wait_until(lambda: is_running(job, besides=uid), bound, "a driver on another node")
        seconds = time.monotonic() - began
        found = driver(job.namespace, job.name)
        assert found["spec"]["nodeName"] != node
        assert seconds > LOST_SECONDS, "a node that was lost a moment ago may be back in the next"
        assert job.resource()["status"]["executionAttempts"] == 2
    finally:
        lab.run("heal", node)
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
