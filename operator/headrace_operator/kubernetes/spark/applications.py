"""Runs SparkApplications without a Spark operator: `headrace operator run --spark-runner`.

Owns the drivers' pods. `spark/states.py` decides the next step, and `render.spark` builds the
objects; this module carries the step out, and writes the status if it differs. There is no
finalizer: the application owns everything, so it can be deleted with or without this operator.

Two controllers must never run the same application, so:
- if the CRD is Headrace's (created because there was none) and no Kubeflow operator is deployed,
  every application belongs to Headrace;
- otherwise only applications with the label `headrace.dev/spark-runner: headrace` do;
- in both cases an application belongs to another controller if that one has written its status.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
import uuid
from dataclasses import replace
from http import HTTPStatus
from importlib import resources
from typing import TYPE_CHECKING, Any

import structlog
import yaml

from headrace_operator.kubernetes.api.cache import trim
from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.kubernetes.owners import ForeignObjectError
from headrace_operator.kubernetes.seams import ApplicationOutcome
from headrace_operator.kubernetes.spark.around import Surroundings, access_of, keep_objects
from headrace_operator.kubernetes.spark.seen import (
    MESSAGE_LENGTH_MAX,
    Seen,
    State,
    alive_state,
    is_terminating,
    label,
    other_writers,
    phase,
)
from headrace_operator.kubernetes.spark.states import (
    LOST_SECONDS,
    Decision,
    Step,
    decide,
    overdue_executors,
)
from headrace_operator.kubernetes.spark.status import refused, render_status, submitted
from headrace_operator.render.names import MANAGED_BY
from headrace_operator.render.spark import render_access, render_submission
from headrace_operator.render.spark_fields import ignored_fields
from headrace_operator.render.spark_submission import (
    APPLICATION_LABEL,
    EXECUTORS_ANNOTATION,
    ROLE_LABEL,
    SUBMISSION_LABEL,
    Submission,
    driver_name,
    refusal_of,
    wanted_executors,
)
from headrace_operator.resources import SPARK_API_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace_operator.kubernetes.api.cache import Store
    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.transport import Object

__all__ = ["RUNNER_LABEL", "SparkRunner", "install_definition"]

RUNNER_LABEL = "headrace.dev/spark-runner"
DEFINITION = "sparkapplications.sparkoperator.k8s.io"
_DEFINITIONS_API = "apiextensions.k8s.io/v1"
#: How long the result of the search for another operator is valid.
_OTHERS_SECONDS = 60.0
#: The label of Deployments from the Kubeflow operator's chart, in all its versions.
_KUBEFLOW_SELECTOR = "app.kubernetes.io/name=spark-operator"
NAME_MAX = 56
#: When to try again what the API server could not do.
PASSING_SECONDS = 5.0
#: The API server serves a new kind after some tenths of a second.
_SERVED_ATTEMPTS = 100

_log = structlog.get_logger("headrace.operator.spark")


async def install_definition(client: KubernetesClient) -> bool:
    """Create a small CRD of SparkApplications if there is none. Never changes an existing one.

    Returns whether there is one now.
    """
    if await client.serves(SPARK_API_VERSION, "SparkApplication"):
        return True
    text = resources.files(__package__).joinpath("spark_application_crd.yaml").read_text("utf-8")
    try:
        await client.create(yaml.safe_load(text))
    except KubernetesError as error:
        if not error.is_conflict:
            _log.warning(
                "SparkApplications are not run yet: their CRD is missing and cannot be made here",
                error=str(error),
            )
            return False
    _log.info("made the SparkApplication CRD: there was none", crd=DEFINITION)
    for _ in range(_SERVED_ATTEMPTS):
        if await client.serves(SPARK_API_VERSION, "SparkApplication"):
            return True
        await asyncio.sleep(0.1)
    return False


class SparkRunner:
    """An `ApplicationRunner` (see `seams`)."""

    def __init__(
        self,
        client: KubernetesClient,
        store: Store,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        """Keep no state that a restart would lose."""
        self._client = client
        self._store = store
        self._surroundings = Surroundings(client, store)
        self._now = now
        self._other = "not known yet"
        self._other_asked_at = -_OTHERS_SECONDS
        # The status that was sent, and what the server kept of it: a foreign CRD drops fields.
        self._kept: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}

    async def reconcile(
        self, namespace: str, name: str, application: Object | None
    ) -> ApplicationOutcome:
        """Reconcile one application, one step at a time: events bring the next."""
        if application is None or application["metadata"].get("deletionTimestamp"):
            self._kept.pop(f"{namespace}/{name}", None)
            return ApplicationOutcome()
        if self._is_run_by_another(application) or not await self.is_for_us(application):
            return ApplicationOutcome()
        if len(name) > NAME_MAX:
            message = f"the name is longer than {NAME_MAX} characters"
            return await self._refuse(self._seen(application, None), message)
        seen = self._seen(application, self._store.get("Pod", namespace, driver_name(name)))
        if reason := refusal_of(application) or _why_unreadable(seen):
            return await self._refuse(seen, reason)
        if seen.driver is not None and is_terminating(seen.driver):
            seen = replace(seen, is_node_lost=await self._is_lost(seen.driver))
        decision = decide(seen)
        if seen.driver is None and decision.state is not seen.state:
            # The store may be behind: if it has no driver, ask the API server.
            fresh = await self._seen_now(namespace, name)
            if fresh is None or self._is_run_by_another(fresh.application):
                return ApplicationOutcome()
            seen, decision = fresh, decide(fresh)
        decision = await self._take(seen, decision)
        again = await self._remove_lost_executors(seen, decision.again_seconds)
        status = await self._write_status(seen, decision)
        return ApplicationOutcome(look_again_seconds=again, status=status)

    # Observation

    def _seen(self, application: Mapping[str, Any], driver: Mapping[str, Any] | None) -> Seen:
        metadata = application["metadata"]
        executors = self._store.list(
            "Pod",
            metadata["namespace"],
            {APPLICATION_LABEL: metadata["name"], ROLE_LABEL: "executor"},
        )
        return Seen(application=application, driver=driver, executors=executors, now=self._now())

    async def _is_lost(self, pod: Mapping[str, Any]) -> bool:
        """Whether a pod's node is gone or does not answer; False if nodes cannot be read."""
        name = pod["spec"].get("nodeName")
        if not name:
            return False
        try:
            node = await self._client.get("v1", "Node", None, name)
        except KubernetesError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            return False
        conditions = (node or {}).get("status", {}).get("conditions") or []
        return not any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    async def _seen_now(self, namespace: str, name: str) -> Seen | None:
        application = await self._client.get(SPARK_API_VERSION, "SparkApplication", namespace, name)
        if application is None or application["metadata"].get("deletionTimestamp"):
            return None
        driver = await self._client.get("v1", "Pod", namespace, driver_name(name))
        return self._seen(application, driver)

    async def is_for_us(self, application: Object) -> bool:
        """Whether to run an application that no other controller runs so far."""
        if time.monotonic() - self._other_asked_at >= _OTHERS_SECONDS:
            other = await self._find_other()
            self._other_asked_at = time.monotonic()
            if other != self._other:
                message = f"SparkApplications are {f'left to {other}' if other else 'run here'}"
                _log.info(message, chosen_by_label=f"{RUNNER_LABEL}=headrace")
            self._other = other
        chosen = (application["metadata"].get("labels") or {}).get(RUNNER_LABEL)
        return chosen == "headrace" or (chosen is None and not self._other)

    async def _find_other(self) -> str:
        """Return another controller that runs SparkApplications, or ''."""
        kind = "CustomResourceDefinition"
        try:
            found = await self._client.get(_DEFINITIONS_API, kind, None, DEFINITION) or {}
        except KubernetesError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            # Confined to namespaces: the owner of the CRD cannot be read.
            return "whoever installed their CRD, which this operator may not look at"
        labels = found.get("metadata", {}).get("labels") or {}
        if not MANAGED_BY.items() <= labels.items():
            return "whoever installed their CRD"
        try:
            deployments = await self._client.list(
                "apps/v1", "Deployment", label_selector=_KUBEFLOW_SELECTOR
            )
        except KubernetesError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            # Confined to namespaces: only the CRD and the writers of statuses show it.
            return ""
        names = [
            f"{each['metadata']['namespace']}/{each['metadata']['name']}"
            for each in deployments
            if each["spec"].get("replicas", 1) > 0
        ]
        return f"the operator {names[0]}" if names else ""

    def _is_run_by_another(self, application: Mapping[str, Any]) -> bool:
        others = other_writers(application)
        if others:
            _log.warning(
                "stands aside: another controller runs this SparkApplication",
                application=application["metadata"]["name"],
                controller=", ".join(others),
            )
        return bool(others)

    # Steps

    async def _take(self, seen: Seen, decision: Decision) -> Decision:
        """Carry out the decision's step. If the API refuses it, that becomes the next state."""
        match decision.step:
            case Step.SUBMIT:
                return await self._submit(seen, decision)
            case Step.STOP:
                await self._delete_driver(seen, grace_period=None)
            case Step.REMOVE:
                await self._delete_driver(seen, grace_period=0)
            case Step.RESIZE:
                await self._resize(seen)
            case Step.DELETE:
                application = seen.application
                await self._client.delete(application, uid=application["metadata"]["uid"])
            case Step.NOTHING:
                return await self._keep_surroundings(seen, decision)
        return decision

    async def _submit(self, seen: Seen, decision: Decision) -> Decision:
        submission = Submission(
            application=seen.application,
            submission_id=str(uuid.uuid4()),
            attempt=decision.attempt,
            failures=seen.failures if decision.failures is None else decision.failures,
        )
        *around, driver = render_submission(submission)
        try:
            access = await access_of(self._client, submission)
            await keep_objects(self._client, (*around, *access))
        except ForeignObjectError as error:
            return await self._not_made(seen, decision, str(error))
        except KubernetesError as error:
            return await self._refused(seen, decision, error)
        try:
            await self._client.create(driver)
        except KubernetesError as error:
            if error.is_conflict:
                # Another client, or a former process, made it a moment ago: its event is on the
                # way.
                return Decision(state=decision.state, again_seconds=1.0)
            return await self._refused(seen, decision, error)
        message = f"driver {driver['metadata']['name']} created, attempt {submission.attempt}"
        await self._event(seen, "SparkApplicationSubmitted", message)
        ignored = ignored_fields(seen.application)
        if ignored:
            text = f"Headrace's runner does not act on {', '.join(ignored)}"
            await self._event(seen, "SparkApplicationFieldsIgnored", text, kind="Warning")
        return submitted(seen, decision, submission)

    async def _refused(self, seen: Seen, decision: Decision, error: KubernetesError) -> Decision:
        if not error.is_about_object:
            raise error
        if not error.is_refusal:
            return await self._not_made(seen, decision, str(error))
        message = await self._warn(seen, f"the driver could not be made: {error}")
        return refused(seen, decision, message)

    async def _not_made(self, seen: Seen, decision: Decision, message: str) -> Decision:
        """Wait to submit again: the reason may pass, and this is no attempt."""
        message = await self._warn(seen, f"the driver could not be made: {message}")
        state = State.NEW if decision.attempt == 1 else seen.state
        return replace(decision, state=state, message=message, again_seconds=PASSING_SECONDS)

    async def _warn(self, seen: Seen, message: str) -> str:
        """Record what could not be made, unless the status says so already; return it."""
        if message[:MESSAGE_LENGTH_MAX] != seen.message:
            reason = "SparkApplicationSubmissionFailed"
            await self._event(seen, reason, message, kind="Warning")
        return message

    async def _delete_driver(self, seen: Seen, grace_period: int | None) -> None:
        if seen.driver is None:
            return
        uid = seen.driver["metadata"]["uid"]
        await self._client.delete(seen.driver, uid=uid, grace_period=grace_period)

    async def _remove_lost_executors(self, seen: Seen, again_seconds: float | None) -> float | None:
        """Remove executors that nobody else removes; return when to look again."""
        for pod in overdue_executors(seen):
            if not await self._is_lost(pod):
                continue
            metadata = pod["metadata"]
            await self._client.delete(pod, uid=metadata["uid"], grace_period=0)
            message = f"{metadata['name']}: its node {pod['spec']['nodeName']} does not answer"
            await self._event(seen, "SparkExecutorRemoved", message, kind="Warning")
        if not any(is_terminating(pod) for pod in seen.executors):
            return again_seconds
        # Nodes are not watched.
        return LOST_SECONDS if again_seconds is None else min(LOST_SECONDS, again_seconds)

    async def _resize(self, seen: Seen) -> None:
        """Write the number where the driver reads it; Spark then requests executors."""
        if seen.driver is None:
            return
        wanted = wanted_executors(seen.application)
        patch = {"metadata": {"annotations": {EXECUTORS_ANNOTATION: str(wanted)}}}
        await self._client.patch(seen.driver, patch)
        await self._event(seen, "SparkExecutorsRequested", f"{wanted} executors are wanted")

    async def _keep_surroundings(self, seen: Seen, decision: Decision) -> Decision:
        """Put right what is around the driver. If that is refused, say so."""
        if (driver := seen.own_driver) is None or is_terminating(driver):
            return decision
        submission = Submission(
            application=seen.application,
            submission_id=label(driver, SUBMISSION_LABEL),
            attempt=seen.attempts,
            failures=seen.failures,
        )
        is_alive = phase(driver) not in ("Succeeded", "Failed")
        problems = await self._surroundings.keep(submission, is_alive=is_alive)
        if not problems:
            return decision
        message = f"around the driver something could not be made: {'; '.join(problems)}"
        message = f"{decision.message}; {message}" if decision.message else message
        await self._warn(seen, message)
        again = min(decision.again_seconds or PASSING_SECONDS, PASSING_SECONDS)
        return replace(decision, message=message, again_seconds=again)

    async def _refuse(self, seen: Seen, message: str) -> ApplicationOutcome:
        """Say what is refused. A driver that runs stays: it is of a spec that was accepted."""
        decision, again = Decision(state=State.FAILED, message=message), None
        if (driver := seen.own_driver) is not None and phase(driver) not in ("Succeeded", "Failed"):
            decision = replace(decision, state=alive_state(driver))
            if message[:MESSAGE_LENGTH_MAX] != seen.message:
                await self._event(seen, "SparkApplicationRefused", message, kind="Warning")
            again = await self._remove_lost_executors(seen, None)
        status = await self._write_status(seen, decision)
        return ApplicationOutcome(look_again_seconds=again, status=status)

    async def _write_status(self, seen: Seen, decision: Decision) -> Mapping[str, Any]:
        status = render_status(seen, decision)
        metadata = seen.application["metadata"]
        key = f"{metadata['namespace']}/{metadata['name']}"
        is_written = status == _without_nulls(seen.status) or (
            status,
            seen.status,
        ) == self._kept.get(key)
        if decision.step is Step.DELETE or is_written:
            return status
        obj = {
            "apiVersion": SPARK_API_VERSION,
            "kind": "SparkApplication",
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "status": status,
        }
        try:
            written = await self._client.apply_status(obj)
            self._kept[key] = (status, written.get("status") or {})
            self._learn(written)
        except KubernetesError as error:
            # Deleted in the meantime.
            if not (error.is_not_found or error.is_conflict):
                raise
        # The outcome of a submission was already recorded.
        is_new = decision.state not in (seen.state, State.SUBMITTED) or (
            decision.state is State.FAILED and decision.message[:MESSAGE_LENGTH_MAX] != seen.message
        )
        if decision.step is not Step.SUBMIT and is_new:
            kind = "Warning" if decision.state is State.FAILED else "Normal"
            note = decision.message or f"{seen.state or 'NEW'} → {decision.state}"
            await self._event(seen, _event_reason(decision.state), note, kind=kind)
        return status

    def _learn(self, written: Object) -> None:
        """Store a write's result at once: the next pass must not decide on the older state."""
        metadata = written["metadata"]
        known = self._store.get(written["kind"], metadata["namespace"], metadata["name"])
        # An object that the store lacks is gone, or its own event is on the way.
        if known is not None and _version(known) < _version(written):
            self._store.upsert(trim(written))

    async def _event(self, seen: Seen, reason: str, message: str, *, kind: str = "Normal") -> None:
        regarding = {
            "apiVersion": SPARK_API_VERSION,
            "kind": "SparkApplication",
            "metadata": seen.application["metadata"],
        }
        await self._client.event(regarding, reason=reason, message=message, kind=kind)


def _why_unreadable(seen: Seen) -> str:
    """Return why no pods can be made from a spec; '' if they can. The kind's schema is a small one.

    Without this, each pass over the application would end in an exception, and its user would not
    know.
    """
    try:
        decide(seen)
        submission = Submission(application=seen.application, submission_id="", attempt=0)
        render_submission(submission)
        render_access(submission)
    except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        name = seen.application["metadata"]["name"]
        _log.warning("cannot be rendered", application=name, exc_info=True)
        return f"the spec cannot be turned into pods: {type(error).__name__}: {error}"
    return ""


def _version(obj: Mapping[str, Any]) -> int:
    return int(obj["metadata"].get("resourceVersion") or 0)


def _event_reason(state: State) -> str:
    words = "".join(word.capitalize() for word in state.value.split("_"))
    return f"SparkApplication{words or 'New'}"


def _without_nulls(status: Mapping[str, Any]) -> dict[str, Any]:
    """Drop null fields that a published CRD adds."""
    return {key: value for key, value in status.items() if value is not None}
