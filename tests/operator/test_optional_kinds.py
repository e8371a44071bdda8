"""The Prometheus operator's kind comes and goes while the operator runs: an API server decides."""

from collections.abc import Iterator

import pytest

from support.control_plane import own_api_server
from support.kube import apply, condition, get, kubectl, resource
from support.kube_process import MONITOR, Served, podmonitor_definition
from support.processes import wait_until

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
