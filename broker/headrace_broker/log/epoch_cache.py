"""`LeaderEpochCache`: where each leader epoch began in this log (KIP-101).

Owns the `leader-epoch-checkpoint` file. After a change of leader, truncation uses this cache and
never the high watermark.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from headrace_broker.log.checkpoints import read_checkpoint, write_checkpoint
from headrace_broker.log.descriptor_shortage import OutOfDescriptorsError
from headrace_broker.log.segments.segment import SuspectedDamage

CHECKPOINT_NAME: Final = "leader-epoch-checkpoint"
UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class LeaderEpochCache:
    """Epochs and their start offsets, both strictly ascending."""

    __slots__ = (
        "_epochs",
        "_is_unwritten",
        "_log_end_offset",
        "_starts",
        "is_missing",
        "latest",
        "path",
    )

    def __init__(self, directory: Path, log_end_offset: Callable[[], int]) -> None:
        self._log_end_offset = log_end_offset
        self.path = directory / CHECKPOINT_NAME
        found = read_checkpoint(self.path, lambda words: (int(words[0]), int(words[1])))
        self.is_missing = found is None
        """Whether the file has to be rebuilt from the batches."""
        entries = found or []
        self._epochs = [epoch for epoch, _ in entries]
        self._starts = [start for _, start in entries]
        self.latest = self._epochs[-1] if entries else UNDEFINED_EPOCH
        self._is_unwritten = False

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), ascending."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` writes from `start_offset` on; an epoch already noted is kept."""
        if self._note(epoch, start_offset):
            self._write_soon()

    def recover(self, recovered_from: int, batches: Iterable[tuple[int, int]]) -> None:
        """Record the epochs of the batches from `recovered_from` on: (epoch, base offset) of each.

        Known epochs stay unless a batch contradicts them. Compaction may have removed everything
        that an epoch wrote, and a follower whose log ends in that epoch would truncate committed
        records.

        The file is written once and durably. Batches below the recovery point are not read again,
        so a file that a power cut left incomplete would be taken for the whole.
        """
        before = self.entries
        noted = deque(entry for entry in before if entry[1] >= recovered_from)
        self._cut(recovered_from)
        try:
            for epoch, start_offset in batches:
                while noted and noted[0][1] <= start_offset:
                    noted_epoch, noted_start = noted.popleft()
                    if noted_epoch <= epoch:
                        self._note(noted_epoch, noted_start)
                self._note(epoch, start_offset)
        except SuspectedDamage:
            self._cut(0)
            for entry in before:
                self._note(*entry)
            raise
        if self.entries != before:
            self._write(durable=True)

    def extend_back(self, log_start_offset: int, batches: Iterable[tuple[int, int]]) -> None:
        """Record the epochs of the batches below the first one known: (epoch, base offset) of each.

        `batches` begin at the log's start. A kill may bring a former log start back, and this file
        begin at a later one. An epoch would then seem to begin above its first batches, and a
        follower would keep what its leader does not have.
        """
        known_from = self._starts[0] if self._starts else self._log_end_offset()
        if log_start_offset >= known_from:
            return
        first_known = self._epochs[0] if self._epochs else None
        epochs: list[int] = []
        starts: list[int] = []
        for epoch, base_offset in batches:
            if base_offset >= known_from or (first_known is not None and epoch > first_known):
                break
            if epoch > (epochs[-1] if epochs else UNDEFINED_EPOCH):
                epochs.append(epoch)
                starts.append(max(base_offset, log_start_offset))
        if not epochs:
            return
        if epochs[-1] == first_known:
            del self._epochs[0], self._starts[0]
        self._epochs[:0], self._starts[:0] = epochs, starts
        self.latest = self._epochs[-1]
        self._write(durable=True)

    def _note(self, epoch: int, start_offset: int) -> bool:
        if epoch < 0 or epoch <= self.latest:
            return False
        # An epoch that wrote nothing leaves no entry: the new epoch begins at the same offset.
        self._cut(start_offset)
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch
        return True

    def _cut(self, end_offset: int) -> None:
        while self._starts and self._starts[-1] >= end_offset:
            self._starts.pop()
            self._epochs.pop()
        self.latest = self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """Return (largest epoch not above the asked one, offset where it ended), KIP-279.

        (-1, -1) when that is not known.
        """
        if epoch == UNDEFINED_EPOCH:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest:
            return epoch, self._log_end_offset()
        above = bisect_right(self._epochs, epoch)
        if above == len(self._epochs):
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if above == 0:
            # An epoch older than all known ones ended where the first known one begins.
            return epoch, self._starts[0]
        return self._epochs[above - 1], self._starts[above]

    def epoch_for_offset(self, offset: int) -> int:
        """Return the leader epoch that wrote an offset, or -1."""
        found = bisect_right(self._starts, offset) - 1
        return self._epochs[found] if found >= 0 else UNDEFINED_EPOCH

    def start_above(self, epoch: int) -> int | None:
        """Return where the first epoch above one began, None if there is none."""
        above = bisect_right(self._epochs, epoch)
        return self._starts[above] if above < len(self._starts) else None

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that began at or after `end_offset`, durably.

        The next append may begin below them, and `recover` trusts what it finds.
        """
        before = len(self._starts)
        self._cut(end_offset)
        if len(self._starts) < before:
            self._write(durable=True)

    def truncate_from_start(self, start_offset: int) -> None:
        """Let the epoch that holds `start_offset` begin there, and remove the earlier ones."""
        found = bisect_right(self._starts, start_offset) - 1
        if found < 0 or (found == 0 and self._starts[0] == start_offset):
            return
        del self._epochs[:found], self._starts[:found]
        self._starts[0] = start_offset
        self._write_soon()

    def take_over(self, other: "LeaderEpochCache") -> None:
        """Copy another log's epochs, durably."""
        if self.entries != other.entries:
            self._epochs = [epoch for epoch, _ in other.entries]
            self._starts = [start for _, start in other.entries]
            self.latest = other.latest
            self._write(durable=True)

    def clear(self) -> None:
        """Remove every epoch, durably."""
        self._cut(0)
        self._write(durable=True)

    def write_pending(self) -> None:
        """Write what is not in the file yet. Raises OutOfDescriptorsError."""
        if self._is_unwritten:
            self._write(durable=False)

    def _write_soon(self) -> None:
        # Made durable by the next flush, or before compaction removes batches. If a crash comes
        # first, recovery reads the epochs from the batches. (Kafka calls fsync for each new epoch.)
        # So a file that is not opened for lack of a descriptor may be written by then, too.
        try:
            self._write(durable=False)
        except OutOfDescriptorsError:
            self._is_unwritten = True

    def _write(self, *, durable: bool) -> None:
        lines = (f"{epoch} {start}" for epoch, start in self.entries)
        write_checkpoint(self.path, lines, durable=durable)
        self._is_unwritten = False
