"""`reconcile(key)`: one level-triggered pass over a Cluster and the resources that refer to it.

Observe, plan, carry out, observe the changes, write statuses that differ. A pass covers the dirty
resources: some Topics and groups, or everything. It may be interrupted anywhere and run again: all
state that must last is in Kubernetes or in the brokers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import structlog

from headrace_operator.apply import ADMIN_ACTIONS, Failure
from headrace_operator.kubernetes.brokers.addresses import AddressWatch
from headrace_operator.kubernetes.group_watch import LOOK_SECONDS, GroupWatch
from headrace_operator.kubernetes.queue import JITTER
from headrace_operator.kubernetes.refused import Refused
from headrace_operator.kubernetes.register import age_of, cluster_key, version_of
from headrace_operator.kubernetes.spec_check import with_spec_checked
from headrace_operator.kubernetes.workloads import needs_target
from headrace_operator.observe import merge_observations
from headrace_operator.plan import (
    Action,
    Desired,
    MoveReplicas,
    Observed,
    Plan,
    Problem,
    ResetOffsets,
    ScaleTarget,
    Waiting,
    plan,
)
from headrace_operator.resources import Cluster, ConsumerGroup, Reason, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from headrace_operator.kubernetes.admins import Admins
    from headrace_operator.kubernetes.namespaces import Namespaces
    from headrace_operator.kubernetes.register import ClusterKey, Managed, Register, Version
    from headrace_operator.kubernetes.seams import BrokerBackend
    from headrace_operator.kubernetes.statuses import StatusWriter
    from headrace_operator.kubernetes.workloads import Workloads
    from headrace_operator.plan import Key

__all__ = ["ClusterReconciler", "Dirt", "Outcome", "Surroundings", "with_failures"]

#: Each round makes the next possible (a topic is created, then seen). The next pass does the rest.
ROUNDS_MAX = 3
#: Full passes take at most this share of one core, however many topics there are.
LOOKING_SHARE = 0.01
RESYNC_SECONDS_MIN = 30.0
RESYNC_SECONDS_MAX = 600.0
#: A pending change is checked again this soon, and at growing intervals while it lasts.
WAITING_SECONDS = 1.0
WAITING_GROWTH_MAX = 8
#: A refused action will mostly be refused again.
STALLED_GROWTH_MAX = 64

_A = TypeVar("_A", bound=Action)
_log = structlog.get_logger("headrace.operator.reconcile")


@dataclass(kw_only=True)
class Dirt:
    """What changed since the last pass."""

    keys: set[Key] = field(default_factory=set)
    is_everything: bool = True
    is_health: bool = False


@dataclass(kw_only=True)
class _Memory:
    """State that makes the next pass cheaper. Losing it costs one full pass."""

    dirt: Dirt = field(default_factory=Dirt)
    #: The Cluster that the rest is about.
    cluster: Cluster | None = None
    #: The brokers' last answers, without the backend's observations.
    seen: Observed | None = None
    #: The processor time of a full pass.
    looking_seconds: float = 0.0
    waited: int = 0
    #: When the next full pass is due without any event (monotonic).
    full_at: float = 0.0
    #: When groups with relevant targets are observed again.
    look_at: float = 0.0
    groups: GroupWatch
    addresses: AddressWatch = field(default_factory=AddressWatch)
    refused: Refused = field(default_factory=Refused)
    #: Whether its brokers did not answer the last time, or were never asked.
    is_silent: bool = True
    #: The brokers' processes: connections to one that is gone may hang.
    processes: frozenset[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a pass. `again_seconds`: when the next is due without any event.

    `is_gone`: there is nothing by this key any more, and the next pass comes with an event.
    """

    scope: str
    performed: tuple[Action, ...] = ()
    failures: tuple[Failure, ...] = ()
    again_seconds: float = RESYNC_SECONDS_MIN
    is_converged: bool = True
    resync_seconds: float = RESYNC_SECONDS_MIN
    unfinished: frozenset[Key] = frozenset()
    is_gone: bool = False


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The reconciler's collaborators."""

    register: Register
    clusters: Callable[[ClusterKey], Cluster | None]
    backend: BrokerBackend
    admins: Admins
    statuses: StatusWriter
    workloads: Workloads
    namespaces: Namespaces
    on_action: Callable[[Action, Failure | None], None]
    #: Whether resources of a namespace are ours, and not another operator's.
    serves: Callable[[str], bool] = lambda _namespace: True


class ClusterReconciler:
    """Passes over Clusters. The queue ensures one pass per Cluster at a time."""

    def __init__(self, around: Surroundings) -> None:
        """Nothing is observed before the first pass."""
        self._around = around
        self._memories: dict[ClusterKey, _Memory] = {}

    def mark(self, key: ClusterKey, resource: Key | None = None, *, health: bool = False) -> None:
        """Note a change: a resource, which brokers are alive, or (neither given) anything."""
        dirt = self._memory_of(key).dirt
        if resource is not None:
            dirt.keys.add(resource)
        elif health:
            dirt.is_health = True
        else:
            dirt.is_everything = True

    def is_silent(self, key: ClusterKey) -> bool:
        """Whether a pass over this Cluster may wait for brokers that do not answer.

        For a new Cluster this is unknown, as for all Clusters when an operator becomes leader.
        """
        memory = self._memories.get(key)
        return memory is None or memory.is_silent

    async def reconcile(self, key: ClusterKey) -> Outcome:
        """Reconcile everything that is dirty."""
        memory = await self._present_memory_of(key)
        dirt = memory.dirt
        memory.dirt = Dirt(is_everything=False)
        now = time.monotonic()
        if now >= memory.full_at:
            dirt.is_everything = True
        if now >= memory.look_at:
            dirt.keys |= self._around.register.groups_of(key, needs_target)
            memory.look_at = now + LOOK_SECONDS
        try:
            outcome = await _Pass(self._around, key, memory, dirt).run()
        except BaseException:
            # Also if cancelled: what was dirty stays dirty.
            memory.dirt.keys |= dirt.keys
            memory.dirt.is_everything |= dirt.is_everything
            memory.dirt.is_health |= dirt.is_health
            raise
        if not outcome.is_converged:
            memory.dirt.keys |= dirt.keys | {
                key for key in outcome.unfinished if key[0] != "Cluster"
            }
            memory.dirt.is_health |= any(key[0] == "Cluster" for key in outcome.unfinished)
        if outcome.scope == "everything":
            # The queue adds jitter, so this may come a little before the period is over.
            memory.full_at = time.monotonic() + outcome.resync_seconds * (1 - JITTER)
        if self._around.clusters(key) is None and not self._around.register.of_cluster(key):
            del self._memories[key]
            await self._around.admins.forget(key)
            return replace(outcome, is_gone=True)
        return outcome

    async def _present_memory_of(self, key: ClusterKey) -> _Memory:
        """Return the memory of the present Cluster, without that of a former one by its name."""
        memory, cluster = self._memory_of(key), self._around.clusters(key)
        former = memory.cluster
        if former is not None and _uid_of(cluster) != former.metadata.uid:
            self._around.backend.forget(former)
            await self._around.admins.forget(key)
            memory = self._memories[key] = _Memory(groups=GroupWatch(self._around.workloads))
        memory.cluster = cluster
        return memory

    def _memory_of(self, key: ClusterKey) -> _Memory:
        memory = self._memories.get(key)
        if memory is None:
            memory = self._memories[key] = _Memory(groups=GroupWatch(self._around.workloads))
        return memory


class _Pass:
    """One pass."""

    def __init__(self, around: Surroundings, key: ClusterKey, memory: _Memory, dirt: Dirt) -> None:
        self._around = around
        self._key = key
        self._memory = memory
        self._dirt = dirt
        self._scope = "some"
        if dirt.is_everything or memory.seen is None:
            self._scope = "everything"
        elif dirt.is_health:
            self._scope = "health"
        self._is_first_round = True
        self._now_ms = int(time.time() * 1000)
        #: For what is measured between passes: clocks are set, too.
        self._steady_ms = int(time.monotonic() * 1000)
        self._written = around.clusters(key)
        self._cluster_uid = _uid_of(self._written)
        around.register.settle_former(key, self._cluster_uid)

    async def run(self) -> Outcome:
        began = time.process_time()
        cluster = self._written
        performed: list[Action] = []
        held: list[Failure] = []
        failures: tuple[Failure, ...] = ()
        observed, desired, planned = Observed(), Desired(), Plan()
        versions: dict[Key, Version] = {}
        for _ in range(ROUNDS_MAX):
            cluster, held_back = await self._effective(self._written)
            desired = await self._desired(cluster)
            observed = await self._observe(cluster, desired)
            planned = with_spec_checked(plan(observed, desired), desired, held_back)
            versions = _versions_of(desired)
            mine, held = self._memory.refused.split(
                (action for action in planned.actions if self._is_mine(action)),
                versions,
                time.monotonic(),
            )
            if failures or not (mine or self._is_first_round):
                break
            failures = await self._perform(cluster, mine, desired, observed)
            self._memory.refused.note(mine, failures, versions, time.monotonic())
            performed += mine
            if not mine or any(isinstance(action, MoveReplicas) for action in mine):
                # The next pass sees the moves; this one would request them again.
                break
            self._dirt.keys |= {action.resource for action in mine}
            self._is_first_round = False
        planned = with_failures(planned, (*failures, *held))
        deleted = desired.deleted
        # Read the statuses again: notes that were just written to them must stay.
        desired = await self._desired(cluster)
        self._settle(desired, planned, deleted)
        is_whole = cluster is not None and self._scope != "some"
        unwritten = await self._around.statuses.write(
            observed, desired, planned, versions=versions, is_whole=is_whole
        )
        if self._scope == "everything" and not performed:
            # At rest, comparing costs little compared with observing: count both.
            self._memory.looking_seconds = time.process_time() - began
        return self._outcome(tuple(performed), (*failures, *held), planned, unwritten)

    async def _effective(
        self, cluster: Cluster | None
    ) -> tuple[Cluster | None, tuple[Problem | Waiting, ...]]:
        return (None, ()) if cluster is None else await self._around.backend.effective(cluster)

    async def _desired(self, cluster: Cluster | None) -> Desired:
        """Collect the pass's resources in their present state."""
        is_complete = self._scope != "some" or cluster is None
        register = self._around.register
        found = register.of_cluster(self._key) if is_complete else self._dirty()
        resources = [each for each in found if self._around.serves(each.metadata.namespace)]
        if is_complete:
            resources = [*resources, *register.departed(self._key, self._cluster_uid)]
        if cluster is None:
            return desired_of(None, resources)
        return replace(
            desired_of(cluster, resources),
            is_complete=is_complete,
            selected_namespaces=await self._around.namespaces.selected(cluster),
        )

    def _dirty(self) -> list[Managed]:
        """Return the dirty resources, also deleted ones, and all that describe the same things."""
        register, keys = self._around.register, self._dirt.keys
        departed = register.departed(self._key, self._cluster_uid)
        gone = [each for each in departed if each.key in keys]
        found = {each.key: each for each in register.with_rivals(keys)}
        found |= {rival.key: rival for each in gone for rival in register.describing(each)}
        mine = [each for each in found.values() if cluster_key(each) == self._key]
        return [*sorted(mine, key=age_of), *gone]

    def _settle(self, desired: Desired, planned: Plan, deleted: Collection[Key]) -> None:
        """Remove deleted resources that need no more work.

        `deleted` are those that were deleted when the plan was made: the plan does not cover later
        ones.
        """
        busy = {each.resource for each in planned.actions}
        busy |= {each.resource for each in planned.waiting}
        busy |= {each.resource for each in planned.problems}
        for resource in self._around.register.departed(self._key, self._cluster_uid):
            if (
                resource.key in deleted
                and resource.key not in busy
                and (desired.is_complete or resource.key in self._dirt.keys)
            ):
                self._around.register.settle(resource.key)
        for key in self._dirt.keys:
            if self._around.register.get(key) is None:
                self._around.statuses.forget(key)
                self._memory.groups.forget(key)
                self._memory.refused.forget(key)

    def _is_mine(self, action: Action) -> bool:
        """Leave actions on brokers to passes that observed all brokers."""
        return self._scope != "some" or action.resource[0] in ("Topic", "ConsumerGroup")

    async def _observe(self, cluster: Cluster | None, desired: Desired) -> Observed:
        paused = [each for each in desired.groups if each.is_paused]
        if cluster is None:
            return await self._memory.groups.observe(Observed(), paused, now_ms=self._steady_ms)
        backend = await self._around.backend.observe(cluster)
        servers = self._around.backend.bootstrap_servers(cluster)
        if not servers:
            return await self._memory.groups.observe(backend, paused, now_ms=self._steady_ms)
        await self._drop_dead_connections(backend)
        admin = await self._around.admins.of(self._key, servers)
        now_ms = self._now_ms
        known = self._memory.seen
        fresh: set[Key] | None = None
        if known is None or (self._scope == "everything" and self._is_first_round):
            # Processor time: waiting for brokers that are just starting does not count.
            began = time.process_time()
            seen = await admin.observe(desired, now_ms=now_ms)
            self._memory.looking_seconds = time.process_time() - began
        else:
            if self._scope == "health" and self._is_first_round:
                known = await admin.observe_health(known)
            some = desired_of(cluster, self._dirty())
            fresh = {group.key for group in some.groups}
            seen = await admin.observe_some(some, known, now_ms=now_ms)
        is_reachable = seen.cluster is not None and seen.cluster.is_reachable
        self._memory.seen = seen if is_reachable else None
        self._memory.is_silent = not is_reachable
        merged = merge_observations(backend, seen)
        steady_ms = self._steady_ms
        merged = await self._memory.addresses.observe(merged, admin.advertised, now_ms=steady_ms)
        return await self._memory.groups.observe(merged, desired.groups, fresh, now_ms=steady_ms)

    async def _drop_dead_connections(self, backend: Observed) -> None:
        brokers = backend.cluster.brokers if backend.cluster else ()
        processes = frozenset(broker.process for broker in brokers if broker.process)
        if self._memory.processes is not None and self._memory.processes - processes:
            await self._around.admins.forget(self._key)
        self._memory.processes = processes

    async def _perform(
        self,
        cluster: Cluster | None,
        actions: Sequence[Action],
        desired: Desired,
        observed: Observed,
    ) -> tuple[Failure, ...]:
        failures: list[Failure] = []
        failures += await self._scale([each for each in actions if isinstance(each, ScaleTarget)])
        # A new Cluster with this name has the same addresses, and this plan is not for it.
        is_same = _uid_of(self._around.clusters(self._key)) == self._cluster_uid
        if cluster is not None and is_same:
            failures += await self._act_on_brokers(cluster, actions, desired, observed)
        failed = {id(failure.action): failure for failure in failures}
        tried = {id(action) for action in actions}
        for failure in failures:
            if id(failure.action) not in tried:
                self._around.on_action(failure.action, failure)
        for action in actions:
            self._around.on_action(action, failed.get(id(action)))
        return tuple(failures)

    async def _act_on_brokers(
        self,
        cluster: Cluster,
        actions: Sequence[Action],
        desired: Desired,
        observed: Observed,
    ) -> list[Failure]:
        failures: list[Failure] = []
        others = (*ADMIN_ACTIONS, ScaleTarget)
        on_backend = [action for action in actions if not isinstance(action, others)]
        if on_backend or (self._scope != "some" and self._is_first_round):
            failures += await self._around.backend.perform(on_backend, desired, observed)
        on_brokers = [action for action in actions if isinstance(action, ADMIN_ACTIONS)]
        servers = self._around.backend.bootstrap_servers(cluster)
        if on_brokers and servers:
            admin = await self._around.admins.of(self._key, servers)
            resets = [each for each in on_brokers if isinstance(each, ResetOffsets)]
            unsaid = await self._around.statuses.note_resets(resets, is_done=False)
            asked = _without(on_brokers, unsaid)
            refused = await self._around.admins.apply(admin, asked)
            failures += (*unsaid, *refused)
            done = _without(resets, (*unsaid, *refused))
            failures += await self._around.statuses.note_resets(done, is_done=True)
        return failures

    async def _scale(self, actions: Sequence[ScaleTarget]) -> tuple[Failure, ...]:
        """Scale; the replicas to return to are recorded before, and the record is removed after."""
        if not actions:
            return ()
        pauses = [each for each in actions if each.is_pause]
        unsaid = await self._around.statuses.note_pauses(pauses)
        refused = await self._around.workloads.scale(_without(actions, unsaid))
        done = _without(actions, (*unsaid, *refused))
        late = await self._around.statuses.note_pauses([each for each in done if not each.is_pause])
        self._memory.groups.note_scaled(done, now_ms=self._steady_ms)
        return (*unsaid, *refused, *late)

    def _outcome(
        self,
        performed: tuple[Action, ...],
        failures: tuple[Failure, ...],
        planned: Plan,
        unwritten: frozenset[Key],
    ) -> Outcome:
        left = [action for action in planned.actions if self._is_mine(action)]
        is_converged = not (left or planned.waiting or failures or unwritten)
        memory = self._memory
        memory.waited = 0 if is_converged else memory.waited + 1
        again = memory.looking_seconds / LOOKING_SHARE
        resync = again = min(max(again, RESYNC_SECONDS_MIN), RESYNC_SECONDS_MAX)
        unfinished = {*unwritten, *(each.resource for each in left)}
        unfinished |= {each.resource for each in planned.waiting}
        unfinished |= {each.action.resource for each in failures}
        if self._around.register.groups_of(self._key, needs_target):
            again = min(again, LOOK_SECONDS)
        if not is_converged:
            is_stalled = bool(failures or unwritten) and not planned.waiting
            most = STALLED_GROWTH_MAX if is_stalled else WAITING_GROWTH_MAX
            again = min(again, WAITING_SECONDS * min(2 ** (memory.waited - 1), most))
        return Outcome(
            scope=self._scope,
            performed=performed,
            failures=failures,
            again_seconds=again,
            is_converged=is_converged,
            resync_seconds=resync,
            unfinished=frozenset(unfinished),
        )


def _without(actions: Iterable[_A], failures: Iterable[Failure]) -> list[_A]:
    """Return the actions that did not fail."""
    failed = {id(failure.action) for failure in failures}
    return [each for each in actions if id(each) not in failed]


def _uid_of(cluster: Cluster | None) -> str:
    return cluster.metadata.uid if cluster is not None else ""


def _versions_of(desired: Desired) -> dict[Key, Version]:
    resources: tuple[Topic | ConsumerGroup, ...] = (*desired.topics, *desired.groups)
    return {each.key: version_of(each) for each in resources}


def desired_of(cluster: Cluster | None, resources: Sequence[Managed]) -> Desired:
    """Sort resources into the input of `plan`; those with a deletionTimestamp are deleted. Pure."""
    every: list[Cluster | Managed] = [*resources]
    if cluster is not None:
        every.append(cluster)
    return Desired(
        cluster=cluster,
        topics=tuple(each for each in resources if isinstance(each, Topic)),
        groups=tuple(each for each in resources if isinstance(each, ConsumerGroup)),
        deleted=frozenset(each.key for each in every if each.metadata.deletion_timestamp),
    )


def with_failures(planned: Plan, failures: Sequence[Failure]) -> Plan:
    """Add failures to the conditions: who may succeed later waits, and the others are stalled."""
    waits, problems = [], []
    for failure in failures:
        where, why = failure.action.resource, failure.describe()
        if failure.is_retriable:
            waits.append(Waiting(resource=where, reason=Reason.APPLY_FAILED, message=why))
        else:
            problems.append(Problem(resource=where, reason=Reason.APPLY_FAILED, message=why))
    return replace(
        planned,
        problems=(*problems, *planned.problems),
        waiting=(*waits, *planned.waiting),
    )
