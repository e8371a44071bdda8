"""Slowly reads everything that is on disk, to find damage while good copies exist.

Owns how much one step reads. `begin` and `finish` belong to the log's thread; `run` may run in
another one. Suspected damage is checked again on the log's thread, where nothing changes meanwhile.
"""

from dataclasses import dataclass
from typing import Final, Self

from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.segments.batch_check import BatchWindow
from headrace_broker.log.segments.segment import LogSegment

STEP_BYTES: Final = 1 << 20


@dataclass(slots=True)
class ScrubTotals:
    """The work of one log directory's scrub since this process started."""

    checked_bytes: int = 0
    damage: int = 0
    """Damaged ranges that the scrub found before a reader did."""
    passes: int = 0
    """Completed passes over all logs."""


@dataclass(kw_only=True, slots=True)
class ScrubStep:
    """About `STEP_BYTES` of one segment. `position` and `next_offset` say where the next begins."""

    log: PartitionLog
    segment: LogSegment
    position: int
    next_offset: int
    size: int
    limit: int
    truncations: int
    epochs: tuple[tuple[int, int], ...]
    is_suspicious: bool = False
    checked_bytes: int = 0

    @classmethod
    def begin(cls, log: PartitionLog, segment: LogSegment, position: int, offset: int) -> Self:
        """Start at a batch's position in a segment."""
        following = log.segments.after(segment)
        return cls(
            log=log,
            segment=segment,
            position=position,
            next_offset=offset,
            size=segment.size,
            limit=log.log_end_offset if following is None else following.base_offset,
            truncations=log.truncations,
            epochs=tuple(log.leader_epochs.entries),
        )

    def run(self) -> None:
        """Read from the disk and check; raises LogDirectoryFailure."""
        start = self.position
        size = min(self.size, start + STEP_BYTES)
        self.segment.drop_cached(start, STEP_BYTES)
        window = BatchWindow(self.segment, self.size)
        while self.position < size:
            header, _ = window.check(self.position, self.next_offset, self.limit)
            if header is None or self._epoch_of(header.base_offset) not in (
                -1,
                header.partition_leader_epoch,
            ):
                self.is_suspicious = True
                break
            self.position += header.size_bytes
            self.next_offset = header.last_offset + 1
        self.checked_bytes = self.position - start

    def _epoch_of(self, offset: int) -> int:
        return next((epoch for epoch, start in reversed(self.epochs) if start <= offset), -1)

    def finish(self) -> bool | None:
        """Apply the result: whether there is new damage; None if the log has changed."""
        log, segment = self.log, self.segment
        if (
            log.is_abandoned
            or log.truncations != self.truncations
            or not log.segments.holds(segment)
        ):
            return None
        if not self.is_suspicious:
            return False
        before = segment.damages
        behind = segment.behind_damage(self.position)
        if behind == self.position:
            log.look_for_damage(segment, self.position)
            behind = segment.behind_damage(self.position)
        # A batch with a wrong offset ends where the intact batch begins that it overlaps.
        ends = [each.next_offset for each in segment.damages if each.end == behind]
        if not ends:
            return None  # the records are whole; the next pass checks again
        self.position = behind
        self.next_offset = max(ends)
        self.is_suspicious = False
        return segment.damages != before
