"""The state of one share partition at its coordinator, and how changes are merged into it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from headrace_broker.coordinator.share_partition.partition import StateBatch
from headrace_broker.coordinator.share_partition.states import RecordState

UNINITIALIZED: Final = -1
"""A start offset that the partition's leader must choose, by share.auto.offset.reset."""
NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class ShareKey:
    """A partition and the group that reads it."""

    group_id: str
    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareState:
    """The state that a share partition's records add up to."""

    snapshot_epoch: int = 0
    state_epoch: int = 0
    leader_epoch: int = NO_EPOCH
    start_offset: int = UNINITIALIZED
    complete_count: int = 0
    """Offsets from the start on whose delivery is complete (KIP-1226)."""
    created_ms: int = 0
    written_ms: int = 0
    batches: tuple[StateBatch, ...] = ()


def overlay(
    before: Iterable[StateBatch], changes: Iterable[StateBatch], start_offset: int
) -> tuple[StateBatch, ...]:
    """Return batches in order without overlaps: the later change wins.

    Everything below the start offset is finished and left out.
    """
    kept = list(before)
    for change in changes:
        kept = [part for batch in kept for part in _outside(batch, change)]
        kept.append(change)
    kept.sort(key=lambda item: item.first_offset)
    merged: list[StateBatch] = []
    for batch in kept:
        if batch.last_offset < start_offset:
            continue
        first = max(batch.first_offset, start_offset)
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.last_offset + 1 == first
            and last.delivery_state == batch.delivery_state
            and last.delivery_count == batch.delivery_count
        ):
            first = merged.pop().first_offset
        merged.append(_part(batch, first, batch.last_offset))
    return tuple(merged)


def without_steps_back(
    before: Iterable[StateBatch], changes: Iterable[StateBatch]
) -> tuple[StateBatch, ...]:
    """Return changes without the offsets whose state would go backwards."""
    known = list(before)
    kept: list[StateBatch] = []
    for change in changes:
        parts = [change]
        for batch in known:
            if _progress(batch) > _progress(change):
                parts = [part for each in parts for part in _outside(each, batch)]
        kept += parts
    return tuple(kept)


def is_done(batch: StateBatch) -> bool:
    """Whether its records are finished."""
    return RecordState(batch.delivery_state).is_final


def _progress(batch: StateBatch) -> int:
    """Return the progress of its records: from 1 on they are never delivered again."""
    return 2 if is_done(batch) else int(batch.delivery_state == RecordState.ARCHIVING)


def _outside(batch: StateBatch, change: StateBatch) -> Iterable[StateBatch]:
    if batch.first_offset < change.first_offset:
        yield _part(batch, batch.first_offset, min(batch.last_offset, change.first_offset - 1))
    if batch.last_offset > change.last_offset:
        yield _part(batch, max(batch.first_offset, change.last_offset + 1), batch.last_offset)


def _part(batch: StateBatch, first: int, last: int) -> StateBatch:
    if (first, last) == (batch.first_offset, batch.last_offset):
        return batch
    return StateBatch(
        first_offset=first,
        last_offset=last,
        delivery_state=batch.delivery_state,
        delivery_count=batch.delivery_count,
    )
