"""A simulated disk of a quorum replica: what an fsync covers survives a crash, the rest may not."""

import json
import random
from typing import NamedTuple

from headrace_broker.protocol.batch import (
    ControlType,
    NewRecord,
    build_batch,
    iterate_batches,
    iterate_records,
)
from headrace_broker.protocol.messages.records.snapshot_footer_record import SnapshotFooterRecord
from headrace_broker.protocol.messages.records.snapshot_header_record import SnapshotHeaderRecord
from headrace_broker.raft.control import (
    NOT_IN_LOG,
    build_control_batch,
    find_control,
    kraft_version_record,
    voters_record,
)
from headrace_broker.raft.types import LogState, OffsetAndEpoch, QuorumState, VotersAt, VoterSet

UNKNOWN = VotersAt(offset=NOT_IN_LOG, voters=VoterSet(), kraft_version=0)


class StoredBatch(NamedTuple):
    """A batch of the log."""

    base: int
    next: int
    epoch: int
    data: bytes


class Snapshot(NamedTuple):
    """A snapshot's bytes, and the digest of all that it stands for."""

    data: bytes
    digest: int
    control: VotersAt | None


def build_snapshot(end_offset: int, digest: int, control: VotersAt) -> bytes:
    """Make a snapshot as KIP-630 lays it out: header, control state, data, footer."""
    return bytes(
        build_control_batch(
            [
                (ControlType.SNAPSHOT_HEADER, SnapshotHeaderRecord()),
                kraft_version_record(control.kraft_version),
                voters_record(control.voters),
            ],
            timestamp_ms=0,
        )
        + build_batch([NewRecord(value=json.dumps([end_offset, digest]).encode())])
        + build_control_batch(
            [(ControlType.SNAPSHOT_FOOTER, SnapshotFooterRecord())], timestamp_ms=0
        )
    )


def read_snapshot(data: bytes, snapshot_id: OffsetAndEpoch) -> Snapshot:
    """Read a snapshot back."""
    control = None
    for found in find_control(data, UNKNOWN):
        control = VotersAt(
            offset=snapshot_id.offset - 1, voters=found.voters, kraft_version=found.kraft_version
        )
    position = next(at for at, header in iterate_batches(data) if not header.is_control)
    (record,) = iterate_records(data, position)
    end_offset, digest = json.loads(record.value)
    assert end_offset == snapshot_id.offset
    return Snapshot(data, digest, control)


class Disk:
    """The log as the process sees it, and the log as a crash would leave it."""

    def __init__(self) -> None:
        self.quorum_state = QuorumState()
        self.snapshots: dict[OffsetAndEpoch, Snapshot] = {}
        self.start = 0
        self.batches: list[StoredBatch] = []
        self._durable: list[StoredBatch] = []
        self._pending: list[tuple] = []

    @property
    def end(self) -> int:
        return self.batches[-1].next if self.batches else self.start

    def append(self, records: bytes) -> None:
        for position, header in iterate_batches(records):
            assert header.base_offset == self.end, "a gap in the log"
            data = bytes(records[position : position + header.size_bytes])
            batch = StoredBatch(
                header.base_offset, header.next_offset, header.partition_leader_epoch, data
            )
            self.batches.append(batch)
            self._pending.append(("append", batch))

    def truncate(self, end: int) -> None:
        self.batches = [batch for batch in self.batches if batch.next <= end]
        assert self.end == end, "a batch was split"
        self._pending.append(("truncate", end))

    def begin_flush(self) -> int:
        return len(self._pending)

    def end_flush(self, count: int) -> None:
        """Make the first operations durable; returns how many are left."""
        for operation in self._pending[:count]:
            self._apply(operation)
        del self._pending[:count]

    def _apply(self, operation: tuple) -> None:
        kind, value = operation
        if kind == "append":
            self._durable.append(value)
        else:
            self._durable = [batch for batch in self._durable if batch.next <= value]

    def install(self, snapshot_id: OffsetAndEpoch, snapshot: Snapshot) -> None:
        self.snapshots = {snapshot_id: snapshot}
        self.start = snapshot_id.offset
        self.batches, self._durable, self._pending = [], [], []

    def trim(self, start: OffsetAndEpoch) -> None:
        self.start = start.offset
        self.snapshots = {i: s for i, s in self.snapshots.items() if i >= start}
        self.batches = [batch for batch in self.batches if batch.next > start.offset]

    def crash(self, rng: random.Random) -> None:
        """Lose what no fsync covered, but for a prefix that the kernel wrote by itself."""
        self.end_flush(rng.randint(0, len(self._pending)))
        self._pending = []
        self._durable = [batch for batch in self._durable if batch.next > self.start]
        self.batches = list(self._durable)

    def durable_batch(self, next_offset: int) -> StoredBatch | None:
        """Return the durable batch that ends at an offset."""
        return next((b for b in reversed(self._durable) if b.next == next_offset), None)

    def read(self, offset: int, max_bytes: int) -> bytes:
        out = b""
        for batch in self.batches:
            if batch.next <= offset:
                continue
            if out and len(out) + len(batch.data) > max_bytes:
                break
            out += batch.data
        return out

    def log_state(self) -> LogState:
        epochs: dict[int, int] = {}
        for batch in self.batches:
            epochs.setdefault(batch.epoch, batch.base)
        return LogState(
            start_offset=self.start,
            end_offset=self.end,
            epochs=tuple(epochs.items()),
            snapshots=tuple(sorted(self.snapshots)),
        )

    def control(self) -> list[VotersAt]:
        """Return the control state of the latest snapshot and of the log behind it."""
        before = UNKNOWN
        found = []
        if self.snapshots:
            before = self.snapshots[max(self.snapshots)].control
            found = [before]
        for batch in self.batches:
            for change in find_control(batch.data, before):
                if change.offset > before.offset:
                    found.append(change)
                    before = change
        return found
