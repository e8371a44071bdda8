"""A SparkApplication and its pods: what is read from them. Pure, and decides nothing.

State that must outlive the operator is on the driver's pod (fingerprint, attempt, failures) and in
the status, which is read here and written by `spark/status.py`.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from headrace_operator.kubernetes.api.client import STATUS_MANAGER
from headrace_operator.render.spark_submission import (
    ATTEMPT_ANNOTATION,
    FAILURES_ANNOTATION,
    SUBMISSION_LABEL,
    fingerprint,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "FINAL",
    "MESSAGE_LENGTH_MAX",
    "Seen",
    "State",
    "alive_state",
    "annotation",
    "is_of",
    "is_terminating",
    "label",
    "number",
    "other_writers",
    "parse_time",
    "phase",
    "run_of",
    "termination_message",
    "timestamp",
    "waiting_message",
]

MESSAGE_LENGTH_MAX = 1000
#: Users who edit statuses by hand are not controllers.
_BY_HAND = "kubectl"


class State(StrEnum):
    """`status.applicationState.state`, with the values of the published API."""

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


FINAL = frozenset({State.COMPLETED, State.FAILED})


@dataclass(frozen=True, kw_only=True)
class Seen:
    """An application and its pods. Timestamps in UTC."""

    application: Mapping[str, Any]
    driver: Mapping[str, Any] | None
    executors: Sequence[Mapping[str, Any]] = ()
    now: dt.datetime
    #: Whether the driver's node is gone or does not answer: then its end is never confirmed.
    is_node_lost: bool = False

    @property
    def spec(self) -> Mapping[str, Any]:
        """The application's spec."""
        spec: Mapping[str, Any] = self.application["spec"]
        return spec

    @property
    def status(self) -> Mapping[str, Any]:
        """The last written status."""
        return self.application.get("status") or {}

    @property
    def state(self) -> State:
        """The last written state; an unknown one counts as new."""
        text = (self.status.get("applicationState") or {}).get("state", "")
        try:
            return State(text)
        except ValueError:
            return State.NEW

    @property
    def message(self) -> str:
        """The last written error message."""
        return str((self.status.get("applicationState") or {}).get("errorMessage", ""))

    @property
    def generation(self) -> int:
        """The spec's generation."""
        return int(self.application["metadata"].get("generation") or 0)

    @property
    def is_changed(self) -> bool:
        """Whether the spec differs from the status's, in fields that require a new driver.

        A published CRD keeps no fingerprint in the status: then only the driver's pod shows it.
        """
        return self.status.get("fingerprint") not in (None, fingerprint(self.application))

    @property
    def is_refused(self) -> bool:
        """Whether its spec was refused before a driver was made: it never ended.

        Its correction may be in a field that needs no new driver, and a published CRD keeps no
        fingerprint.
        """
        return self.state is State.FAILED and not self.status.get("terminationTime")

    @property
    def own_driver(self) -> Mapping[str, Any] | None:
        """The driver, unless it belongs to another object."""
        return self.driver if self.driver and is_of(self.driver, self.application) else None

    @property
    def attempts(self) -> int:
        """How many drivers this run of the application has had."""
        of_pod = annotation(self.own_driver, ATTEMPT_ANNOTATION)
        return number(of_pod, int(self.status.get("executionAttempts") or 0))

    @property
    def failures(self) -> int:
        """How many short runs had failed in a row when this driver was created."""
        of_pod = annotation(self.own_driver, FAILURES_ANNOTATION)
        return number(of_pod, int(self.status.get("failures") or 0))

    @property
    def own_executors(self) -> list[Mapping[str, Any]]:
        """The executors of this submission: those of an earlier driver may still be terminating."""
        submission = label(self.own_driver, SUBMISSION_LABEL) or self.status.get("submissionID")
        return [
            pod
            for pod in self.executors
            if label(pod, SUBMISSION_LABEL) == submission and not is_terminating(pod)
        ]


def other_writers(application: Mapping[str, Any]) -> list[str]:
    """Return the controllers, other than Headrace's, that wrote this application's status."""
    managers = {
        str(entry.get("manager"))
        for entry in application["metadata"].get("managedFields") or []
        if entry.get("subresource") == "status"
    }
    return sorted(m for m in managers - {STATUS_MANAGER} if not m.startswith(_BY_HAND))


def timestamp(moment: dt.datetime) -> str:
    """Write a moment as Kubernetes does."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str | None) -> dt.datetime | None:
    """Read a moment as Kubernetes writes it."""
    return dt.datetime.fromisoformat(text) if text else None


def is_of(pod: Mapping[str, Any], application: Mapping[str, Any]) -> bool:
    """Whether this very application owns the pod, and not an earlier one with the same name."""
    owners = pod["metadata"].get("ownerReferences") or []
    return any(owner.get("uid") == application["metadata"]["uid"] for owner in owners)


def is_terminating(pod: Mapping[str, Any]) -> bool:
    """Whether the pod is terminating."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def phase(pod: Mapping[str, Any]) -> str:
    """Return Pending, Running, Succeeded, Failed or Unknown."""
    return str((pod.get("status") or {}).get("phase", "Pending"))


def alive_state(driver: Mapping[str, Any]) -> State:
    """Return the state of an application whose driver has not ended."""
    return State.RUNNING if phase(driver) == "Running" else State.SUBMITTED


def annotation(pod: Mapping[str, Any] | None, name: str) -> str:
    """Return an annotation, or ''."""
    return str(((pod or {}).get("metadata", {}).get("annotations") or {}).get(name, ""))


def number(text: str, default: int = 0) -> int:
    """Read a number that anybody who may edit a pod may have overwritten."""
    return int(text) if text.isdecimal() else default


def label(pod: Mapping[str, Any] | None, name: str) -> str:
    """Return a label, or ''."""
    return str(((pod or {}).get("metadata", {}).get("labels") or {}).get(name, ""))


def run_of(pod: Mapping[str, Any], otherwise: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
    """Return when a pod's main container started and ended.

    `otherwise` is the end if none is known: an evicted pod has no container state.
    """
    ended = (_main_container(pod).get("state") or {}).get("terminated") or {}
    created = parse_time(pod["metadata"].get("creationTimestamp")) or otherwise
    finished = parse_time(ended.get("finishedAt")) or otherwise
    return parse_time(ended.get("startedAt")) or created, finished


def termination_message(pod: Mapping[str, Any]) -> str:
    """Return why a driver failed: its exit status and its last output."""
    ended = (_main_container(pod).get("state") or {}).get("terminated") or {}
    status = pod.get("status") or {}
    words = str(ended.get("message") or status.get("message") or "").strip()
    reason = ended.get("reason") or status.get("reason") or "Error"
    code = f", exit status {ended['exitCode']}" if "exitCode" in ended else ""
    return f"driver failed ({reason}{code}): {words[-MESSAGE_LENGTH_MAX // 2 :]}".rstrip(": ")


def waiting_message(pod: Mapping[str, Any]) -> str:
    """Return why a pod does not start (its image, a volume, no node), for the status."""
    waiting = (_main_container(pod).get("state") or {}).get("waiting") or {}
    if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        return f"driver waits ({waiting['reason']}): {waiting.get('message', '')}".rstrip(": ")
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"driver waits ({condition.get('reason')}): {condition.get('message', '')}"
    return ""


def _main_container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status of Spark's container, which is the pod's first."""
    first = (pod["spec"].get("containers") or [{}])[0].get("name")
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((each for each in statuses if each.get("name") == first), {})
