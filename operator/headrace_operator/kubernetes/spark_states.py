"""What to do next with a SparkApplication, and what its status says. Pure: time comes in.

The states are those of the published API. What must outlive the operator is
in the driver's pod (fingerprint, attempt, failures) and in the status.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any

from headrace_operator.render.spark_submission import (
    ATTEMPT_ANNOTATION,
    EXECUTORS_ANNOTATION,
    FAILURES_ANNOTATION,
    FINGERPRINT_ANNOTATION,
    SUBMISSION_LABEL,
    UI_PORT,
    driver_name,
    fingerprint,
    is_ours,
    service_name,
    wanted_executors,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Decision", "Seen", "State", "Step", "decide", "render_status", "timestamp"]

#: A driver that ran this long did not fail for what it was started with: backoff begins anew.
STABLE_SECONDS = 600
BACKOFF_SECONDS_MIN, BACKOFF_SECONDS_MAX = 1, 60
DEFAULT_RETRY_SECONDS = 5
MESSAGE_LENGTH_MAX = 1000


class State(StrEnum):
    """`status.applicationState.state`."""

    NEW = ""
    SUBMITTED = "SUBMITTED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    FAILED_SUBMISSION = "SUBMISSION_FAILED"
    PENDING_RERUN = "PENDING_RERUN"
    INVALIDATING = "INVALIDATING"
    SUSPENDING = "SUSPENDING"
    SUSPENDED = "SUSPENDED"


class Step(Enum):
    """What is to be done."""

    NOTHING = "nothing"
    SUBMIT = "submit"
    STOP = "stop the driver, which may finish what it does"
    REMOVE = "remove the driver's pod, which ended"
    RESIZE = "tell the driver how many executors are wanted"
    DELETE = "delete the application, whose time to live is over"


_STATES_WITH_A_DRIVER = frozenset({State.SUBMITTED, State.RUNNING})
_FINAL = frozenset({State.COMPLETED, State.FAILED})


@dataclass(frozen=True, kw_only=True)
class Seen:
    """An application and its pods as they are. Timestamps in UTC."""

    application: Mapping[str, Any]
    driver: Mapping[str, Any] | None
    executors: Sequence[Mapping[str, Any]] = ()
    now: dt.datetime

    @property
    def status(self) -> Mapping[str, Any]:
        """The status as it was written last."""
        return self.application.get("status") or {}

    @property
    def state(self) -> State:
        """The state as it was written last; what nobody knows is new."""
        text = (self.status.get("applicationState") or {}).get("state", "")
        try:
            return State(text)
        except ValueError:
            return State.NEW


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The next step and what the status says from now on."""

    state: State
    step: Step = Step.NOTHING
    message: str = ""
    again_seconds: float | None = None
    #: Of the attempt to submit, with Step.SUBMIT: short runs that failed one after the other.
    failures: int = 0
    terminated_at: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def decide(seen: Seen) -> Decision:
    """Compare an application with its driver."""
    if seen.driver is not None and not _is_of(seen.driver, seen.application):
        # Of an application of the same name that was deleted: its pod goes with it.
        return Decision(state=State.NEW, message="an older driver is still stopping")
    if seen.application["spec"].get("suspend"):
        return _decide_suspended(seen)
    if seen.driver is None:
        return _decide_without_driver(seen)
    if _phase(seen.driver) in ("Succeeded", "Failed"):
        return _decide_ended(seen, seen.driver)
    return _decide_alive(seen, seen.driver)


def _decide_alive(seen: Seen, driver: Mapping[str, Any]) -> Decision:
    if _is_terminating(driver):
        state = seen.state if seen.state is not State.NEW else State.SUBMITTED
        return Decision(state=state, message=_message(seen))
    if _annotation(driver, FINGERPRINT_ANNOTATION) != fingerprint(seen.application):
        return Decision(state=State.INVALIDATING, step=Step.STOP, message="the spec changed")
    state = State.RUNNING if _phase(driver) == "Running" else State.SUBMITTED
    wanted = str(wanted_executors(seen.application))
    if is_ours(seen.application) and _annotation(driver, EXECUTORS_ANNOTATION) != wanted:
        return Decision(state=state, step=Step.RESIZE)
    return Decision(state=state, message=_waiting_message(driver))


def _decide_suspended(seen: Seen) -> Decision:
    if seen.state in _FINAL:
        return _decide_final(seen, seen.state)
    if seen.driver is None:
        return Decision(state=State.SUSPENDED)
    if _is_terminating(seen.driver):
        return Decision(state=State.SUSPENDING)
    ended = _phase(seen.driver) in ("Succeeded", "Failed")
    return Decision(state=State.SUSPENDING, step=Step.REMOVE if ended else Step.STOP)


def _decide_without_driver(seen: Seen) -> Decision:
    state = seen.state
    if state in _FINAL:
        if seen.status.get("observedGeneration") in (None, _generation(seen)):
            return _decide_final(seen, state)
        return Decision(state=State.SUBMITTED, step=Step.SUBMIT)
    if state in _STATES_WITH_A_DRIVER:
        # Somebody deleted it, or its node is gone. It was not asked to stop, so it failed.
        message = "the driver's pod is gone"
        if not _is_rerun(seen, has_failed=True):
            return Decision(state=State.FAILED, message=message, terminated_at=timestamp(seen.now))
        return Decision(state=State.SUBMITTED, step=Step.SUBMIT, message=message)
    if state is State.FAILED_SUBMISSION:
        return _decide_resubmission(seen)
    failures = int(seen.status.get("failures") or 0)
    return Decision(state=State.SUBMITTED, step=Step.SUBMIT, failures=failures)


def _decide_resubmission(seen: Seen) -> Decision:
    policy = seen.application["spec"].get("restartPolicy") or {}
    kind, attempts = policy.get("type", "Never"), int(seen.status.get("submissionAttempts") or 0)
    message = _message(seen)
    is_changed = seen.status.get("observedGeneration") not in (None, _generation(seen))
    if is_changed:
        return Decision(state=State.SUBMITTED, step=Step.SUBMIT)
    if kind == "Never" or (
        kind == "OnFailure" and attempts > int(policy.get("onSubmissionFailureRetries") or 0)
    ):
        ended = timestamp(seen.now)
        return Decision(state=State.FAILED, message=message, terminated_at=ended)
    interval = int(policy.get("onSubmissionFailureRetryInterval") or DEFAULT_RETRY_SECONDS)
    last = _parse(seen.status.get("lastSubmissionAttemptTime")) or seen.now
    wait = min(interval * attempts, BACKOFF_SECONDS_MAX) - (seen.now - last).total_seconds()
    if wait > 0:
        return Decision(state=State.FAILED_SUBMISSION, message=message, again_seconds=wait)
    return Decision(state=State.SUBMITTED, step=Step.SUBMIT)


def _decide_ended(seen: Seen, driver: Mapping[str, Any]) -> Decision:
    if _annotation(driver, FINGERPRINT_ANNOTATION) != fingerprint(seen.application):
        return Decision(state=State.INVALIDATING, step=Step.REMOVE, message="the spec changed")
    has_failed = _phase(driver) == "Failed"
    started, ended = _run_of(driver, seen.now)
    message = _termination_message(driver) if has_failed else ""
    if not _is_rerun(seen, has_failed=has_failed):
        final = State.FAILED if has_failed else State.COMPLETED
        return _decide_final(seen, final, message=message, ended=ended)
    is_stable = (ended - started).total_seconds() >= STABLE_SECONDS or not has_failed
    failures = 0 if is_stable else int(_annotation(driver, FAILURES_ANNOTATION) or 0) + 1
    wait = _backoff_seconds(seen, failures) - (seen.now - ended).total_seconds()
    # Until it is time the pod stays: its logs say why.
    return Decision(
        state=State.PENDING_RERUN,
        step=Step.NOTHING if wait > 0 else Step.REMOVE,
        message=message,
        again_seconds=wait if wait > 0 else None,
        failures=failures,
        terminated_at=timestamp(ended),
    )


def _decide_final(
    seen: Seen, state: State, *, message: str | None = None, ended: dt.datetime | None = None
) -> Decision:
    at = ended or _parse(seen.status.get("terminationTime")) or seen.now
    lifetime = seen.application["spec"].get("timeToLiveSeconds")
    message = _message(seen) if message is None else message
    if lifetime is None:
        return Decision(state=state, message=message, terminated_at=timestamp(at))
    left = int(lifetime) - (seen.now - at).total_seconds()
    return Decision(
        state=state,
        step=Step.NOTHING if left > 0 else Step.DELETE,
        message=message,
        again_seconds=left if left > 0 else None,
        terminated_at=timestamp(at),
    )


def _is_rerun(seen: Seen, *, has_failed: bool) -> bool:
    spec = seen.application["spec"]
    policy = spec.get("restartPolicy") or {}
    kind = policy.get("type", "Never")
    if kind == "Always":
        return True
    if kind != "OnFailure" or not has_failed:
        return False
    retries = int(policy.get("onFailureRetries") or spec.get("failureRetries") or 0)
    return _attempts(seen) <= retries


def _backoff_seconds(seen: Seen, failures: int) -> float:
    """Return how long after its end a driver is started again: given, or doubled each time."""
    spec = seen.application["spec"]
    policy = spec.get("restartPolicy") or {}
    interval = policy.get("onFailureRetryInterval") or spec.get("retryInterval")
    if failures == 0:
        return 0.0
    if interval is not None:
        return float(interval)
    return float(min(BACKOFF_SECONDS_MIN * 2 ** min(failures - 1, 10), BACKOFF_SECONDS_MAX))


def render_status(seen: Seen, decision: Decision) -> dict[str, Any]:
    """Return the whole status, as users of the published API know it.

    `executors`, `failures` and `observedGeneration` are ours; another's CRD drops them, and nothing
    that matters is lost with them.
    """
    name = seen.application["metadata"]["name"]
    old, driver = seen.status, seen.driver
    state: dict[str, Any] = {"state": decision.state.value}
    if decision.message:
        state["errorMessage"] = decision.message[:MESSAGE_LENGTH_MAX]
    executors = {each["metadata"]["name"]: _pod_state(each) for each in seen.executors}
    status: dict[str, Any] = {
        "applicationState": state,
        "driverInfo": {
            "podName": driver_name(name),
            "webUIServiceName": service_name(name),
            "webUIPort": UI_PORT,
        },
        "executors": sum(1 for state in executors.values() if state == "RUNNING"),
        "observedGeneration": _generation(seen),
    }
    if executors:
        status["executorState"] = executors
    for key in (
        "executionAttempts",
        "lastSubmissionAttemptTime",
        "sparkApplicationId",
        "submissionAttempts",
        "submissionID",
    ):
        if key in old:
            status[key] = old[key]
    if driver is not None and _is_of(driver, seen.application):
        labels = driver["metadata"]["labels"]
        status["executionAttempts"] = _attempts(seen)
        status["submissionID"] = labels.get(SUBMISSION_LABEL, "")
        status["sparkApplicationId"] = labels.get("spark-app-selector", "")
        status["lastSubmissionAttemptTime"] = driver["metadata"]["creationTimestamp"]
    if decision.failures:
        status["failures"] = decision.failures
    if decision.terminated_at:
        status["terminationTime"] = decision.terminated_at
    return status | decision.extra


def timestamp(moment: dt.datetime) -> str:
    """Write a moment as Kubernetes does."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _parse(text: str | None) -> dt.datetime | None:
    return dt.datetime.fromisoformat(text) if text else None


def _generation(seen: Seen) -> int:
    return int(seen.application["metadata"].get("generation") or 0)


def _attempts(seen: Seen) -> int:
    of_pod = _annotation(seen.driver, ATTEMPT_ANNOTATION) if seen.driver else ""
    return int(of_pod or seen.status.get("executionAttempts") or 0)


def _message(seen: Seen) -> str:
    return str((seen.status.get("applicationState") or {}).get("errorMessage", ""))


def _is_of(pod: Mapping[str, Any], application: Mapping[str, Any]) -> bool:
    owners = pod["metadata"].get("ownerReferences") or []
    return any(owner.get("uid") == application["metadata"]["uid"] for owner in owners)


def _is_terminating(pod: Mapping[str, Any]) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _phase(pod: Mapping[str, Any]) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def _pod_state(pod: Mapping[str, Any]) -> str:
    known = {"Pending": "PENDING", "Running": "RUNNING", "Succeeded": "COMPLETED"}
    return (known | {"Failed": "FAILED"}).get(_phase(pod), "UNKNOWN")


def _annotation(pod: Mapping[str, Any], name: str) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(name, ""))


def _main_container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status of Spark's container, which is the pod's first."""
    first = (pod["spec"].get("containers") or [{}])[0].get("name")
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((each for each in statuses if each.get("name") == first), {})


def _run_of(pod: Mapping[str, Any], now: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
    """Return when a pod's main container began and ended."""
    ended = (_main_container(pod).get("state") or {}).get("terminated") or {}
    created = _parse(pod["metadata"].get("creationTimestamp")) or now
    return _parse(ended.get("startedAt")) or created, _parse(ended.get("finishedAt")) or created


def _termination_message(pod: Mapping[str, Any]) -> str:
    ended = (_main_container(pod).get("state") or {}).get("terminated") or {}
    status = pod.get("status") or {}
    words = str(ended.get("message") or status.get("message") or "").strip()
    reason = ended.get("reason") or status.get("reason") or "Error"
    code = f", exit status {ended['exitCode']}" if "exitCode" in ended else ""
    return f"driver failed ({reason}{code}): {words[-MESSAGE_LENGTH_MAX // 2 :]}".rstrip(": ")


def _waiting_message(pod: Mapping[str, Any]) -> str:
    """Say why a pod does not start (its image, a volume, no node): status has no better place."""
    waiting = (_main_container(pod).get("state") or {}).get("waiting") or {}
    if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        return f"driver waits ({waiting['reason']}): {waiting.get('message', '')}".rstrip(": ")
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"driver waits ({condition.get('reason')}): {condition.get('message', '')}"
    return ""
