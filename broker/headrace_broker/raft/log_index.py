"""The node's index of its log: its bounds, its epochs, and what is durable.

The node maintains this itself and changes it in the step that emits the effect, so that no decision
waits for the disk. The counterparts in Kafka are `KafkaRaftLog.validateOffsetAndEpoch` and
`endOffsetForEpoch`.
"""

from bisect import bisect_right
from dataclasses import dataclass

from headrace_broker.protocol.types import LeaderEpoch, Offset

from .types import EMPTY_LOG, LogState, OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class Diverging:
    """The fetcher's log is not a prefix: the largest epoch not above its own, and its end here."""

    end: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class NeedsSnapshot:
    """The requested offset is no longer in the log (KIP-630)."""

    snapshot_id: OffsetAndEpoch


class LogIndex:
    """Epochs, bounds, durability and snapshots of this replica's log."""

    def __init__(self, log: LogState) -> None:
        self.snapshots = sorted(log.snapshots)
        """Ids, ascending; the one at the log's start is among them unless the log starts at 0."""
        self.start = EMPTY_LOG
        """The log's start; its epoch is that of the last record in the snapshot before it."""
        if log.start_offset:
            at_start = [found for found in self.snapshots if found.offset == log.start_offset]
            if not at_start:
                raise ValueError(f"the log starts at {log.start_offset} without a snapshot there")
            self.start = at_start[-1]
        latest = self.latest_snapshot
        if latest is not None and log.end_offset < latest.offset:
            raise ValueError(f"the log ends at {log.end_offset}, before its snapshot {latest}")
        self.end_offset = log.end_offset
        self.flushed_end = log.end_offset
        """Records below survive a crash of the machine."""
        self._reset_epochs()
        for epoch, start in log.epochs:
            self._note_epoch(epoch, Offset(max(start, self.start.offset)))
        self._tickets: dict[int, Offset] = {}
        self._last_ticket = 0

    @property
    def end(self) -> OffsetAndEpoch:
        """The end offset and the last record's epoch: what elections compare."""
        return OffsetAndEpoch(self.end_offset, self._epochs[-1])

    @property
    def latest_snapshot(self) -> OffsetAndEpoch | None:
        """The newest snapshot."""
        return self.snapshots[-1] if self.snapshots else None

    def _reset_epochs(self) -> None:
        # The first entry stands for everything before the log, and always stays.
        self._epochs = [self.start.epoch]
        self._starts = [self.start.offset]

    def _note_epoch(self, epoch: LeaderEpoch, start_offset: Offset) -> None:
        if epoch > self._epochs[-1]:
            self._epochs.append(epoch)
            self._starts.append(start_offset)

    def append(self, epoch: LeaderEpoch, next_offset: Offset) -> None:
        """Record the epoch of the records from the end up to an offset; epochs never go back."""
        if epoch < self._epochs[-1] or next_offset <= self.end_offset:
            raise ValueError(f"epoch {epoch} up to {next_offset} does not follow {self.end}")
        self._note_epoch(epoch, self.end_offset)
        self.end_offset = next_offset

    def truncate(self, end_offset: Offset) -> None:
        """Remove the records at or above an offset. An fsync in flight still covers the others."""
        while len(self._starts) > 1 and self._starts[-1] >= end_offset:
            self._starts.pop()
            self._epochs.pop()
        self.end_offset = end_offset
        self.flushed_end = min(self.flushed_end, end_offset)
        self._tickets = {ticket: min(end, end_offset) for ticket, end in self._tickets.items()}

    def restart(self, snapshot_id: OffsetAndEpoch) -> None:
        """Start again at a snapshot that replaced the whole log."""
        self.snapshots = [snapshot_id]
        self.start = snapshot_id
        self.end_offset = self.flushed_end = snapshot_id.offset
        self._reset_epochs()
        self._tickets = {}

    def trim(self, start: OffsetAndEpoch) -> None:
        """Let the log begin at one of its snapshots."""
        end = self.end
        entries = list(zip(self._epochs, self._starts, strict=True))
        self.start = start
        self.snapshots = [found for found in self.snapshots if found >= start]
        self._reset_epochs()
        for epoch, offset in entries:
            self._note_epoch(epoch, Offset(max(offset, start.offset)))
        if self.end != end:
            raise ValueError(f"the snapshot {start} is not of this log, which ends at {end}")

    def request_flush(self) -> int:
        """Return the ticket of an fsync that covers the present log."""
        self._last_ticket += 1
        self._tickets[self._last_ticket] = self.end_offset
        return self._last_ticket

    def flushed(self, ticket: int) -> bool:
        """Record a ticket's fsync, and all before it, as done; return whether more is durable."""
        ends = [self._tickets.pop(done) for done in list(self._tickets) if done <= ticket]
        before = self.flushed_end
        self.flushed_end = max([before, *ends])
        return self.flushed_end > before

    @property
    def is_flushed(self) -> bool:
        """Whether all of the log is durable."""
        return self.flushed_end == self.end_offset

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> OffsetAndEpoch:
        """Return the largest epoch not above the asked one and the offset where it ends."""
        above = bisect_right(self._epochs, epoch)
        if above == 0:
            return self.start
        end = self.end_offset if above == len(self._epochs) else self._starts[above]
        return OffsetAndEpoch(end, self._epochs[above - 1])

    def epoch_before(self, end_offset: Offset) -> LeaderEpoch:
        """Return the epoch of the record before an offset of this log."""
        return self._epochs[max(bisect_right(self._starts, end_offset - 1) - 1, 0)]

    def check(self, end: OffsetAndEpoch) -> Diverging | NeedsSnapshot | None:
        """Compare a fetcher's end with this log; None: it may continue from there (KIP-595)."""
        latest = self.latest_snapshot
        is_behind = end.offset < self.start.offset or end.epoch < self.start.epoch
        is_other = end.offset == self.start.offset and end.epoch != self.start.epoch
        if latest is not None and self.start.offset and (is_behind or is_other):
            return NeedsSnapshot(latest)
        found = self.end_offset_for_epoch(end.epoch)
        if found.epoch != end.epoch or found.offset < end.offset:
            return Diverging(found)
        return None

    def truncation_point(self, diverging: OffsetAndEpoch) -> Offset:
        """Return where this log is truncated after a leader's DivergingEpoch (KIP-595, KIP-279)."""
        found = self.end_offset_for_epoch(diverging.epoch)
        if found.epoch == diverging.epoch:
            return min(found.offset, diverging.offset)
        return found.offset
