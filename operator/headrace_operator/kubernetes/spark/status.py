"""The status of a SparkApplication, in the form of the published API. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace_operator.kubernetes.spark.seen import (
    FINAL,
    MESSAGE_LENGTH_MAX,
    Seen,
    State,
    label,
    phase,
    timestamp,
)
from headrace_operator.render.spark_submission import (
    SUBMISSION_LABEL,
    driver_name,
    fingerprint,
    has_pages,
    pages_port,
    service_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_operator.kubernetes.spark.states import Decision
    from headrace_operator.render.spark_submission import Submission

__all__ = ["refused", "render_status", "submitted"]

_ENDED = FINAL | {State.PENDING_RERUN}
_REMEMBERED = (
    "executionAttempts",
    "lastSubmissionAttemptTime",
    "sparkApplicationId",
    "submissionAttempts",
    "submissionID",
)
_POD_STATES = {
    "Pending": "PENDING",
    "Running": "RUNNING",
    "Succeeded": "COMPLETED",
    "Failed": "FAILED",
}


def render_status(seen: Seen, decision: Decision) -> dict[str, Any]:
    """Return the whole status.

    `executors`, `failures`, `fingerprint` and `observedGeneration` are Headrace's own. A foreign
    CRD drops them: then backoff starts over, and only the driver's pod shows a changed spec.
    """
    name = seen.application["metadata"]["name"]
    old, driver = seen.status, seen.own_driver
    state: dict[str, Any] = {"state": decision.state.value}
    if decision.message:
        state["errorMessage"] = decision.message[:MESSAGE_LENGTH_MAX]
    executors = {
        pod["metadata"]["name"]: _POD_STATES.get(phase(pod), "UNKNOWN")
        for pod in seen.own_executors
    }
    status: dict[str, Any] = {
        "applicationState": state,
        "driverInfo": {"podName": driver_name(name), **_pages(seen.application)},
        "executors": sum(1 for state in executors.values() if state == "RUNNING"),
        "observedGeneration": seen.generation,
        "fingerprint": fingerprint(seen.application),
    }
    if executors:
        status["executorState"] = executors
    status |= {key: old[key] for key in _REMEMBERED if key in old}
    if driver is not None:
        status["executionAttempts"] = seen.attempts
        status["submissionID"] = label(driver, SUBMISSION_LABEL)
        status["sparkApplicationId"] = label(driver, "spark-app-selector")
        status["lastSubmissionAttemptTime"] = driver["metadata"]["creationTimestamp"]
    failures = seen.failures if decision.failures is None else decision.failures
    if failures:
        status["failures"] = failures
    if decision.terminated_at:
        status["terminationTime"] = decision.terminated_at
    elif decision.state in _ENDED and "terminationTime" in old:
        status["terminationTime"] = old["terminationTime"]
    return status | decision.extra


def _pages(application: Mapping[str, Any]) -> dict[str, Any]:
    """Return where Spark's own pages are: nowhere, if the spec turns them off."""
    if not has_pages(application):
        return {}
    metadata = application["metadata"]
    service, port = service_name(metadata["name"]), pages_port(application)
    return {
        "webUIServiceName": service,
        "webUIPort": port,
        "webUIAddress": f"{service}.{metadata['namespace']}.svc:{port}",
    }


def submitted(seen: Seen, decision: Decision, submission: Submission) -> Decision:
    """Return the decision to submit, with the data of the driver's new pod."""
    facts = {
        "executionAttempts": submission.attempt,
        "submissionID": submission.submission_id,
        "sparkApplicationId": submission.spark_application_id,
    }
    return replace(decision, extra=_attempt_facts(seen) | facts)


def refused(seen: Seen, decision: Decision, message: str) -> Decision:
    """Return the decision after the API refused the driver's pod."""
    facts = _attempt_facts(seen) | {"executionAttempts": decision.attempt - 1}
    state = State.FAILED_SUBMISSION
    return replace(decision, state=state, message=message, again_seconds=1.0, extra=facts)


def _attempt_facts(seen: Seen) -> dict[str, Any]:
    """Count attempts to submit one driver; they start over after a success."""
    is_again = seen.state is State.FAILED_SUBMISSION
    before = int(seen.status.get("submissionAttempts") or 0) if is_again else 0
    return {
        "submissionAttempts": before + 1,
        "lastSubmissionAttemptTime": timestamp(seen.now),
    }
