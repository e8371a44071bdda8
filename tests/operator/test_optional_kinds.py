"""The Prometheus operator's kind comes and goes while the operator runs: an API server decides."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.control_plane import own_api_server
from support.kube import ROOT, apply, condition, get, kubectl, resource
from support.kube_process import MONITOR, OperatorProcess, Served, podmonitor_definition
from support.processes import wait_until
from support.spark_world import application

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SECONDS = 40


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("kinds")
    with own_api_server(folder), Served(folder) as found:
        yield found


def define() -> None:
    apply(podmonitor_definition())
    kubectl("wait", "--for=condition=Established", "--timeout=60s", f"crd/{MONITOR}")


def test_a_kind_of_others_may_come_and_go_and_come_again(served: Served) -> None:
    spec = {"pools": [{"name": "a", "replicas": 1, "storage": {"type": "Ephemeral"}}]}

    def change(number: int) -> None:
        """Let a pass look at everything."""
        spec["config"] = {"log.retention.ms": 1000 + number}  # type: ignore[assignment]
        apply(resource("Cluster", served.namespace, "m", **spec))

    def has_passed() -> bool:
        found = served.get("Cluster", "m")
        said = condition(found)
        assert "PodMonitor" not in condition(found, "Stalled").get("message", ""), found["status"]
        return bool(said.get("observedGeneration") == found["metadata"]["generation"])

    name = "m-brokers"

    def uid() -> str:
        found = get(served.namespace, MONITOR, name) if is_defined else {}
        return str(found.get("metadata", {}).get("uid", ""))

    is_defined = False
    change(0)
    wait_until(lambda: get(served.namespace, "statefulset", "m-a"), 60, "the Cluster's set")
    define()
    is_defined = True
    wait_until(uid, SECONDS, "its PodMonitor, once there is the kind")
    for what in ("is deleted", "is deleted once more"):
        first = uid()
        kubectl("-n", served.namespace, "delete", MONITOR, name)
        wait_until(lambda f=first: uid() not in ("", f), SECONDS, f"another when it {what}")  # type: ignore[misc]  # bound to this round
    patch = '{"spec": {"podMetricsEndpoints": []}}'
    kubectl("-n", served.namespace, "patch", MONITOR, name, "--type=merge", "-p", patch)
    wait_until(
        lambda: get(served.namespace, MONITOR, name)["spec"]["podMetricsEndpoints"],
        SECONDS,
        "what was edited",
    )
    kubectl("delete", "crd", MONITOR, "--wait=true")
    for number in range(1, 4):
        change(number)
        wait_until(has_passed, 30, "a pass without the kind")
    wait_until(lambda: "forgets a kind" in served.operator.log(), SECONDS, "the kind to go")
    change(9)
    wait_until(has_passed, 30, "a pass without the kind")
    assert served.operator.process.is_running
    define()
    wait_until(uid, SECONDS, "its PodMonitor, once the kind is back")
    assert served.operator.metric("headrace_operator_leader") == 1


def test_what_somebody_lets_go_with_a_cluster_is_not_the_clusters(served: Served) -> None:
    """Its owner does not control it: that is the garbage collector's business alone."""
    define()
    spec = {"pools": [{"name": "a", "replicas": 1, "storage": {"type": "Ephemeral"}}]}
    spec["monitoring"] = {"enabled": False}  # type: ignore[assignment]  # JSON

    def change(number: int) -> None:
        config = {"log.retention.ms": 1000 + number}
        apply(resource("Cluster", served.namespace, "own", **spec, config=config))

    def has_passed() -> bool:
        found = served.get("Cluster", "own")
        return bool(condition(found).get("observedGeneration") == found["metadata"]["generation"])

    change(0)
    wait_until(lambda: get(served.namespace, "statefulset", "own-a"), 60, "the Cluster's set")
    ours = get(served.namespace, "statefulset", "own-a")["metadata"]
    (owner,) = ours["ownerReferences"]
    monitor = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor", "spec": {}}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"mine": "yes"}}
    theirs = [(monitor, "own-brokers"), (config_map, "own-notes")]
    for obj, name in theirs:
        metadata = {"name": name, "namespace": served.namespace, "labels": ours["labels"]}
        owners = [{**owner, "controller": False}]
        apply({**obj, "metadata": {**metadata, "ownerReferences": owners}})
    for number in range(1, 3):
        change(number)
        wait_until(has_passed, 30, "a pass")
        for obj, name in theirs:
            kind = MONITOR if obj is monitor else "configmap"
            assert get(served.namespace, kind, name), name


SPARK_DEFINITION = ROOT / "operator/headrace_operator/kubernetes/spark/spark_application_crd.yaml"
GROUPS = ("", "apps", "policy", "networking.k8s.io", "headrace.dev", "coordination.k8s.io")
SPARK_GROUPS = ("events.k8s.io", "rbac.authorization.k8s.io", "sparkoperator.k8s.io")


def kubeconfig_without_definitions(folder: Path, namespace: str) -> Path:
    """Return a kubeconfig of an account that may not make kinds, as the base manifests have it."""
    rule = {"apiGroups": [*GROUPS, *SPARK_GROUPS], "resources": ["*"], "verbs": ["*"]}
    rbac = "rbac.authorization.k8s.io"
    name = "without-definitions"
    account = {"name": name, "namespace": namespace}
    documents: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "rules": [rule]},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", **account}],
        },
    ]
    apply(*({"metadata": {"name": name}, **each} for each in documents))
    config = json.loads(kubectl("config", "view", "--raw", "--flatten", "-o", "json"))
    config["users"][0]["user"] = {"token": kubectl("-n", namespace, "create", "token", name)}
    path = folder / "kubeconfig-without-definitions"
    path.write_text(json.dumps(config))
    return path


def test_a_runner_that_came_before_its_kind_runs_what_comes_after(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = served.other_namespace
    served.operator.stop()
    runner = OperatorProcess(tmp_path, [place], {}, "--spark-runner")
    account = str(kubeconfig_without_definitions(tmp_path, place))

    def start() -> None:
        with monkeypatch.context() as patched:
            patched.setenv("KUBECONFIG", account)
            runner.start()

    start()
    try:
        assert "SparkApplications are not run yet" in runner.log()
        kubectl("apply", "--server-side", "-f", str(SPARK_DEFINITION))
        wait_until(lambda: not runner.process.is_running, SECONDS, "it to end")
        assert runner.process.exit_status == 0
        # As its kubelet does.
        start()
        labels = {"headrace.dev/spark-runner": "headrace"}
        metadata = {"name": "late", "namespace": place, "labels": labels}
        apply(application() | {"metadata": metadata})
        wait_until(lambda: get(place, "pod", "late-driver"), SECONDS, "its driver")
    finally:
        runner.stop()
        served.operator.start()
