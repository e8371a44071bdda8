"""Decides the next step for a SparkApplication. Pure: the time is passed in.

NEW, SUSPENDED, INVALIDATING ──submit──▶ SUBMITTED ──▶ RUNNING ──▶ COMPLETED | FAILED
                ▲                            ▲                │
the spec changed │              its turn came │                ▼ restart policy
             (any state)                      └────── PENDING_RERUN
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from headrace_operator.kubernetes.spark.seen import (
    FINAL,
    Seen,
    State,
    alive_state,
    annotation,
    is_terminating,
    number,
    parse_time,
    phase,
    run_of,
    termination_message,
    timestamp,
    waiting_message,
)
from headrace_operator.render.spark_submission import (
    EXECUTORS_ANNOTATION,
    FAILURES_ANNOTATION,
    FINGERPRINT_ANNOTATION,
    driver_name,
    fingerprint,
    is_resizable,
    wanted_executors,
)

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

__all__ = ["LOST_SECONDS", "Decision", "Step", "decide", "overdue_executors"]

#: A driver that ran this long did not fail because of its configuration: backoff starts over.
STABLE_SECONDS = 600
BACKOFF_SECONDS_MIN, BACKOFF_SECONDS_MAX = 1, 60
DEFAULT_RETRY_SECONDS = 5
#: How long beyond its grace period a pod on a lost node is awaited. Its node was given up before
#: that (300 s, unless the pod tolerates less); a Deployment's pods are replaced by then.
LOST_SECONDS = 30.0
#: No event tells when a foreign pod is gone.
FOREIGN_POD_SECONDS = 5.0


class Step(Enum):
    """What to do."""

    NOTHING = "nothing"
    SUBMIT = "submit"
    STOP = "stop the driver, which may finish what it does"
    REMOVE = "remove the driver's pod, which ended"
    RESIZE = "tell the driver how many executors are wanted"
    DELETE = "delete the application, whose time to live is over"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The next step, and the new contents of the status."""

    state: State
    step: Step = Step.NOTHING
    message: str = ""
    again_seconds: float | None = None
    #: With Step.SUBMIT: the number of the driver in this run, from 1.
    attempt: int = 0
    #: Short runs that failed in a row; None: unchanged.
    failures: int | None = None
    terminated_at: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def decide(seen: Seen) -> Decision:
    """Compare an application with its driver."""
    driver = seen.driver
    if driver is not None and seen.own_driver is None:
        name = driver_name(seen.application["metadata"]["name"])
        message = f"waits for the pod {name} to go, which belongs to something else"
        return Decision(state=State.NEW, message=message, again_seconds=FOREIGN_POD_SECONDS)
    if driver is not None and is_terminating(driver):
        return _decide_terminating(seen)
    if seen.spec.get("suspend"):
        return _decide_suspended(seen)
    if driver is None:
        return _decide_without_driver(seen)
    if phase(driver) in ("Succeeded", "Failed"):
        return _decide_ended(seen, driver)
    return _decide_alive(seen, driver)


def _decide_terminating(seen: Seen) -> Decision:
    """Handle a pod that is being deleted: the next step is decided when it is gone.

    On a node that does not answer, nothing confirms that: the pod counts as gone after a while.
    """
    decision = _decide_ending(seen)
    if seen.is_node_lost and seen.driver and _late_seconds(seen.driver, seen.now) >= LOST_SECONDS:
        return replace(decision, step=Step.REMOVE, message="the driver's node does not answer")
    # Nodes are not watched.
    return replace(decision, again_seconds=LOST_SECONDS)


def _late_seconds(pod: Mapping[str, Any], now: dt.datetime) -> float:
    """Return how long ago a pod's grace period ended; its deletionTimestamp is that moment."""
    since = parse_time(pod["metadata"].get("deletionTimestamp"))
    return (now - since).total_seconds() if since else 0.0


def overdue_executors(seen: Seen) -> list[Mapping[str, Any]]:
    """Return executors that should be gone for so long that their nodes may be lost.

    Spark counts a pod that still says that it runs, also one that is being deleted, and makes no
    other in its place until it is gone.
    """
    return [pod for pod in seen.executors if _late_seconds(pod, seen.now) >= LOST_SECONDS]


def _decide_ending(seen: Seen) -> Decision:
    if seen.state in FINAL:
        return Decision(state=seen.state, message=seen.message)
    if seen.spec.get("suspend"):
        return Decision(state=State.SUSPENDING)
    state = State.SUBMITTED if seen.state is State.NEW else seen.state
    return Decision(state=state, message=seen.message)


def _decide_alive(seen: Seen, driver: Mapping[str, Any]) -> Decision:
    if annotation(driver, FINGERPRINT_ANNOTATION) != fingerprint(seen.application):
        return Decision(state=State.INVALIDATING, step=Step.STOP, message="the spec changed")
    state = alive_state(driver)
    wanted = str(wanted_executors(seen.application))
    if is_resizable(seen.application) and annotation(driver, EXECUTORS_ANNOTATION) != wanted:
        return Decision(state=state, step=Step.RESIZE)
    return Decision(state=state, message=waiting_message(driver))


def _decide_suspended(seen: Seen) -> Decision:
    driver = seen.driver
    if seen.state in FINAL and not (seen.is_changed or seen.is_refused):
        return _decide_final(seen, seen.state)
    if driver is None:
        return Decision(state=State.SUSPENDED)
    if phase(driver) == "Succeeded" and not _is_rerun(seen, has_failed=False):
        # It had done all its work before it was asked to stop.
        return _decide_ended(seen, driver)
    step = Step.REMOVE if phase(driver) in ("Succeeded", "Failed") else Step.STOP
    return Decision(state=State.SUSPENDING, step=step)


def _decide_without_driver(seen: Seen) -> Decision:
    state = seen.state
    if seen.is_changed or seen.is_refused:
        return _submit_anew()
    if state in FINAL:
        return _decide_final(seen, state)
    if state in (State.SUBMITTED, State.RUNNING):
        return _decide_gone(seen)
    if state is State.FAILED_SUBMISSION:
        return _decide_resubmission(seen)
    if state is State.PENDING_RERUN:
        ended = parse_time(seen.status.get("terminationTime")) or seen.now
        return _decide_rerun(seen, seen.failures, ended, seen.message)
    return _submit_anew()


def _submit_anew() -> Decision:
    """Begin a run: attempts and failures are counted from here."""
    return Decision(state=State.SUBMITTED, step=Step.SUBMIT, attempt=1, failures=0)


def _decide_gone(seen: Seen) -> Decision:
    """Handle a driver that was deleted or whose node is gone: unasked, so it counts as failed."""
    message = "the driver's pod is gone"
    if not _is_rerun(seen, has_failed=True):
        ended = timestamp(seen.now)
        return Decision(state=State.FAILED, message=message, terminated_at=ended)
    started = parse_time(seen.status.get("lastSubmissionAttemptTime")) or seen.now
    is_stable = (seen.now - started).total_seconds() >= STABLE_SECONDS
    return _decide_rerun(seen, 0 if is_stable else seen.failures + 1, seen.now, message)


def _decide_rerun(seen: Seen, failures: int, ended: dt.datetime, message: str) -> Decision:
    """Create the next driver when it is due. Only a failure has a message."""
    wait = _backoff_seconds(seen, failures, has_failed=bool(message))
    wait -= _seconds_since(ended, seen.now)
    if wait > 0:
        return Decision(
            state=State.PENDING_RERUN,
            message=message,
            again_seconds=wait,
            failures=failures,
            terminated_at=timestamp(ended),
        )
    attempt = seen.attempts + 1
    return Decision(state=State.SUBMITTED, step=Step.SUBMIT, attempt=attempt, failures=failures)


def _decide_resubmission(seen: Seen) -> Decision:
    policy = seen.spec.get("restartPolicy") or {}
    kind, attempts = policy.get("type", "Never"), int(seen.status.get("submissionAttempts") or 0)
    if kind == "Never" or (
        kind == "OnFailure" and attempts > int(policy.get("onSubmissionFailureRetries") or 0)
    ):
        ended = timestamp(seen.now)
        return Decision(state=State.FAILED, message=seen.message, terminated_at=ended)
    interval = int(policy.get("onSubmissionFailureRetryInterval") or DEFAULT_RETRY_SECONDS)
    last = parse_time(seen.status.get("lastSubmissionAttemptTime")) or seen.now
    wait = min(interval * attempts, BACKOFF_SECONDS_MAX) - _seconds_since(last, seen.now)
    if wait > 0:
        state = State.FAILED_SUBMISSION
        return Decision(state=state, message=seen.message, again_seconds=wait)
    return Decision(state=State.SUBMITTED, step=Step.SUBMIT, attempt=seen.attempts + 1)


def _decide_ended(seen: Seen, driver: Mapping[str, Any]) -> Decision:
    if annotation(driver, FINGERPRINT_ANNOTATION) != fingerprint(seen.application):
        return Decision(state=State.INVALIDATING, step=Step.REMOVE, message="the spec changed")
    has_failed = phase(driver) == "Failed"
    noticed = parse_time(seen.status.get("terminationTime")) or seen.now
    started, ended = run_of(driver, noticed)
    message = termination_message(driver) if has_failed else ""
    if not _is_rerun(seen, has_failed=has_failed):
        final = State.FAILED if has_failed else State.COMPLETED
        return _decide_final(seen, final, message=message, ended=ended)
    is_stable = (ended - started).total_seconds() >= STABLE_SECONDS or not has_failed
    failures = 0 if is_stable else number(annotation(driver, FAILURES_ANNOTATION)) + 1
    wait = _backoff_seconds(seen, failures, has_failed=has_failed)
    wait -= _seconds_since(ended, seen.now)
    # Until then the pod stays: its logs show the cause.
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
    at = ended or parse_time(seen.status.get("terminationTime")) or seen.now
    lifetime = seen.spec.get("timeToLiveSeconds")
    message = seen.message if message is None else message
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


def _seconds_since(moment: dt.datetime, now: dt.datetime) -> float:
    """Return how long ago that was; never less than 0: its clock may be a node's, or was set."""
    return max(0.0, (now - moment).total_seconds())


def _is_rerun(seen: Seen, *, has_failed: bool) -> bool:
    policy = seen.spec.get("restartPolicy") or {}
    kind = policy.get("type", "Never")
    if kind == "Always":
        return True
    if kind != "OnFailure" or not has_failed:
        return False
    retries = int(policy.get("onFailureRetries") or seen.spec.get("failureRetries") or 0)
    return seen.attempts <= retries


def _backoff_seconds(seen: Seen, failures: int, *, has_failed: bool) -> float:
    """Return how long after its end a driver is restarted: as configured, or doubled each time."""
    policy = seen.spec.get("restartPolicy") or {}
    interval = policy.get("onFailureRetryInterval") or seen.spec.get("retryInterval")
    if not has_failed:
        return 0.0
    if interval is not None:
        return float(interval)
    if failures == 0:
        return 0.0
    return float(min(BACKOFF_SECONDS_MIN * 2 ** min(failures - 1, 10), BACKOFF_SECONDS_MAX))
