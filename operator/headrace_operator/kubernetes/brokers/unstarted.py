"""Why wanted pods are not made, and why pods that a node was found for do not start.

`observed` reads what containers say of themselves. This asks what no pod's status says: admission,
by a dry run of the missing pod, and Events. Without permission to list Events, or to create pods,
nothing is known from there and nothing reported. A set whose pod is admitted again is woken: its
controller, once refused, waits for up to 1,000 s.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.kubernetes.brokers.observed import STUCK_SECONDS, WORDS_MAX, failure_of
from headrace_operator.kubernetes.brokers.returning import next_pod
from headrace_operator.kubernetes.brokers.waking import NEVER, Wakes, wake
from headrace_operator.render.names import pod_name, stateful_set
from headrace_operator.render.pods import STARTUP_SECONDS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.kubernetes.brokers.observed import Seen
    from headrace_operator.plan import Key, ObservedBroker
    from headrace_operator.render.identity import Identity
    from headrace_operator.resources import Cluster

__all__ = ["Hindrance", "Unstarted", "newest_event", "unready_since", "with_hindrance"]

#: A set's controller makes a missing pod within a second or two.
ABSENT_SECONDS = 5.0
#: A volume is attached and an image pulled within this time, mostly.
PENDING_SECONDS = 120.0
#: After this time, what has not started is not waited for any longer.
START_SECONDS_MAX = 600.0
#: The set's controller tries again after 1,000 s at the latest, and reports it each time.
FAILED_CREATE_SECONDS_MAX = 1200.0
#: What was asked is asked again after the first of these, and at growing intervals while there is
#: nothing to report.
AGAIN_SECONDS_MIN, AGAIN_SECONDS_MAX = 10.0, 300.0

FAILED_CREATE, SUCCESSFUL_CREATE = "FailedCreate", "SuccessfulCreate"
#: The API server itself is busy or away: that says nothing about a pod.
_PASSING = frozenset({429, 503, 504})
_OUR_OWN_RIGHT = 'cannot create resource "pods"'


@dataclass(frozen=True, kw_only=True)
class Hindrance:
    """What keeps a broker from starting. `is_stuck`: nothing waits for it any longer."""

    why: str
    is_stuck: bool


@dataclass(kw_only=True)
class _Asked:
    """What was heard about one pod. `subject`: the uid of the pod, or of its set."""

    subject: str
    since: dt.datetime
    at: dt.datetime = NEVER
    again_seconds: float = AGAIN_SECONDS_MIN
    refused: str = ""
    event: Object | None = None
    wakes: Wakes = field(default_factory=Wakes)


@dataclass(kw_only=True)
class _Look:
    """One look at a Cluster's pods."""

    now: dt.datetime
    #: Whether a dry run took as long as it may: the others would, too.
    is_slow: bool = False


class Unstarted:
    """Wanted pods that do not exist, and pods that do not start."""

    def __init__(self, client: KubernetesClient) -> None:
        """Owns, in memory, since when pods are missing, and what was last heard about them."""
        self._client = client
        self._asked: dict[Key, dict[str, _Asked]] = {}
        self._asleep: dict[Key, tuple[dt.datetime, dict[str, Object]]] = {}

    def forget(self, cluster: Cluster) -> None:
        """Forget a Cluster that is deleted."""
        self._asked.pop(cluster.key, None)
        self._asleep.pop(cluster.key, None)

    async def wake(self, cluster: Cluster) -> None:
        """Have the controllers of sets look again whose pods were refused and no longer are.

        Raises KubernetesError.
        """
        now, asleep = self._asleep.pop(cluster.key, (NEVER, {}))
        for each in asleep.values():
            await wake(self._client, each, now)

    async def look(
        self, cluster: Cluster, identity: Identity, seen: Seen
    ) -> Mapping[int, Hindrance]:
        """Return what keeps brokers from starting, by node id. Raises KubernetesError."""
        former = self._asked.get(cluster.key, {})
        present: dict[str, _Asked] = {}
        found: dict[int, Hindrance] = {}
        asleep: dict[str, Object] = {}
        look = _Look(now=seen.now)
        for node in identity.nodes:
            name = pod_name(cluster, node)
            owner = seen.stateful_sets.get(stateful_set(cluster, node.pool))
            pod = seen.pods.get(name)
            subject = pod or owner
            if subject is None:
                continue
            uid = subject["metadata"]["uid"]
            asked = former.get(name)
            if asked is None or asked.subject != uid:
                asked = _Asked(subject=uid, since=seen.now)
            if pod is not None:
                is_alone = len(identity.nodes) == 1
                hindrance = await self._of_pod(pod, asked, seen.now, is_alone=is_alone)
            elif owner is not None and node.ordinal < owner["spec"].get("replicas", 1):
                hindrance = await self._of_missing(owner, name, asked, look)
                if _is_asleep(asked, seen.now):
                    asked.wakes.note(seen.now)
                    asleep[owner["metadata"]["name"]] = owner
            else:
                continue
            present[name] = asked
            if hindrance is not None:
                found[node.node_id] = hindrance
        self._asked[cluster.key] = present
        self._asleep[cluster.key] = seen.now, asleep
        return found

    async def _of_missing(
        self, owner: Object, name: str, asked: _Asked, look: _Look
    ) -> Hindrance | None:
        now = look.now
        waited = (now - asked.since).total_seconds()
        if owner["metadata"].get("deletionTimestamp") or waited < ABSENT_SECONDS:
            return None
        if _is_due(asked, now):
            asked.refused = await self._refusal(owner, name, look)
            oldest = now - dt.timedelta(seconds=FAILED_CREATE_SECONDS_MAX)
            # Its claim may be refused and not the pod: only the controller says that.
            last = await self._event(owner, oldest, lambda each: _is_about(each, name))
            # It has been made since: who deletes it now is not the one who refused it.
            is_refused = last is not None and last.get("reason") == FAILED_CREATE
            asked.event = last if is_refused else None
            has_words = bool(asked.refused or asked.event) and not look.is_slow
            _note(asked, now, has_words=has_words)
        why = asked.refused or (_words(asked.event) if asked.event else "")
        return Hindrance(why=why, is_stuck=waited >= STUCK_SECONDS) if why else None

    async def _refusal(self, owner: Object, name: str, look: _Look) -> str:
        """Return why admission refuses the pod; '' if it does not, or that is not known."""
        if look.is_slow:
            return ""
        try:
            await self._client.create(next_pod(owner, name), is_dry_run=True)
        except KubernetesError as error:
            if not error.is_about_object:
                raise
            look.is_slow = error.is_timeout
            if error.is_conflict:
                # Just made, or somebody else's: only the controller's Event tells.
                return ""
            if error.status in _PASSING or _OUR_OWN_RIGHT in error.message:
                return ""
            return f"{FAILED_CREATE}: {error.message[:WORDS_MAX]}"
        return ""

    async def _of_pod(
        self, pod: Object, asked: _Asked, now: dt.datetime, *, is_alone: bool
    ) -> Hindrance | None:
        if gone_at := pod["metadata"].get("deletionTimestamp"):
            return _overdue(pod, gone_at, now)
        if failure_of(pod):
            # It says so itself.
            return None
        since = unready_since(pod)
        waited = (now - since).total_seconds() if since else 0.0
        if since is None or waited < PENDING_SECONDS:
            return None
        if pod.get("status", {}).get("phase") != "Pending":
            return _unanswering(since, waited, is_alone=is_alone)
        if _is_due(asked, now):
            asked.event = await self._event(pod, since)
            _note(asked, now, has_words=asked.event is not None)
        return _pending(pod, asked.event, waited)

    async def _event(
        self,
        regarding: Object,
        oldest: dt.datetime,
        is_wanted: Callable[[Object], bool] = lambda _: True,
    ) -> Object | None:
        metadata = regarding["metadata"]
        try:
            listed = await self._client.list(
                "events.k8s.io/v1",
                "Event",
                metadata["namespace"],
                field_selector=f"regarding.uid={metadata['uid']}",
            )
        except KubernetesError as error:
            if not error.is_forbidden:
                raise
            return None
        newest = newest_event([each for each in listed if is_wanted(each)])
        return newest if newest is not None and _time_of(newest) >= oldest else None


def with_hindrance(broker: ObservedBroker, hindrance: Hindrance | None) -> ObservedBroker:
    """Return the broker with what keeps it from starting. Pure."""
    if hindrance is None:
        return broker
    return replace(broker, failing=hindrance.why, is_stuck=hindrance.is_stuck)


def unready_since(pod: Object) -> dt.datetime | None:
    """Return since when a pod that has a node does not start; None: it has started, or has no node.

    A pod that no scheduler has ever looked at counts from its creation. Pure.
    """
    status = pod.get("status", {})
    if status.get("phase") == "Pending":
        conditions = status.get("conditions") or []
        for each in conditions:
            if each["type"] == "PodScheduled":
                return _parsed(each.get("lastTransitionTime")) if _is_true(each) else None
        return _parsed(pod["metadata"].get("creationTimestamp"))
    for each in status.get("containerStatuses") or []:
        running = (each.get("state") or {}).get("running")
        if each.get("name") == "broker" and running and each.get("started") is False:
            return _parsed(running.get("startedAt"))
    return None


def newest_event(events: list[Object]) -> Object | None:
    """Return the Event that was last observed. Pure."""
    return max(events, key=_time_of, default=None)


def _pending(pod: Object, event: Object | None, waited: float) -> Hindrance | None:
    """Judge a pod whose containers have not all been started."""
    is_over = waited >= START_SECONDS_MAX
    if not _is_scheduled(pod):
        scheduler = pod["spec"].get("schedulerName", "default-scheduler")
        why = f"Pending: scheduler {scheduler} has not looked at it"
        return Hindrance(why=why, is_stuck=True)
    if event is not None and event.get("type") == "Warning":
        return Hindrance(why=_words(event), is_stuck=True)
    sidecars = {
        each["name"]
        for each in pod["spec"].get("initContainers") or []
        if each.get("restartPolicy") == "Always"
    }
    for each in pod.get("status", {}).get("initContainerStatuses") or []:
        running = (each.get("state") or {}).get("running")
        if running and each["name"] not in sidecars:
            why = f"Pending: init container {each['name']} runs since {running.get('startedAt')}"
            return Hindrance(why=why, is_stuck=is_over)
    if not is_over:
        return None
    said = f": {_words(event)}" if event is not None else ""
    return Hindrance(why=f"Pending: its containers have not started{said}", is_stuck=True)


def _unanswering(since: dt.datetime, waited: float, *, is_alone: bool) -> Hindrance | None:
    """Judge a broker that runs and was never heard of.

    One of several answers while it recovers its logs, a single one only after that: the kubelet
    gives it an hour.
    """
    if waited < (STARTUP_SECONDS_MAX - STUCK_SECONDS if is_alone else START_SECONDS_MAX):
        return None
    why = f"Running: it has not answered its startup probe since {since:%Y-%m-%dT%H:%M:%SZ}"
    return Hindrance(why=why, is_stuck=True)


def _overdue(pod: Object, gone_at: str, now: dt.datetime) -> Hindrance | None:
    """Judge a pod that was to be gone: the next one by its name waits for it."""
    due = _parsed(gone_at)
    if due is None or (now - due).total_seconds() < PENDING_SECONDS:
        return None
    finalizers = pod["metadata"].get("finalizers") or []
    held = f", held by {', '.join(finalizers)}" if finalizers else ""
    return Hindrance(why=f"Terminating: it was to be gone at {gone_at}{held}", is_stuck=False)


def _is_due(asked: _Asked, now: dt.datetime) -> bool:
    return (now - asked.at).total_seconds() >= asked.again_seconds


def _note(asked: _Asked, now: dt.datetime, *, has_words: bool) -> None:
    asked.at = now
    longer = min(2 * asked.again_seconds, AGAIN_SECONDS_MAX)
    asked.again_seconds = AGAIN_SECONDS_MIN if has_words else longer


def _is_asleep(asked: _Asked, now: dt.datetime) -> bool:
    """Whether a set's controller waits though its pod is admitted, and is to look again."""
    return asked.event is not None and not asked.refused and asked.wakes.is_due(now)


def _is_about(event: Object, name: str) -> bool:
    """Whether a set's Event is about the creation of this pod: c-a-1, and not c-a-11."""
    said = event.get("note") or ""
    is_named = re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", said) is not None
    return event.get("reason") in (FAILED_CREATE, SUCCESSFUL_CREATE) and is_named


def _words(event: Object) -> str:
    return f"{event.get('reason', '')}: {(event.get('note') or '')[:WORDS_MAX]}"


def _time_of(event: Object) -> dt.datetime:
    """Return when an Event was last observed: each writer says that in a field of its own."""
    times = (
        (event.get("series") or {}).get("lastObservedTime"),
        event.get("deprecatedLastTimestamp"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )
    return next((found for each in times if (found := _parsed(each))), NEVER)


def _is_scheduled(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(each["type"] == "PodScheduled" and _is_true(each) for each in conditions)


def _is_true(condition: Object) -> bool:
    return bool(condition["status"] == "True")


def _parsed(text: str | None) -> dt.datetime | None:
    return dt.datetime.fromisoformat(text) if text else None
