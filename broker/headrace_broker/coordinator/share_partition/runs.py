"""Runs of offsets that are in the same state: the elements of a share partition.

The runs of one partition are contiguous, from its start offset to its end. A run is split when a
part of it changes, and merged with its neighbours when they are equal again, so that memory depends
on the number of differences and not on the records in flight.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

from headrace_broker.coordinator.share_partition.states import RECORD_TRANSITIONS, RecordState

NO_MEMBER = ""
_FIRST = attrgetter("first")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of an acknowledgement, once it is durable."""

    state: RecordState
    count: int
    is_undeliverable: bool = False
    """Whether records are archived because they reached the delivery limit."""
    is_rejected: bool = False


@dataclass(slots=True, kw_only=True)
class Run:
    """Offsets `first` to `last`, inclusive."""

    first: int
    last: int
    state: RecordState = RecordState.AVAILABLE
    count: int = 0
    """The delivery count."""
    member_id: str = NO_MEMBER
    deadline_ms: int = 0
    """When the lock of acquired records expires, in monotonic time."""
    outcome: Outcome | None = None
    """Decided but not durable: no member may acquire or acknowledge these records meanwhile."""
    is_dirty: bool = False
    """Whether it has changed since it was last written to `__share_group_state`."""
    is_rejected: bool = False
    """Why it is a dead letter; not persisted: a new leader decides by the delivery count."""

    @property
    def size(self) -> int:
        """How many offsets there are."""
        return self.last - self.first + 1

    @property
    def can_be_acquired(self) -> bool:
        """Whether a fetch may acquire these records."""
        return self.state is RecordState.AVAILABLE and self.outcome is None

    def is_held_by(self, member_id: str) -> bool:
        """Whether a member has acquired these records and not acknowledged them yet."""
        return (
            self.state is RecordState.ACQUIRED
            and self.member_id == member_id
            and self.outcome is None
        )

    def move(self, state: RecordState) -> None:
        """Change the state; an illegal move is a bug and raises RuntimeError."""
        if state not in RECORD_TRANSITIONS[self.state]:
            raise RuntimeError(f"records {self.first}-{self.last}: {self.state.name}→{state.name}")
        self.state = state
        if state is not RecordState.ACQUIRED:
            self.member_id, self.deadline_ms = NO_MEMBER, 0

    def is_like(self, other: "Run") -> bool:
        """Whether both are equal in every field but the offsets."""
        return (
            self.state is other.state
            and self.count == other.count
            and self.member_id == other.member_id
            and self.deadline_ms == other.deadline_ms
            and self.outcome is other.outcome
            and self.is_dirty == other.is_dirty
            and self.is_rejected == other.is_rejected
        )


class Runs:
    """All runs of a share partition, in order."""

    def __init__(self, start_offset: int) -> None:
        self.items: list[Run] = []
        self.start_offset = start_offset

    @property
    def end_offset(self) -> int:
        """The offset behind the last run."""
        return self.items[-1].last + 1 if self.items else self.start_offset

    def add(self, run: Run) -> None:
        """Append a run."""
        if run.first != self.end_offset:
            raise RuntimeError(f"a run at {run.first} does not follow {self.end_offset}")
        self.items.append(run)

    def within(self, first: int, last: int) -> Iterator[Run]:
        """Yield the runs of the offsets `first` to `last`, split to have no other offsets."""
        position = bisect_right(self.items, first, key=_FIRST) - 1
        position = self._split(position, first) if position >= 0 else 0
        while position < len(self.items) and self.items[position].first <= last:
            run = self.items[position]
            if run.last < first:
                position += 1
                continue
            if run.last > last:
                self._split(position, last + 1)
            yield run
            position += 1

    def overlapping(self, first: int, last: int) -> Iterator[Run]:
        """Yield the runs that contain any of the offsets, unsplit."""
        position = max(0, bisect_right(self.items, first, key=_FIRST) - 1)
        for run in self.items[position:]:
            if run.first > last:
                return
            if run.last >= first:
                yield run

    def _split(self, position: int, first: int) -> int:
        """Split a run so that one begins at `first`; return its position."""
        run = self.items[position]
        if not run.first < first <= run.last:
            return position
        self.items.insert(position + 1, replace(run, first=first))
        run.last = first - 1
        return position + 1

    def tidy(self) -> None:
        """Merge equal neighbours, and move the start past finished records."""
        merged: list[Run] = []
        for run in self.items:
            if not merged and run.state.is_final:
                self.start_offset = run.last + 1
            elif merged and merged[-1].is_like(run):
                merged[-1].last = run.last
            else:
                merged.append(run)
        self.items = merged

    def cut(self, start_offset: int) -> None:
        """Remove everything below an offset: those records are no longer in the log."""
        if start_offset <= self.start_offset:
            return
        self.items = [run for run in self.items if run.last >= start_offset]
        if self.items:
            self.items[0].first = max(self.items[0].first, start_offset)
        self.start_offset = start_offset
