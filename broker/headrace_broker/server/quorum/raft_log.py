"""The metadata log on disk, as Raft uses it: `__cluster_metadata-0` in Kafka's own format.

Owns appends, truncation, fsync and iteration over the batches. Batches arrive with offsets and
epochs set: `raft` decides who may append them, and the image gives their records meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from headrace_broker.log.config import LogConfig
from headrace_broker.log.descriptor_shortage import OutOfDescriptorsError
from headrace_broker.log.files import sync_directory, sync_file
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.metadata.entities import CLUSTER_METADATA_TOPIC
from headrace_broker.protocol.batch import iterate_batches
from headrace_broker.protocol.types import LeaderEpoch, Offset
from headrace_broker.raft.control import find_control
from headrace_broker.raft.types import LogState, OffsetAndEpoch, VotersAt
from headrace_broker.server.clock import Clock
from headrace_broker.server.quorum.raft_snapshots import RaftSnapshots

_READ_BYTES = 1024 * 1024

# The largest batch. A decision is one batch, so that a crash keeps it whole or not at
# all; a client whose request would make more gets an error before anything is written.
BATCH_BYTES_MAX = 16 * 1024 * 1024


class MetadataLog:
    """The log and its snapshots. Not thread-safe, except for what `begin_flush` returns."""

    def __init__(self, directory: Path, log: PartitionLog, snapshots: RaftSnapshots) -> None:
        self.directory = directory
        self._log = log
        self.snapshots = snapshots

    @classmethod
    def open(cls, directory: Path, clock: Clock, *, segment_bytes: int = 1 << 30) -> MetadataLog:
        """Open or create the log under `directory`; cut a torn tail, which was never acknowledged.

        Everything in the log is durable when this returns.
        """
        path = directory / f"{CLUSTER_METADATA_TOPIC}-0"
        path.mkdir(parents=True, exist_ok=True)
        sync_directory(directory)  # a vote in the folder is durable only if the folder is
        config = LogConfig(
            cleanup_policy="",  # only snapshots allow deletion
            max_message_bytes=BATCH_BYTES_MAX,
            segment_bytes=segment_bytes,
        )
        snapshots = RaftSnapshots(path)
        start = snapshots.ids[0].offset if snapshots.ids else Offset(0)
        log = PartitionLog.open(
            path,
            config,
            clock=clock,
            recovery_point=Offset(0),
            was_clean=False,
            log_start_offset=start,
        )
        base_offset = log.segments.first.base_offset
        if snapshots.ids and log.log_end_offset < snapshots.ids[-1].offset:
            # A crash after installing the leader's snapshot, before the log began at its end.
            start = snapshots.ids[-1].offset
            log.truncate_fully_and_start_at(start)
        elif base_offset > start:
            # A crash during a trim: segments are deleted, but an older snapshot is still there.
            start = next(
                (kept.offset for kept in snapshots.ids if kept.offset >= base_offset), start
            )
            log.delete_records_before(start)
        snapshots.remove_before(start)
        log.leader_epochs.truncate_from_start(start)
        log.segments.active.hold_open()
        log.flush()
        return cls(path, log, snapshots)

    @property
    def start_offset(self) -> Offset:
        """The first offset that can be read."""
        return Offset(self._log.log_start_offset)

    @property
    def end_offset(self) -> Offset:
        """The offset that the next record gets."""
        return Offset(self._log.log_end_offset)

    @property
    def size_bytes(self) -> int:
        """Bytes on disk, without snapshots."""
        return self._log.size_bytes

    def state(self) -> LogState:
        """Return the state that a starting `RaftNode` needs."""
        return LogState(
            start_offset=self.start_offset,
            end_offset=self.end_offset,
            epochs=tuple(
                (LeaderEpoch(epoch), Offset(start))
                for epoch, start in self._log.leader_epochs.entries
            ),
            snapshots=tuple(self.snapshots.ids),
        )

    def control(self, before: VotersAt) -> list[VotersAt]:
        """Return the voter sets in the latest snapshot and in the log, ascending."""
        found: list[VotersAt] = []
        position = self.start_offset
        if self.snapshots.ids:
            latest = self.snapshots.ids[-1]
            in_snapshot = read_control(self.snapshots.read(latest), latest, before)
            if in_snapshot is not None:
                found.append(in_snapshot)
            position = latest.offset
        for data in self.chunks(position, self.end_offset):
            found += find_control(data, found[-1] if found else before)
        return found

    def append(self, base_offset: Offset, records: bytes | bytearray | memoryview) -> None:
        """Append whole batches unchanged; no fsync. An error here must end the process."""
        if base_offset != self.end_offset:
            raise RuntimeError(f"an append at {base_offset}, but the log ends at {self.end_offset}")
        self._log.append_as_follower(records)

    def truncate(self, end_offset: Offset) -> None:
        """Drop every record at or above an offset."""
        self._log.truncate_to(end_offset)

    def begin_flush(self) -> Callable[[], None]:
        """Return the fsync for all records appended so far; it may run in another thread.

        Only the batches are synced: indexes and epochs are rebuilt from them at start.
        """
        log = self._log
        segments = tuple(log.segments.from_offset(log.recovery_point))
        directory = self.directory
        # The directory entry of a segment that begins above the durable offset may not be durable.
        is_new = segments[-1].base_offset >= log.recovery_point

        def run() -> None:
            for segment in segments:
                sync_file(segment.path)
            if is_new:
                sync_directory(directory)

        return run

    def finish_flush(self, offset: Offset) -> None:
        """Note that everything below an offset is durable."""
        reached = min(offset, self._log.log_end_offset)
        self._log.recovery_point = Offset(max(self._log.recovery_point, reached))

    def read(self, offset: Offset, max_bytes: int) -> bytes | memoryview:
        """Return whole batches, at least one, committed or not; raises ApiError out of range."""
        return self._log.read(offset, max_bytes, upper_bound=self.end_offset, at_least_one=True)

    def chunks(self, start: Offset, end: Offset) -> Iterator[memoryview]:
        """Yield the batches in a range of offsets, about a megabyte at a time."""
        position = start
        while position < end:
            data = memoryview(
                self._log.read(position, _READ_BYTES, upper_bound=end, at_least_one=True)
            )
            if not data:
                return
            yield data
            position = _end_of(data)

    def trim(self, start: OffsetAndEpoch) -> None:
        """Let the log begin at a snapshot's end; delete older segments and snapshots."""
        self._log.high_watermark = Offset(self._log.log_end_offset)
        self._log.delete_records_before(start.offset)
        self._log.apply_retention(0)
        self.snapshots.remove_before(start.offset)

    def restart_at(self, snapshot_id: OffsetAndEpoch) -> None:
        """Drop the whole log and begin at the end of an installed snapshot, durably."""
        self._log.truncate_fully_and_start_at(snapshot_id.offset)
        self._log.flush()
        self.snapshots.remove_before(snapshot_id.offset)

    def close(self) -> None:
        """Close the files."""
        try:
            self._log.close()
        except OutOfDescriptorsError:
            self._log.abandon()  # a start reads the whole log again in any case


def read_control(data: bytes, snapshot_id: OffsetAndEpoch, before: VotersAt) -> VotersAt | None:
    """Return a snapshot's voter set, as of the snapshot's last record."""
    found = list(find_control(data, before))
    if not found:
        return None
    last = found[-1]
    return VotersAt(
        offset=Offset(snapshot_id.offset - 1),
        voters=last.voters,
        kraft_version=last.kraft_version,
    )


def _end_of(data: memoryview) -> Offset:
    end = 0
    for _, header in iterate_batches(data):
        end = header.base_offset + header.last_offset_delta + 1
    return Offset(end)
