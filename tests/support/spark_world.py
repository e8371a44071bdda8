"""SparkApplications as manifests, and a model of what Kubernetes makes of the runner's decisions.

Pods are those that the runner renders; only their phases are the tests' own.
"""

import copy
import datetime as dt
from typing import Any

from headrace_operator.kubernetes.spark.seen import Seen, timestamp
from headrace_operator.kubernetes.spark.states import Decision, Step, decide
from headrace_operator.kubernetes.spark.status import refused, render_status, submitted
from headrace_operator.render.spark import render_submission
from headrace_operator.render.spark_submission import (
    EXECUTORS_ANNOTATION,
    Submission,
    wanted_executors,
)

START = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
OURS = "local:///opt/headrace/headrace_jobs/jobs/cpu_load.py"


def application(**spec: Any) -> dict[str, Any]:
    """Return an application of ours; `spec` is laid over it, field by field."""
    return {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {"name": "job", "namespace": "data", "uid": "uid-1", "generation": 1},
        "spec": {
            "type": "Python",
            "mode": "cluster",
            "sparkVersion": "4.3.0",
            "image": "headrace/jobs:0.1.0",
            "mainApplicationFile": OURS,
            "driver": {"cores": 1, "memory": "512m"},
            "executor": {"cores": 1, "memory": "512m", "instances": 2},
            **spec,
        },
    }


def submission(manifest: dict[str, Any], attempt: int = 1, failures: int = 0) -> Submission:
    """Return an attempt whose id follows from its number."""
    submission_id = f"0000000{attempt}-0000-4000-8000-000000000000"
    return Submission(
        application=manifest, submission_id=submission_id, attempt=attempt, failures=failures
    )


def rendered(manifest: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the one object of a kind that the first attempt needs."""
    [found] = [obj for obj in render_submission(submission(manifest)) if obj["kind"] == kind]
    return found


class World:
    """One application, its driver and executors; `settle` does what is decided until it waits."""

    def __init__(self, **spec: Any) -> None:
        self.application: dict[str, Any] | None = application(**spec)
        self.driver: dict[str, Any] | None = None
        self.executors: list[dict[str, Any]] = []
        self.now = START
        self.states: list[str] = []
        self.made = 0
        self.refusals = 0
        self.again_seconds: float | None = None

    @property
    def status(self) -> dict[str, Any]:
        assert self.application is not None
        return self.application["status"]

    @property
    def state(self) -> str:
        return self.status["applicationState"]["state"]

    @property
    def message(self) -> str:
        return self.status["applicationState"].get("errorMessage", "")

    def settle(self) -> "World":
        """Take steps until nothing is left to do but wait."""
        for _ in range(20):
            if self.application is None or not self._step():
                return self
        raise AssertionError(f"never rests: {self.states}")

    def pass_seconds(self, seconds: float) -> "World":
        self.now += dt.timedelta(seconds=seconds)
        return self.settle()

    def pass_the_wait(self) -> float:
        """Let the time pass that the last decision named; return it."""
        assert self.again_seconds is not None, "nothing is waited for"
        seconds = self.again_seconds
        self.pass_seconds(seconds)
        return seconds

    def edit(self, **spec: Any) -> "World":
        assert self.application is not None
        self.application = copy.deepcopy(self.application)
        self.application["spec"] |= spec
        self.application["metadata"]["generation"] += 1
        return self.settle()

    def runs(self, seconds: float = 0) -> "World":
        assert self.driver is not None
        self.driver["status"] = {"phase": "Running"}
        return self.settle().pass_seconds(seconds)

    def ends(self, exit_code: int, message: str = "") -> "World":
        assert self.driver is not None
        ended = {
            "exitCode": exit_code,
            "reason": "Error" if exit_code else "Completed",
            "message": message,
            "startedAt": self.driver["metadata"]["creationTimestamp"],
            "finishedAt": timestamp(self.now),
        }
        name = self.driver["spec"]["containers"][0]["name"]
        self.driver["status"] = {
            "phase": "Failed" if exit_code else "Succeeded",
            "containerStatuses": [{"name": name, "state": {"terminated": ended}}],
        }
        return self.settle()

    def loses_its_driver(self) -> "World":
        self.driver = None
        return self.settle()

    def seen(self) -> Seen:
        assert self.application is not None
        return Seen(
            application=self.application,
            driver=self.driver,
            executors=self.executors,
            now=self.now,
        )

    def _step(self) -> bool:
        """Decide and act once; whether anything changed."""
        seen = self.seen()
        decision = self._acted(seen, decide(seen))
        self.again_seconds = decision.again_seconds
        if decision.step is Step.DELETE:
            self.application = None
            return False
        status = render_status(seen, decision)
        is_changed = status != seen.status or decision.step is not Step.NOTHING
        if status["applicationState"]["state"] != (self.states or [""])[-1]:
            self.states.append(status["applicationState"]["state"])
        self.application = {**seen.application, "status": status}
        return is_changed

    def _acted(self, seen: Seen, decision: Decision) -> Decision:
        if decision.step is Step.SUBMIT:
            return self._submit(seen, decision)
        if decision.step in (Step.STOP, Step.REMOVE):
            self.driver = None
        if decision.step is Step.RESIZE:
            assert self.driver is not None
            wanted = str(wanted_executors(seen.application))
            self.driver["metadata"]["annotations"][EXECUTORS_ANNOTATION] = wanted
        return decision

    def _submit(self, seen: Seen, decision: Decision) -> Decision:
        if self.refusals:
            self.refusals -= 1
            return refused(seen, decision, "no quota")
        failures = decision.failures if decision.failures is not None else seen.failures
        attempt = submission(dict(seen.application), decision.attempt, failures)
        *_, driver = render_submission(attempt)
        self.made += 1
        driver["metadata"] |= {
            "creationTimestamp": timestamp(self.now),
            "uid": f"driver-{self.made}",
        }
        self.driver = driver
        return submitted(seen, decision, attempt)
