"""Carries out an approved plan, one step at a time: pure, from the image alone.

The state of each move is derived from its partition, so a new controller continues where the last
one stopped, without any memory of its own. A move begins only from the replicas that it was planned
from: if another client has changed them meanwhile, it is skipped.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from headrace_broker.metadata.configs.balance_settings import (
    PlannedMove,
    PlanState,
    StoredPlan,
    is_piece,
    stored_plan,
)
from headrace_broker.metadata.cordons import placeable_brokers
from headrace_broker.metadata.decision import MetadataDecision
from headrace_broker.metadata.entities import NO_LEADER
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.partition_change import (
    Election,
    PartitionTarget,
    is_reassigning,
    without,
)
from headrace_broker.metadata.partitions import TopicPolicy
from headrace_broker.metadata.reassignments import cancel_reassignment, reassignment_target
from headrace_broker.metadata.records import ConfigRecord, MetadataRecord, PartitionChangeRecord
from headrace_broker.metadata.replication_rules import ReplicationRules
from headrace_broker.metadata.settings.broker_settings import (
    BALANCE_LAST,
    BALANCE_PLAN,
    BALANCE_STATE,
)
from headrace_broker.metadata.settings.resources import broker_resource
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.types import NodeId

#: Changes of one batch: moves that copy nothing, and elections.
_CHANGES_PER_BATCH_MAX = 1000


class MoveState(StrEnum):
    """The state of a move."""

    PENDING = "pending"
    BLOCKED = "blocked"
    """It waits: a broker that it needs is down or cordoned, or the partition has no leader."""
    MOVING = "moving"
    ELECTING = "electing"
    """The replicas are in place; the first of them has yet to become leader."""
    DONE = "done"
    SKIPPED = "skipped"
    """The partition is gone, or another client has changed its replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProgress:
    """A plan and the state of each of its moves, in the plan's order."""

    plan: StoredPlan
    states: tuple[MoveState, ...]

    def count(self, *states: MoveState) -> int:
        """Return how many moves are in these states."""
        return sum(state in states for state in self.states)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self.count(MoveState.DONE, MoveState.SKIPPED) == len(self.states)

    @property
    def moves_left(self) -> Iterator[PlannedMove]:
        """The moves that still have to copy."""
        for move, state in zip(self.plan.moves, self.states, strict=True):
            if state in {MoveState.PENDING, MoveState.BLOCKED, MoveState.MOVING}:
                yield move

    @property
    def bytes_left(self) -> int:
        """The bytes still to be copied, by the sizes when the plan was made."""
        return sum(move.size_bytes for move in self.moves_left)


def progress_of(image: MetadataImage) -> PlanProgress | None:
    """Return the plan in progress and the states of its moves, or None."""
    plan = stored_plan(image)
    if plan is None:
        return None
    able = {broker.node_id for broker in placeable_brokers(image)}
    active = {broker.node_id for broker in image.active_brokers()}
    states = tuple(_state(image, move, able, active) for move in plan.moves)
    return PlanProgress(plan=plan, states=states)


def _state(
    image: MetadataImage, move: PlannedMove, able: set[NodeId], active: set[NodeId]
) -> MoveState:
    partition = image.partition(move.topic, move.partition)
    if partition is None:
        return MoveState.SKIPPED
    if is_reassigning(partition):
        target = without(partition.replicas, partition.removing_replicas)
        return MoveState.MOVING if target == move.after else MoveState.SKIPPED
    if partition.replicas == move.after:
        first = move.after[0]
        can_lead = first in active and first in partition.isr
        return MoveState.ELECTING if can_lead and partition.leader != first else MoveState.DONE
    if partition.replicas != move.before:
        return MoveState.SKIPPED
    new = set(without(move.after, partition.replicas))
    return MoveState.PENDING if new <= able and partition.leader != NO_LEADER else MoveState.BLOCKED


def decide_advance_plan(
    image: MetadataImage, policy: TopicPolicy
) -> MetadataDecision[PlanProgress | None]:
    """Decide the plan's next steps, up to its limit; return its state before them.

    A paused plan begins no moves, and those in progress continue. A cancelled plan returns moving
    replicas to where they were. A finished plan is removed, and its result is recorded.
    """
    try:
        progress = progress_of(image)
    except ValueError as error:
        # Written by another version: neither stop the controller nor keep the plan.
        records = _end(image, f"unreadable: {error}")
        return MetadataDecision(records=records, response=None)
    if progress is None:
        return MetadataDecision(records=[], response=None)
    rules = ReplicationRules(image, policy)
    records = []
    if progress.plan.state is PlanState.CANCELLED:
        records = [*_cancelled(rules, progress), *_end(image, _outcome(progress, "cancelled"))]
    elif progress.plan.state is PlanState.RUNNING:
        if progress.is_over:
            records = _end(image, _outcome(progress, "done"))
        else:
            records = list(_steps(rules, progress))
    return MetadataDecision(records=records, response=progress)


def _steps(rules: ReplicationRules, progress: PlanProgress) -> Iterator[MetadataRecord]:
    room = progress.plan.concurrent_moves - progress.count(MoveState.MOVING)
    made = 0
    for move, state in zip(progress.plan.moves, progress.states, strict=True):
        if made == _CHANGES_PER_BATCH_MAX:
            return
        record = None
        if state is MoveState.ELECTING:
            record = _change(rules, move, PartitionTarget(election=Election.PREFERRED))
        elif state is MoveState.PENDING and (room > 0 or not move.is_copy):
            room -= move.is_copy
            partition = rules.image.topics[move.topic].partitions[move.partition]
            record = _change(rules, move, reassignment_target(partition, move.after))
        if record is not None:
            made += 1
            yield record


def _change(
    rules: ReplicationRules, move: PlannedMove, target: PartitionTarget
) -> PartitionChangeRecord | None:
    return rules.change(rules.image.topics[move.topic], move.partition, target)


def _cancelled(rules: ReplicationRules, progress: PlanProgress) -> Iterator[MetadataRecord]:
    for move, state in zip(progress.plan.moves, progress.states, strict=True):
        if state is not MoveState.MOVING:
            continue
        try:
            record = cancel_reassignment(rules, rules.image.topics[move.topic], move.partition)
        except ApiError:
            # Only the new replicas are in sync: the move must be completed.
            continue
        if record is not None:
            yield record


def _outcome(progress: PlanProgress, what: str) -> str:
    done = progress.count(MoveState.DONE, MoveState.ELECTING)
    skipped = progress.count(MoveState.SKIPPED)
    total = len(progress.states)
    return f"{progress.plan.hash} {what}: {done} of {total} moves made, {skipped} skipped"


def _end(image: MetadataImage, outcome: str) -> list[MetadataRecord]:
    resource = broker_resource(None)
    gone = [
        name
        for name in image.config(resource)
        if name in {BALANCE_PLAN, BALANCE_STATE} or is_piece(name)
    ]
    values: dict[str, str | None] = {**dict.fromkeys(gone), BALANCE_LAST: outcome}
    return [
        ConfigRecord(
            resource_type=resource.type, resource_name=resource.name, name=name, value=value
        )
        for name, value in values.items()
    ]
