"""Decides one change of one partition: leader, in-sync replicas, ELR and reassignment together.

Every decision about a partition ends here, so that the invariants are enforced in one place: ISR ⊆
replicas, ELR ⊆ replicas, ELR and ISR are disjoint, the leader is in the ISR, an empty ISR has no
leader. (`cancel_reassignment` ensures that a last known leader is a replica.) The rules are those
of KRaft's PartitionChangeBuilder and of KIP-966 (eligible leader replicas, last known leader).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from uuid import UUID

from headrace_broker.metadata.entities import NO_LEADER, PartitionImage
from headrace_broker.metadata.records import PartitionChangeRecord
from headrace_broker.protocol.types import (
    LOST_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    NodeId,
    PartitionIndex,
    TopicId,
)

_Nodes = tuple[NodeId, ...]


class Election(Enum):
    """How to elect a leader if the present one cannot or should not stay."""

    ONLINE = "online"
    """Keep the leader if it may stay; else the first replica that is in sync."""
    PREFERRED = "preferred"
    """Like ONLINE, but the first replica is preferred to the present leader."""
    UNCLEAN = "unclean"
    """Like ONLINE, and as a last resort any live replica: committed records may be lost."""


class LeaderRecoveryState(IntEnum):
    """Whether the leader was elected from in-sync replicas (KIP-704)."""

    RECOVERED = 0
    RECOVERING = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRules:
    """The partition's present rules: who may lead, and how many replicas must be in sync."""

    can_lead: Callable[[NodeId], bool]
    min_isr: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTarget:
    """The wanted change; None leaves a field as it is.

    `lost` are replicas that may have lost records (an unclean shutdown): they are not eligible to
    lead, so they enter neither the ISR nor the ELR.
    """

    isr: Sequence[NodeId] | None = None
    replicas: Sequence[NodeId] | None = None
    adding: Sequence[NodeId] | None = None
    removing: Sequence[NodeId] | None = None
    lost: frozenset[NodeId] = frozenset()
    election: Election = Election.ONLINE
    recovery: LeaderRecoveryState | None = None
    directories: Mapping[NodeId, UUID] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Assignment:
    """A partition's replicas, and what a reassignment still has to do."""

    replicas: _Nodes
    adding: _Nodes
    removing: _Nodes


@dataclass(frozen=True, slots=True)
class _Sync:
    """The leader and the eligible replicas: the part of a partition that elections change."""

    leader: NodeId
    isr: _Nodes
    elr: _Nodes
    is_unclean: bool = False


def change_partition(
    topic_id: TopicId,
    index: PartitionIndex,
    before: PartitionImage,
    target: PartitionTarget,
    rules: PartitionRules,
) -> PartitionChangeRecord | None:
    """Return the record that comes as close to `target` as possible; None if nothing changes.

    A reassignment whose new replicas are all in sync is completed in the same change.
    """
    isr = before.isr if target.isr is None else tuple(target.isr)
    assignment, isr = _settle_assignment(before, target, isr)
    sync = _settle_leader(before, target, assignment.replicas, isr, rules)
    return _record(topic_id, index, before, target, (assignment, sync))


def is_reassigning(partition: PartitionImage) -> bool:
    """Whether a reassignment is in progress."""
    return bool(partition.adding_replicas or partition.removing_replicas)


def _settle_assignment(
    before: PartitionImage, target: PartitionTarget, isr: _Nodes
) -> tuple[_Assignment, _Nodes]:
    replicas = before.replicas if target.replicas is None else tuple(target.replicas)
    adding = before.adding_replicas if target.adding is None else tuple(target.adding)
    removing = before.removing_replicas if target.removing is None else tuple(target.removing)
    if adding or removing:
        kept = without(replicas, removing)
        kept_isr = without(isr, removing)
        if kept and set(kept) <= set(kept_isr):
            return _Assignment(kept, (), ()), kept_isr
    return _Assignment(replicas, adding, removing), isr


def _settle_leader(
    before: PartitionImage,
    target: PartitionTarget,
    replicas: _Nodes,
    isr: _Nodes,
    rules: PartitionRules,
) -> _Sync:
    isr = tuple(node for node in isr if node in replicas and node not in target.lost)
    elr: _Nodes = ()
    if len(isr) < rules.min_isr:
        # No record is committed by fewer than min.insync.replicas, so every replica that was in
        # sync when the ISR fell below that has all committed records (KIP-966).
        once = {*before.isr, *before.eligible_leader_replicas} - {*isr, *target.lost}
        elr = tuple(node for node in replicas if node in once)
    sync = _elect(before, target, replicas, _Sync(before.leader, isr, elr), rules)
    if len(sync.isr) >= rules.min_isr:
        return _Sync(sync.leader, sync.isr, (), sync.is_unclean)
    return sync


def _elect(
    before: PartitionImage,
    target: PartitionTarget,
    replicas: _Nodes,
    sync: _Sync,
    rules: PartitionRules,
) -> _Sync:
    first: _Nodes = (before.leader,)
    if target.election is Election.PREFERRED:
        first = (replicas[0], before.leader)
    # The ELR only replaces an empty ISR.
    eligible = sync.isr or sync.elr
    for node in (*first, *replicas):
        if node in eligible and rules.can_lead(node):
            if node in sync.isr:
                return _Sync(node, sync.isr, sync.elr)
            return _Sync(node, (node,), without(sync.elr, (node,)))
    for node in _last_resort(before, target, replicas, eligible):
        if rules.can_lead(node):
            return _Sync(node, (node,), (), is_unclean=True)
    return _Sync(NO_LEADER, sync.isr, sync.elr)


def _last_resort(
    before: PartitionImage, target: PartitionTarget, replicas: _Nodes, eligible: _Nodes
) -> _Nodes:
    """Return the replicas that may lead if no eligible one is available, the best first.

    With neither ISR nor ELR the last known leader is the best choice, and is elected automatically
    (KIP-966's balanced recovery). Any other replica needs an unclean election.
    """
    last_known = () if eligible else before.last_known_elr[:1]
    unclean = replicas if target.election is Election.UNCLEAN else ()
    return tuple(node for node in (*last_known, *unclean) if node in replicas)


def _record(
    topic_id: TopicId,
    index: PartitionIndex,
    before: PartitionImage,
    target: PartitionTarget,
    after: tuple[_Assignment, _Sync],
) -> PartitionChangeRecord | None:
    assignment, sync = after
    record = PartitionChangeRecord(
        topic_id=topic_id,
        partition_id=index,
        isr=_changed(before.isr, sync.isr),
        replicas=_changed(before.replicas, assignment.replicas),
        removing_replicas=_changed(before.removing_replicas, assignment.removing),
        adding_replicas=_changed(before.adding_replicas, assignment.adding),
        eligible_leader_replicas=_changed(before.eligible_leader_replicas, sync.elr),
        last_known_elr=_changed(before.last_known_elr, _last_known_leader(before, sync)),
        directories=_directories(before, target, assignment.replicas),
    )
    # A removed replica must not continue as a follower in the same leader epoch, and the fetches of
    # one with damaged records no longer count in it.
    is_damaged = any(target.directories.get(node) == LOST_DIRECTORY for node in target.lost)
    if (
        sync.leader != before.leader
        or not set(before.replicas) <= set(assignment.replicas)
        or is_damaged
    ):
        record.leader = sync.leader
    recovery = before.leader_recovery_state if target.recovery is None else target.recovery
    if sync.is_unclean:
        recovery = LeaderRecoveryState.RECOVERING
    if recovery != before.leader_recovery_state:
        record.leader_recovery_state = recovery
    unchanged = PartitionChangeRecord(topic_id=topic_id, partition_id=index)
    return None if record == unchanged else record


def _last_known_leader(before: PartitionImage, sync: _Sync) -> _Nodes:
    if sync.leader != NO_LEADER:
        return ()
    return before.last_known_elr if before.leader == NO_LEADER else (before.leader,)


def _directories(
    before: PartitionImage, target: PartitionTarget, replicas: _Nodes
) -> list[UUID] | None:
    known = dict(zip(before.replicas, before.directories, strict=False)) | dict(target.directories)
    directories = [known.get(node, UNASSIGNED_DIRECTORY) for node in replicas]
    return None if tuple(directories) == before.directories else directories


def _changed(before: _Nodes, after: _Nodes) -> list[int] | None:
    return None if before == after else list[int](after)


def without(nodes: Iterable[NodeId], taken: Iterable[NodeId]) -> tuple[NodeId, ...]:
    """Return `nodes` in their order, less those of `taken`."""
    gone = set(taken)
    return tuple(node for node in nodes if node not in gone)
