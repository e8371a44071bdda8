"""The state of one partition of `__share_group_state`, and the decisions about it.

Leader epochs fence a partition's former leaders, state epochs fence earlier states of a group.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from headrace_broker.coordinator.share_partition.partition import StateBatch
from headrace_broker.coordinator.share_state.records import (
    ShareRecord,
    SnapshotRecord,
    UpdateRecord,
)
from headrace_broker.coordinator.share_state.state import (
    NO_EPOCH,
    UNINITIALIZED,
    ShareKey,
    ShareState,
    is_done,
    overlay,
    without_steps_back,
)
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import TimestampMs

UPDATES_PER_SNAPSHOT: Final = 500


@dataclass(slots=True, kw_only=True)
class ShareStateShard:
    """Share partitions of one partition of the topic; one driver owns it."""

    states: dict[ShareKey, ShareState] = field(default_factory=dict)
    update_counts: dict[ShareKey, int] = field(default_factory=dict)
    """The number of updates since each share partition's snapshot."""
    snapshot_offsets: dict[ShareKey, int] = field(default_factory=dict)
    """The offset of each share partition's latest snapshot; records below the least are unused."""

    def needed_from(self, end_offset: int) -> int:
        """Return the offset below which the log may be deleted."""
        return min(self.snapshot_offsets.values(), default=end_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """A change from a partition's leader; -1 for an unchanged start offset."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    complete_count: int
    batches: tuple[StateBatch, ...] = ()


def replay(shard: ShareStateShard, record: ShareRecord, offset: int | None = None) -> None:
    """Apply one record; `offset` is its place in the log, if known.

    An update is skipped if its snapshot is missing, or has another epoch.
    """
    key = record.key
    if isinstance(record, SnapshotRecord):
        shard.update_counts.pop(key, None)
        if record.state is None:
            shard.states.pop(key, None)
            shard.snapshot_offsets.pop(key, None)
            return
        shard.states[key] = record.state
        if offset is not None:
            shard.snapshot_offsets[key] = offset
        return
    state = shard.states.get(key)
    if state is None or state.snapshot_epoch != record.snapshot_epoch:
        return
    start = state.start_offset if record.start_offset == NO_EPOCH else record.start_offset
    shard.states[key] = replace(
        state,
        leader_epoch=state.leader_epoch if record.leader_epoch == NO_EPOCH else record.leader_epoch,
        start_offset=start,
        complete_count=record.complete_count,
        batches=overlay(state.batches, record.batches, start),
    )
    shard.update_counts[key] = shard.update_counts.get(key, 0) + 1


def decide_initialize(
    shard: ShareStateShard, key: ShareKey, state_epoch: int, start_offset: int, now_ms: TimestampMs
) -> list[ShareRecord]:
    """Initialize a share partition's state. Raises FENCED_STATE_EPOCH.

    An administrator passes the start offset. A group passes none, and only wants the state to
    exist: its request may arrive twice, and the second must not undo what members have done since.
    """
    state = shard.states.get(key)
    if state is not None and state.state_epoch > state_epoch:
        raise _fenced_state(state, state_epoch)
    if state is not None and start_offset == UNINITIALIZED:
        return []
    fresh = ShareState(
        snapshot_epoch=0 if state is None else state.snapshot_epoch + 1,
        state_epoch=state_epoch,
        start_offset=start_offset,
        created_ms=now_ms,
        written_ms=now_ms,
    )
    return [SnapshotRecord(key=key, state=fresh)]


def decide_read(
    shard: ShareStateShard, key: ShareKey, leader_epoch: int, now_ms: TimestampMs
) -> list[ShareRecord]:
    """Let a new leader read; former leaders are fenced from then on. Raises FENCED_LEADER_EPOCH.

    Its epoch is recorded where there is no state, too: otherwise a coordinator that was replaced
    and does not know would say so at once, of what its successor keeps; and a former leader could
    still begin the state.
    """
    state = shard.states.get(key)
    if leader_epoch == (NO_EPOCH if state is None else state.leader_epoch):
        return []
    if state is None:
        fresh = ShareState(leader_epoch=leader_epoch, created_ms=now_ms, written_ms=now_ms)
        return [SnapshotRecord(key=key, state=fresh)]
    _check_leader(state, leader_epoch)
    return [
        UpdateRecord(
            key=key,
            snapshot_epoch=state.snapshot_epoch,
            leader_epoch=leader_epoch,
            start_offset=NO_EPOCH,
            complete_count=state.complete_count,
        )
    ]


def decide_write(
    shard: ShareStateShard,
    key: ShareKey,
    change: StateChange,
    now_ms: TimestampMs,
    updates_max: int = UPDATES_PER_SNAPSHOT,
) -> list[ShareRecord]:
    """Record a leader's change: as an update, or as a snapshot after a number of updates.

    Raises FENCED_LEADER_EPOCH or FENCED_STATE_EPOCH.
    """
    state = shard.states.get(key)
    if state is None:
        fresh = ShareState(
            state_epoch=change.state_epoch,
            leader_epoch=change.leader_epoch,
            start_offset=change.start_offset,
            complete_count=change.complete_count,
            created_ms=now_ms,
            written_ms=now_ms,
            batches=overlay((), change.batches, change.start_offset),
        )
        return [SnapshotRecord(key=key, state=fresh)]
    _check_leader(state, change.leader_epoch)
    if state.state_epoch > change.state_epoch:
        raise _fenced_state(state, change.state_epoch)
    if change.state_epoch == state.state_epoch:
        change = _forward(state, change)
    if change.state_epoch == state.state_epoch and shard.update_counts.get(key, 0) < updates_max:
        return [
            UpdateRecord(
                key=key,
                snapshot_epoch=state.snapshot_epoch,
                leader_epoch=change.leader_epoch,
                start_offset=change.start_offset,
                complete_count=change.complete_count,
                batches=overlay((), change.batches, change.start_offset),
            )
        ]
    start = state.start_offset if change.start_offset == UNINITIALIZED else change.start_offset
    taken = replace(
        state,
        snapshot_epoch=state.snapshot_epoch + 1,
        state_epoch=change.state_epoch,
        leader_epoch=change.leader_epoch,
        start_offset=start,
        complete_count=change.complete_count,
        written_ms=now_ms,
        batches=overlay(state.batches, change.batches, start),
    )
    return [SnapshotRecord(key=key, state=taken)]


def _forward(state: ShareState, change: StateChange) -> StateChange:
    """Return a change without finished records: they stay finished within a state epoch.

    A leader may believe that a write failed when it did not, and a repeated write may arrive after
    later ones. Neither may undo an acknowledgement that was answered with success.
    """
    batches = without_steps_back(state.batches, change.batches)
    moves_on = change.start_offset == UNINITIALIZED or change.start_offset >= state.start_offset
    if moves_on and batches == change.batches:
        return change
    start = max(state.start_offset, change.start_offset)
    done = (item for item in overlay(state.batches, batches, start) if is_done(item))
    return replace(
        change,
        start_offset=start,
        complete_count=sum(item.last_offset - item.first_offset + 1 for item in done),
        batches=batches,
    )


def decide_cold_snapshots(
    shard: ShareStateShard, now_ms: TimestampMs, age_ms: int
) -> list[ShareRecord]:
    """Write old snapshots again, so that the log before them can be deleted."""
    return [
        SnapshotRecord(
            key=key,
            state=replace(state, snapshot_epoch=state.snapshot_epoch + 1, written_ms=now_ms),
        )
        for key, state in shard.states.items()
        if now_ms - state.written_ms >= age_ms
    ]


def decide_delete(key: ShareKey) -> list[ShareRecord]:
    """Delete a share partition's state.

    Missing state is deleted, too: a coordinator that was replaced and does not know cannot commit
    that, and its successor may have what is missing here.
    """
    return [SnapshotRecord(key=key, state=None)]


def decide_topics_deleted(
    shard: ShareStateShard, topic_ids: Collection[UUID]
) -> Iterator[ShareRecord]:
    """Delete the state of deleted topics."""
    for key in shard.states:
        if key.topic_id in topic_ids:
            yield SnapshotRecord(key=key, state=None)


def _check_leader(state: ShareState, leader_epoch: int) -> None:
    if state.leader_epoch > leader_epoch:
        raise ApiError(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"The leader epoch {leader_epoch} is older than {state.leader_epoch}.",
        )


def _fenced_state(state: ShareState, state_epoch: int) -> ApiError:
    return ApiError(
        ErrorCode.FENCED_STATE_EPOCH,
        f"The state epoch {state_epoch} is older than {state.state_epoch}.",
    )
