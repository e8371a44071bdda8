"""An upgrade of CRDs and operator on a real cluster leaves running brokers alone."""

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "KUBECONFIG" not in os.environ, reason="NOT TESTED: no KUBECONFIG, nothing is upgraded"
    ),
]

MANIFESTS = Path(__file__).parents[2] / "manifests"
IMAGE = "headrace/headrace:0.1.0"
CLUSTER = """
apiVersion: headrace.dev/v1beta1
kind: Cluster
metadata: {name: main}
spec:
  pools:
    - name: brokers
      replicas: 1
      storage: {type: Ephemeral}
      resources: {requests: {cpu: 20m, memory: 64Mi}, limits: {memory: 256Mi}}
"""


def kubectl(*arguments: str, stdin: str = "") -> str:
    ran = subprocess.run(
        [shutil.which("kubectl") or "kubectl", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def install(namespace: str) -> None:
    """What docs/gitops.md says of one namespace."""
    kubectl("apply", "--server-side", "--force-conflicts", "-k", str(MANIFESTS / "cluster-setup"))
    kubectl("apply", "--server-side", "-n", namespace, "-k", str(MANIFESTS / "base"))


def brokers(namespace: str) -> list[dict[str, Any]]:
    selector = "headrace.dev/cluster=main"
    return json.loads(kubectl("get", "pods", "-n", namespace, "-l", selector, "-o", "json"))[
        "items"
    ]


def has_image() -> bool:
    nodes = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    return any(
        name.endswith(IMAGE)
        for node in nodes
        for image in node["status"]["images"]
        for name in image["names"] or ()
    )


@pytest.fixture
def namespace() -> Iterator[str]:
    if not has_image():
        pytest.skip(f"NOT TESTED: no node has {IMAGE}; build and load the images first")
    name = f"upgrade-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    try:
        yield name
    finally:
        kubectl("delete", "cluster", "main", "-n", name, "--ignore-not-found", "--timeout=60s")
        kubectl("delete", "namespace", name, "--wait=false")


def test_brokers_run_on_while_crds_and_operator_are_replaced(namespace: str) -> None:
    install(namespace)
    kubectl("rollout", "status", "-n", namespace, "deploy/headrace-operator", "--timeout=90s")
    kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=CLUSTER)

    def is_ready() -> bool:
        return any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for pod in brokers(namespace)
            for condition in pod["status"].get("conditions", ())
        )

    wait_until(is_ready, 120, "a ready broker")
    before = [pod["metadata"]["uid"] for pod in brokers(namespace)]
    operators = kubectl("get", "pods", "-n", namespace, "-o", "name")
    install(namespace)
    kubectl("rollout", "restart", "-n", namespace, "deploy/headrace-operator")
    kubectl("rollout", "status", "-n", namespace, "deploy/headrace-operator", "--timeout=120s")
    assert kubectl("get", "pods", "-n", namespace, "-o", "name") != operators
    kubectl("wait", "-n", namespace, "--for=condition=Ready", "cluster/main", "--timeout=120s")
    after = brokers(namespace)
    assert [pod["metadata"]["uid"] for pod in after] == before
    assert all(
        status["restartCount"] == 0
        for pod in after
        for status in pod["status"]["containerStatuses"]
    )
