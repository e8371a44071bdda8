"""Writes statuses that differ, and Events on transitions.

Converged input writes nothing: the new status is compared with the last seen one.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import structlog

from headrace_operator.apply import Failure
from headrace_operator.kubernetes.api.client import FencedError, KubernetesError
from headrace_operator.kubernetes.register import Register, parse_managed, version_of
from headrace_operator.kubernetes.unreadable import status_of_unreadable, why_unreadable
from headrace_operator.plan import Desired, Observed, Plan, Problem, Waiting
from headrace_operator.plan.report import changed, is_lag_only, report, reset_note
from headrace_operator.resources import (
    API_VERSION,
    Cluster,
    ConsumerGroup,
    Reason,
    Topic,
    TopicStatus,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Mapping, Sequence

    from headrace_operator.kubernetes.api.cache import Store
    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.kubernetes.register import Version
    from headrace_operator.kubernetes.seams import BrokerBackend
    from headrace_operator.plan import Action, Key, ResetOffsets, ScaleTarget
    from headrace_operator.resources.consumer_group import TargetReference

__all__ = ["StatusWriter"]

WRITES_AT_ONCE = 16
#: Events come after statuses: nothing waits for them.
EVENTS_AT_ONCE = 2
#: Changed lag numbers are written this often for each group.
LAG_SECONDS = 10.0
#: After a status that took as long as it may, so long none of its kind: they would take as long.
HELD_SECONDS = 30.0

_log = structlog.get_logger("headrace.operator.status")

_Resource = Cluster | Topic | ConsumerGroup
_T = TypeVar("_T")


class StatusWriter:
    """Writes the results of a pass."""

    def __init__(
        self, client: KubernetesClient, store: Store, register: Register, backend: BrokerBackend
    ) -> None:
        """`store` has the Clusters, `register` the rest; both get each write's result at once."""
        self._client = client
        self._store = store
        self._register = register
        self._backend = backend
        self._slots = asyncio.Semaphore(WRITES_AT_ONCE)
        self._event_slots = asyncio.Semaphore(EVENTS_AT_ONCE)
        self._clock = time.monotonic
        self._lag_written: dict[Key, float] = {}
        self._events: set[asyncio.Task[None]] = set()
        #: Until when no status of a kind is written.
        self._held: dict[str, float] = {}
        #: Kinds of which an Event says that their statuses cannot be written.
        self._said_unwritten: set[str] = set()
        # Uid and reason, where not even a status could be written.
        self._refused_unreadable: set[tuple[str, str]] = set()

    async def write(
        self,
        observed: Observed,
        desired: Desired,
        plan: Plan,
        *,
        versions: Mapping[Key, Version],
        is_whole: bool,
    ) -> frozenset[Key]:
        """Write each status that differs; return those that the API server did not take.

        `is_whole`: the Cluster's too. `versions`: what was planned. Of a spec that came later, or
        an object that was made again, this plan says nothing; the next one does.
        """
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        wanted = report(observed, desired, plan, now=now)
        resources: tuple[Topic | ConsumerGroup, ...] = (*desired.topics, *desired.groups)
        seen = observed.cluster
        is_silent = desired.cluster is not None and seen is not None and not seen.is_reachable
        work = [
            self._write(resource, wanted[resource.key])
            for resource in resources
            if versions.get(resource.key) == version_of(resource)
            and self._is_due(resource, wanted[resource.key])
            and not (is_silent and was_ready(resource))
        ]
        cluster = desired.cluster
        if is_whole and cluster is not None:
            status = dict(wanted[cluster.key]) | dict(self._backend.status(cluster, observed, plan))
            if changed(cluster.document.get("status") or {}, status):
                work.append(self._write(cluster, status))
        return frozenset(key for key in await _all(work) if key is not None)

    async def write_failed_pass(self, cluster: Cluster, failure: Problem | Waiting) -> None:
        """Say in a Cluster's conditions why passes over it fail. The rest of its status stays."""
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        planned = (
            Plan(problems=(failure,)) if isinstance(failure, Problem) else Plan(waiting=(failure,))
        )
        wanted = report(Observed(), Desired(cluster=cluster), planned, now=now)[cluster.key]
        known = cluster.document.get("status") or {}
        said = ("conditions", "observedGeneration")
        changes = {key: wanted[key] for key in said if key in wanted}
        if changed(known, known | changes):
            await self._write(cluster, known | changes)

    def _is_due(self, resource: Topic | ConsumerGroup, status: Object) -> bool:
        """Whether to write now: constantly changing numbers are written at intervals."""
        if self._register.get(resource.key) is None:
            return False
        previous = msgspec.to_builtins(resource.status)
        if not changed(previous, status):
            return False
        now = self._clock()
        if is_lag_only(previous, status):
            if now - self._lag_written.get(resource.key, float("-inf")) < LAG_SECONDS:
                return False
            self._lag_written[resource.key] = now
        return True

    def forget(self, key: Key) -> None:
        """Remove a deleted resource."""
        self._lag_written.pop(key, None)

    async def note_resets(
        self, resets: Sequence[ResetOffsets], *, is_done: bool
    ) -> tuple[Failure, ...]:
        """Record a reset before its offsets are committed, and then that it is done: once.

        Return those that the API server does not record: they must not be begun.
        """
        notes = []
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for reset in resets:
            group = self._register.get(reset.resource)
            if group is None:
                continue
            state, at = ("Done", now) if is_done or reset.is_dry_run else ("Started", "")
            note = reset_note(reset, state=state, completed_at=at)
            notes.append(self._note(reset, group, {"lastReset": note}))
        return tuple(itertools.chain(*await _all(notes)))

    async def note_pauses(self, actions: Iterable[ScaleTarget]) -> tuple[Failure, ...]:
        """Record what to restore before a target stops, and later that it is done.

        Return those that the API server does not record: they must not be carried out.
        """
        notes = []
        for action in actions:
            group = self._register.get(action.resource)
            if isinstance(group, ConsumerGroup):
                replicas = action.previous if action.is_pause else None
                target = action.target if action.is_pause else None
                known = (group.status.paused_replicas, group.status.paused_target)
                if (replicas, target) != known:
                    fields = {"pausedReplicas": replicas, "pausedTarget": _builtins(target)}
                    notes.append(self._note(action, group, fields))
        return tuple(itertools.chain(*await _all(notes)))

    async def refuse_unreadable(self, obj: Object) -> None:
        """Say in its status, and by an Event, why a resource cannot be read; once."""
        reason = why_unreadable(obj)
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = status_of_unreadable(obj, reason, now=now)
        if status is None:
            return
        # Server-side apply needs an object of the right types, which this one may not be.
        version = {"resourceVersion": obj["metadata"]["resourceVersion"]}
        patch = {"metadata": version, "status": status}
        refusal = (obj["metadata"]["uid"], reason)
        try:
            async with self._slots:
                written = await self._client.patch(obj, patch, subresource="status")
        except KubernetesError as error:
            if error.is_conflict:  # its own event comes
                return
            if not error.is_refusal:
                raise
            # The API server cannot read it either; an Event is all that can be said, once.
            _log.warning("status refused", kind=obj["kind"], error=str(error))
            written = obj if refusal not in self._refused_unreadable else None
            self._refused_unreadable.add(refusal)
        if written is not None:
            event = self._client.event(
                obj, reason=Reason.INVALID_SPEC, message=reason, kind="Warning"
            )
            await self._quietly(event)

    async def _note(
        self, action: Action, group: Topic | ConsumerGroup, fields: Object
    ) -> tuple[Failure, ...]:
        """Write status fields without which the next pass would act wrongly."""
        status = {**msgspec.to_builtins(group.status), **fields}
        status = {key: value for key, value in status.items() if value is not None}
        try:
            # Beside others: a webhook that hangs takes its time for each.
            async with self._slots:
                written = await self._client.apply_status({**_reference(group), "status": status})
        except KubernetesError as error:
            if not error.is_about_object:
                raise
            message = f"its status cannot be written: {error.message}"
            is_passing = not error.is_refusal or error.is_not_found
            return (Failure(action=action, message=message, is_retriable=is_passing),)
        self._learn(group.key, written)
        return ()

    async def _write(self, resource: _Resource, status: Object) -> Key | None:
        """Write a status; return the key of the resource if the API server did not take it.

        A refusal is about this object alone. Raises KubernetesError if it is not.
        """
        body = {**_reference(resource), "status": status}
        try:
            async with self._slots:
                if self._clock() < self._held.get(resource.kind, float("-inf")):
                    return resource.key
                written = await self._client.apply_status(body)
        except KubernetesError as error:
            # Deleted, or replaced by a new object with the same name: its own event comes.
            if error.is_not_found or error.is_conflict:
                return None
            if not error.is_about_object:
                raise
            if error.is_timeout:
                self._held[resource.kind] = self._clock() + HELD_SECONDS
            self._say_unwritten(resource, error)
            return resource.key
        self._said_unwritten.discard(resource.kind)
        self._learn(resource.key, written)
        self._record_event(resource, status)
        return None

    def _say_unwritten(self, resource: _Resource, error: KubernetesError) -> None:
        """Say by an Event that a status is not up to date, once for each kind."""
        message = f"its status cannot be written: {error.message}"
        _log.warning("status not written", resource=resource.key, error=str(error))
        if resource.kind not in self._said_unwritten:
            self._said_unwritten.add(resource.kind)
            self._send_event(resource, Reason.APPLY_FAILED, message, "Warning")

    def _learn(self, key: Key, written: Object | None) -> None:
        """Store a write's result at once: the next pass must not write it again."""
        if written is None:
            return
        if key[0] == "Cluster":
            written["metadata"].pop("managedFields", None)
            self._store.learn(written)
        elif (resource := parse_managed(written)) is not None:
            known = self._register.get(key)
            version = known.metadata.resource_version if known else ""
            # A late answer must not undo what a watch has delivered since, such as a new spec.
            if int(version or 0) <= int(resource.metadata.resource_version or 0):
                self._register.upsert(resource)

    def _record_event(self, resource: _Resource, status: Object) -> None:
        """Record an Event if Ready has a new status or reason, or a person has to act now."""
        ready = _condition(status, "Ready")
        stalled = _condition(status, "Stalled")
        former = {each.type: each for each in resource.status.conditions}
        if ready is None or stalled is None:
            return
        is_same = "Ready" in former and (
            (former["Ready"].status, former["Ready"].reason) == (ready["status"], ready["reason"])
        )
        was_stalled = "Stalled" in former and former["Stalled"].status == "True"
        if is_same and (was_stalled or stalled["status"] != "True"):
            return
        kind = "Warning" if stalled["status"] == "True" else "Normal"
        self._send_event(resource, ready["reason"], ready.get("message", ""), kind)

    def _send_event(self, resource: _Resource, reason: str, message: str, kind: str) -> None:
        event = self._client.event(_reference(resource), reason=reason, message=message, kind=kind)
        task = asyncio.get_running_loop().create_task(self._quietly(event))
        self._events.add(task)
        task.add_done_callback(self._events.discard)

    async def _quietly(self, event: Any) -> None:
        async with self._event_slots:
            try:
                await event
            except FencedError:
                # The new leader records it.
                return
            except Exception as error:  # noqa: BLE001 - an Event is never worth a failed pass
                _log.warning("event not recorded", error=str(error))


def was_ready(resource: Topic | ConsumerGroup) -> bool:
    """Whether the present spec was carried out, as far as is known. Pure.

    That stays true while brokers do not answer, which the Cluster reports: thousands of statuses
    that change and change back would add nothing.
    """
    status = resource.status
    # Brokers have confirmed it at least once.
    was_seen = status.topic_id if isinstance(status, TopicStatus) else status.state
    if not was_seen or resource.metadata.deletion_timestamp:
        return False
    generation = resource.metadata.generation
    return any(
        each.type == "Ready" and each.status == "True" and each.observed_generation == generation
        for each in status.conditions
    )


def _reference(resource: _Resource) -> Object:
    metadata = resource.metadata
    return {
        "apiVersion": API_VERSION,
        "kind": resource.kind,
        "metadata": {
            "namespace": metadata.namespace,
            "name": metadata.name,
            "uid": metadata.uid,
        },
    }


def _builtins(target: TargetReference | None) -> Object | None:
    return None if target is None else msgspec.to_builtins(target)


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    return next((each for each in status["conditions"] if each["type"] == kind), None)


async def _all(work: Iterable[Awaitable[_T]]) -> list[_T]:
    """Run all of them, then raise the first failure."""
    results = await asyncio.gather(*work, return_exceptions=True)
    found: list[_T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found
