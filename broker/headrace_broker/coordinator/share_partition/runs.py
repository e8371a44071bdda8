"""Runs of offsets that are in the same state: what a share partition is made of.

The runs of one partition follow each other without a gap, from its start offset to its end. A run
is split where a part of it changes, and merged with its neighbours when they are alike again, so
that state costs what differs, not what is in flight.
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
    """What an acknowledgement makes of records, once it is durable."""

    state: RecordState
    count: int
    is_undeliverable: bool = False
    """Whether they are archived for having been delivered as often as they may be."""
    is_rejected: bool = False


@dataclass(slots=True, kw_only=True)
class Run:
    """Offsets `first` to `last`, both in it."""

    first: int
    last: int
    state: RecordState = RecordState.AVAILABLE
    count: int = 0
    """How often they were delivered."""
    member_id: str = NO_MEMBER
    deadline_ms: int = 0
    """When the lock of acquired records times out, in monotonic time."""
    outcome: Outcome | None = None
    """Decided but not durable: nobody may acquire or acknowledge them meanwhile."""
    is_dirty: bool = False
    """Changed since it was last written to `__share_group_state`."""
    is_rejected: bool = False
    """Why it goes to the dead-letter topic; not kept: a new leader goes by the count."""

    @property
    def size(self) -> int:
        """How many offsets there are."""
        return self.last - self.first + 1

    @property
    def can_be_acquired(self) -> bool:
        """Whether a fetch may take them."""
        return self.state is RecordState.AVAILABLE and self.outcome is None

    def is_held_by(self, member_id: str) -> bool:
        """Whether a member has them, and has not said yet what becomes of them."""
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
        """Whether both are in the same state in every regard."""
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
        """Put a run behind the last one."""
        if run.first != self.end_offset:
            raise RuntimeError(f"a run at {run.first} does not follow {self.end_offset}")
        self.items.append(run)

    def within(self, first: int, last: int) -> Iterator[Run]:
        """Yield the runs of the offsets `first` to `last`, split so that no other is in them."""
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
        """Yield the runs that any of the offsets is in, as they are."""
        position = max(0, bisect_right(self.items, first, key=_FIRST) - 1)
        for run in self.items[position:]:
            if run.first > last:
                return
            if run.last >= first:
                yield run

    def _split(self, position: int, first: int) -> int:
        """Part a run so that one begins at `first`; return where that one is."""
        run = self.items[position]
        if not run.first < first <= run.last:
            return position
        self.items.insert(position + 1, replace(run, first=first))
        run.last = first - 1
        return position + 1

    def tidy(self) -> None:
        """Merge neighbours that are alike, and move the start past records that are done with."""
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
        """Forget all below an offset: those records are not in the log any more."""
        if start_offset <= self.start_offset:
            return
        self.items = [run for run in self.items if run.last >= start_offset]
        if self.items:
            self.items[0].first = max(self.items[0].first, start_offset)
        self.start_offset = start_offset
