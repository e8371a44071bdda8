"""Why a broker's pod does not run, in the words of what keeps it from running."""

from typing import Any

import pytest

from headrace_operator.kubernetes.brokers.observed import failure_of


def waits(reason: str, message: str = "", /, **ended: Any) -> dict[str, Any]:
    last = {"lastState": {"terminated": ended}} if ended else {}
    state = {"waiting": {"reason": reason, "message": message}}
    return {"status": {"containerStatuses": [{"state": state, **last}]}}


def beside(name: str, *, is_initial: bool = False) -> dict[str, Any]:
    """Return a pod in which another container than the broker's fails."""
    pod = waits("CrashLoopBackOff", "back-off 10s", exitCode=3, message="no")
    (failing,) = pod["status"]["containerStatuses"]
    failing["name"] = name
    healthy = {"name": "broker", "state": {"waiting": {"reason": "PodInitializing"}}}
    if is_initial:
        return {"status": {"initContainerStatuses": [failing], "containerStatuses": [healthy]}}
    return {"status": {"containerStatuses": [healthy, failing]}}


def unplaced(message: str) -> dict[str, Any]:
    placed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {"status": {"conditions": [{**placed, "message": message}]}}


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (
            waits("ErrImageNeverPull", "image is not present"),
            "ErrImageNeverPull: image is not present",
        ),
        (waits("ImagePullBackOff", 'pulling image "x"'), 'ImagePullBackOff: pulling image "x"'),
        (
            waits(
                "CrashLoopBackOff", "back-off 10s", exitCode=1, message="Traceback\n  nonsense: 1\n"
            ),
            "CrashLoopBackOff, exit code 1: nonsense: 1",
        ),
        # Too little memory: the kernel ends it, and it says nothing itself.
        (
            waits("CrashLoopBackOff", "back-off 10s", exitCode=137, reason="OOMKilled"),
            "CrashLoopBackOff, exit code 137, OOMKilled: back-off 10s",
        ),
        (
            waits("CrashLoopBackOff", "back-off 10s", exitCode=1, reason="Error", message="no"),
            "CrashLoopBackOff, exit code 1: no",
        ),
        (
            unplaced('0/3 nodes are available: storageclass.storage.k8s.io "fast" not found'),
            'Unschedulable: 0/3 nodes are available: storageclass.storage.k8s.io "fast" not found',
        ),
        (beside("wait", is_initial=True), "init container wait: CrashLoopBackOff, exit code 3: no"),
        (beside("mesh"), "container mesh: CrashLoopBackOff, exit code 3: no"),
        (waits("ContainerCreating"), ""),
        ({"status": {}}, ""),
        (None, ""),
    ],
)
def test_a_pod_says_why_it_does_not_run(pod: dict[str, Any] | None, words: str) -> None:
    assert failure_of(pod) == words
