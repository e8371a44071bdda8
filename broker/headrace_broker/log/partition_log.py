"""`PartitionLog`: the log of one partition.

Owns the offsets: it assigns them, and the record at an offset never changes while it can be read.
Owns the set of segments: opening and recovery, rolling, truncation, durability. It knows nothing of
replication: the caller passes the leader epoch and sets `high_watermark`. Retention and compaction
remove records only below that.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from struct import pack_into
from typing import NamedTuple, Self, TypeVar

import structlog
from crc32c import crc32c

from headrace_broker.log.batches import Header, iterate_headers, newest_timestamp
from headrace_broker.log.clock import Clock
from headrace_broker.log.config import LogConfig
from headrace_broker.log.descriptor_shortage import OutOfDescriptorsError
from headrace_broker.log.epoch_cache import LeaderEpochCache
from headrace_broker.log.false_epochs import batches_from
from headrace_broker.log.files import as_a_whole, remove_quietly, sync_directory
from headrace_broker.log.markers import read_marker
from headrace_broker.log.producer_recovery import completed_above, rebuild_producers
from headrace_broker.log.producer_snapshot import snapshot_offsets, snapshot_path, write_snapshot
from headrace_broker.log.producer_state import ProducerStates
from headrace_broker.log.recovery import add_segments, load_segments, rebuild_indexes
from headrace_broker.log.retention import (
    index_check_size,
    indexes_full,
    removable_segments,
    roll_after_ms,
)
from headrace_broker.log.segments.batch_check import examine
from headrace_broker.log.segments.flush import Flush, FlushTurns
from headrace_broker.log.segments.reader import LogReader
from headrace_broker.log.segments.removal import FileRemoval
from headrace_broker.log.segments.segment import (
    POSITION_MAX,
    RELATIVE_OFFSET_MAX,
    Damage,
    LogSegment,
    SuspectedDamage,
)
from headrace_broker.log.segments.segments import LogSegments
from headrace_broker.log.segments.time_lookup import (
    TimestampOffset,
    first_offset_at_or_after,
    max_timestamp_record,
)
from headrace_broker.log.segments.transaction_index import AbortedTransaction
from headrace_broker.log.validation import (
    AppendOrigin,
    check_follower_batch,
    check_leader_batch,
    looks_at_records,
    prepare_records,
)
from headrace_broker.log.verification import Verification
from headrace_broker.protocol.batch import ControlType
from headrace_broker.protocol.batch_header import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    LOG_APPEND_TIME_FLAG,
    MAX_TIMESTAMP_POSITION,
    OFFSET_LENGTH_EPOCH,
)
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import NO_TIMESTAMP as NO_APPEND_TIME
from headrace_broker.protocol.types import Offset, TimestampMs

_END_OF_TIME = 1 << 62
_SNAPSHOT_RECORDS = 1000  # fewer are read faster than a snapshot is written
_LOOKS_MAX = 100  # checks for damage, in one call
_Found = TypeVar("_Found")
_log = structlog.get_logger(__name__)


class AppendInfo(NamedTuple):
    """Where records were appended."""

    first_offset: Offset
    last_offset: Offset
    log_append_time_ms: TimestampMs
    """-1 if records keep their producer's timestamps."""
    log_start_offset: Offset
    is_duplicate: bool


# A named tuple's own constructor is Python code, and this runs for every append.
_new_tuple = tuple.__new__


class PartitionLog:
    """The files of one partition and its state, all in its owner's thread."""

    reader: LogReader
    leader_epochs: LeaderEpochCache
    producers: ProducerStates
    _active: LogSegment

    @classmethod
    def open(
        cls,
        directory: Path,
        config: LogConfig,
        *,
        clock: Clock,
        recovery_point: int = 0,
        was_clean: bool = True,
        log_start_offset: int = 0,
    ) -> Self:
        """Open a folder, creating it if needed, and recover from a kill.

        Raises OutOfDescriptorsError: then the folder is as after a kill, and can be opened later.
        """
        directory.mkdir(parents=True, exist_ok=True)
        log = cls(directory, config, clock)
        try:
            log._load(recovery_point, log_start_offset, was_clean=was_clean)
        except OutOfDescriptorsError:
            log.abandon()
            raise
        return log

    def __init__(self, directory: Path, config: LogConfig, clock: Clock) -> None:
        """Not for callers: a log without segments. Use `open`."""
        self.directory = directory
        self.log_start_offset = Offset(0)
        self.log_end_offset = Offset(0)
        self.recovery_point = Offset(0)
        self.cleaner_offset = Offset(0)
        """The offset from which the log has not been compacted yet."""
        self.removal = FileRemoval()
        self.before_truncation: Callable[[int], None] = lambda _offset: None
        """Called with the log's new end: checkpoints above it must be lowered first."""
        self.on_damage: Callable[[], None] = lambda: None
        """Called when records are found damaged."""
        self.is_damaged = False
        """Whether there are `damages`, which readers must skip."""
        self.is_abandoned = False
        """Whether its files are closed and may be gone: the log must not be used any longer."""
        self.is_being_copied = False
        """Whether a copy is being made in another log directory, which compaction would bypass."""
        self.segments = LogSegments()
        self._clock = clock
        self._high_watermark = Offset(0)
        self._snapshots: list[int] = []
        self._truncations = 0
        self._flush_turns = FlushTurns()
        self._roll_after_ms = 0
        self._loaded: LogSegment | None = None
        """The segment that was active at the start: nobody knows since when."""
        self.update_config(config)

    def _load(self, recovery_point: int, log_start_offset: int, *, was_clean: bool) -> None:
        now_ms = self._clock.now_ms()
        self.leader_epochs = LeaderEpochCache(self.directory, lambda: self.log_end_offset)
        names = add_segments(self.segments, self.directory, self.config, now_ms)
        loaded = load_segments(
            self.segments,
            names,
            self.config,
            recovery_point=recovery_point,
            was_clean=was_clean,
            noted=self.leader_epochs.epoch_for_offset,
        )
        self.reader = LogReader(self.segments)
        if not len(self.segments):
            self._add_segment(log_start_offset, now_ms)
            self.log_end_offset = Offset(log_start_offset)
        else:
            self.log_end_offset = Offset(loaded.log_end_offset)
            self._loaded = self.segments.active
        self._active_changed()
        start = max(log_start_offset, self.segments.first.base_offset)
        self.log_start_offset = Offset(min(start, self.log_end_offset))
        self.recovery_point = Offset(min(recovery_point, self.log_end_offset))
        self._high_watermark = self.log_start_offset
        self.leader_epochs.truncate_from_end(self.log_end_offset)
        for segment in self.segments:
            for found in segment.damages:
                self._report(segment, found)
        # Below the recovery point fsyncs have covered the epochs' file: batches that contradict it
        # are damaged.
        recovered_from = max(loaded.recovered_from, recovery_point)
        if self.leader_epochs.is_missing:
            recovered_from = 0
        if recovered_from < self.log_end_offset:
            self._around_damage(
                lambda: self.leader_epochs.recover(
                    recovered_from, self._batch_epochs(recovered_from)
                )
            )
        start = self.log_start_offset
        self._around_damage(
            lambda: self.leader_epochs.extend_back(start, self._batch_epochs(start))
        )
        self.reader.epoch_of = self.leader_epochs.epoch_for_offset
        snapshots = snapshot_offsets(names)
        self._load_producers(snapshots, loaded.reindex_from)
        for segment in self.segments:
            segment.transaction_index.finish_rebuild()
        if log_start_offset > self.log_end_offset:
            # What was deleted, durably, was lost before it was on disk. From the end on its offsets
            # would be given again, to records that readers were told are deleted.
            self.truncate_fully_and_start_at(log_start_offset)
            self._high_watermark = self.log_start_offset

    def _batch_epochs(self, recovered_from: int) -> Iterator[tuple[int, int]]:
        """Yield epoch and base offset of the batches from there on."""
        for _, _, header in batches_from(self.segments, recovered_from):
            yield header.partition_leader_epoch, header.base_offset

    def _load_producers(self, snapshots: list[int], reindex_from: int) -> None:
        for offset in snapshots:
            if offset > self.log_end_offset:
                snapshot_path(self.directory, offset).unlink(missing_ok=True)
        self._snapshots = [offset for offset in snapshots if offset <= self.log_end_offset]
        self.producers = self._around_damage(
            lambda: rebuild_producers(
                self.directory,
                self.segments,
                self._snapshots,
                log_end_offset=self.log_end_offset,
                reindex_from=reindex_from,
            )
        )

    def update_config(self, config: LogConfig) -> None:
        """Apply changed topic settings from the next append on."""
        self.config = config
        self._looks_at_records = looks_at_records(config)
        self._stamps_append_time = config.stamps_append_time
        self._index_check_size = index_check_size(config)
        if len(self.segments):
            self._active_changed()

    def roll(self, now_ms: int) -> LogSegment:
        """Begin a new segment at the log's end. Raises OutOfDescriptorsError."""
        base_offset = self.log_end_offset
        previous = self._active
        with as_a_whole(self.directory):
            if previous.size == 0:
                self.segments.remove(previous)
                self.removal.schedule(previous, now_ms)
            else:
                previous.become_inactive()
            self._take_snapshot(durable=False)
            self._add_segment(base_offset, now_ms)
        self._active_changed()
        return self._active

    def _add_segment(self, base_offset: int, now_ms: int) -> LogSegment:
        interval = self.config.index_interval_bytes
        segment = LogSegment(self.directory, base_offset, interval, now_ms)
        segment.create()
        self.segments.add(segment)
        return segment

    def _active_changed(self) -> None:
        self._active = self.segments.active
        self._roll_after_ms = roll_after_ms(self._active, self.config)

    def _take_snapshot(self, *, durable: bool) -> None:
        """Write the producers' states at the log's end; keep one older snapshot per segment."""
        offset = self.log_end_offset
        write_snapshot(self.directory, offset, self.producers, durable=durable)
        bases = {segment.base_offset for segment in self.segments}
        for old in self._snapshots:
            if old != offset and old not in bases:
                remove_quietly(snapshot_path(self.directory, old))
        self._snapshots = [old for old in self._snapshots if old in bases and old < offset]
        self._snapshots.append(offset)

    def snapshot_producers(self) -> None:
        """Write the producers' states now, if a start would otherwise have much to read."""
        last = self._snapshots[-1] if self._snapshots else self.segments.first.base_offset
        if self.log_end_offset - last >= _SNAPSHOT_RECORDS and self.producers:
            self._take_snapshot(durable=False)

    # ---- positions

    @property
    def high_watermark(self) -> Offset:
        """The owner's high watermark: nothing above it is removed or compacted."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        end = self.log_end_offset
        self._high_watermark = end if offset >= end else Offset(offset)
        if self.producers.has_unstable:
            self.producers.note_high_watermark(self._high_watermark)

    def recheck_markers(self) -> None:
        """Hold back transactions whose marker is above the high watermark, after loading the log.

        Otherwise a read_committed reader of a new leader could see records whose marker is not
        committed.
        """
        if self._high_watermark >= self.log_end_offset:
            self.producers.note_high_watermark(self._high_watermark)
        elif self.producers.has_markers:
            self.producers.unreplicated = self._around_damage(
                lambda: completed_above(
                    self.directory, self.segments, self._snapshots, self._high_watermark
                )
            )

    @property
    def last_stable_offset(self) -> Offset:
        """The start of the first undecided transaction, else the log's end.

        A read_committed reader stops here or at the high watermark, whichever comes first.
        """
        unstable = self.producers.first_unstable_offset()
        if unstable is None:
            return self.log_end_offset
        # DeleteRecords and retention may have removed the transaction's first records.
        return Offset(max(unstable, self.log_start_offset))

    @property
    def size_bytes(self) -> int:
        """Bytes of all `.log` files."""
        return sum(segment.size for segment in self.segments)

    # ---- durability

    def begin_flush(self) -> Flush:
        """Write buffered entries and return the fsync, which may run in another thread.

        Raises OutOfDescriptorsError.
        """
        self._active.write_indexes()
        self.leader_epochs.write_pending()
        return Flush(
            directory=self.directory,
            offset=self.log_end_offset,
            epochs=self.leader_epochs.path,
            truncations=self._truncations,
            # Include the segment that ends at the recovery point: a roll may have written a time
            # entry since.
            segments=tuple(self.segments.from_offset(self.recovery_point - 1)),
            snapshots=tuple(
                snapshot_path(self.directory, offset)
                for offset in self._snapshots
                if offset >= self.recovery_point
            ),
            turns=self._flush_turns,
        )

    def finish_flush(self, flush: Flush) -> Offset:
        """Raise the recovery point after `Flush.run`; return it.

        After a truncation in between it stays: the records appended since then are not those that
        were flushed.
        """
        if flush.truncations != self._truncations:
            return self.recovery_point
        reached = min(flush.offset, self.log_end_offset)
        self.recovery_point = Offset(max(self.recovery_point, reached))
        return self.recovery_point

    def flush(self) -> Offset:
        """Fsync everything appended so far; return the recovery point.

        Raises OutOfDescriptorsError, with the recovery point where it was.
        """
        flush = self.begin_flush()
        flush.run()
        return self.finish_flush(flush)

    def close(self) -> None:
        """Make everything durable, producers' states included, so that opening reads no batches."""
        end = self.log_end_offset
        is_flushed = end == self.recovery_point
        has_news = not is_flushed or (end not in self._snapshots and bool(self.producers))
        if has_news:
            # Thousands of idle logs are closed without an fsync each.
            self._active.become_inactive()
            self._take_snapshot(durable=True)
            self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Close the files as they are: after a disk failure, or to delete them."""
        self.is_abandoned = True
        for segment in self.segments:
            segment.close()

    # ---- moves to another directory

    def take_over(self, other: "PartitionLog") -> None:
        """Copy the state of a log with the same batches, of which this log is a copy.

        Producers and epochs whose batches are gone cannot be read from the copied batches.
        """
        self.update_config(other.config)
        self.leader_epochs.take_over(other.leader_epochs)
        self.producers = other.producers
        self.cleaner_offset = other.cleaner_offset
        self.high_watermark = other.high_watermark
        self._take_snapshot(durable=True)

    def renamed(self, directory: Path) -> None:
        """Continue under the folder's new name."""
        self.directory = directory
        self.leader_epochs.path = directory / self.leader_epochs.path.name
        self.removal.renamed(directory)
        for segment in self.segments:
            segment.renamed(directory)

    def skip_to(self, offset: int) -> None:
        """Move the log's end up to an offset; there are no batches in between."""
        if offset > self.log_end_offset:
            with as_a_whole(self.directory):
                self.log_end_offset = Offset(offset)
                # A start takes the end from the active segment, and must not find records missing.
                self.roll(self._clock.now_ms())
                self.reader.forget()

    # ---- truncation

    def truncate_to(self, offset: int) -> None:
        """Cut every batch with a record at or above `offset`, where a follower has diverged.

        The log then ends where the last batch that is left ends: below `offset` if that is within
        a batch, or where compaction has removed batches. (Kafka's log ends at `offset`. A start
        would find records missing in front of that, and the leader's whole batch not follow.)

        Raises OutOfDescriptorsError.
        """
        with as_a_whole(self.directory):
            if offset < self.log_end_offset:
                self._truncate_to(offset)
            else:
                # Drop an epoch that a leader began without writing any record in it.
                self.leader_epochs.truncate_from_end(self.log_end_offset)

    def _truncate_to(self, offset: int) -> None:
        last = self.segments.floor(offset)
        if last is None:
            self.truncate_fully_and_start_at(offset)
            return
        position, end = self._around_damage(lambda: last.end_below(offset))
        self.before_truncation(end)
        for segment in self.segments.from_offset(offset):
            if segment is not last:
                self.segments.remove(segment)
                self.removal.schedule(segment, 0)
        last.truncate(position, end)
        # Before anything is appended: otherwise a power cut could bring the old tail back in front
        # of records that are appended and flushed in later segments.
        last.sync()
        self._truncated(end)
        self.log_start_offset = Offset(min(self.log_start_offset, end))

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and start at `offset`: the leader's log begins above this one's end.

        Raises OutOfDescriptorsError.
        """
        with as_a_whole(self.directory):
            self.before_truncation(offset)
            for segment in list(self.segments):
                self.segments.remove(segment)
                self.removal.schedule(segment, 0)
            self.removal.run_all()
            self._add_segment(offset, self._clock.now_ms())
            self.log_start_offset = Offset(offset)
            for snapshot in self._snapshots:
                remove_quietly(snapshot_path(self.directory, snapshot))
            self._snapshots = []
            self.leader_epochs.clear()
            self._truncated(offset)

    def _truncated(self, offset: int) -> None:
        self._truncations += 1
        if self.is_damaged:
            self.is_damaged = bool(self.damages)
        self.removal.run_all()
        sync_directory(self.directory)
        self.reader.forget()
        self._active_changed()
        self.log_end_offset = Offset(offset)
        self.recovery_point = Offset(min(self.recovery_point, offset))
        self._high_watermark = Offset(min(self._high_watermark, offset))
        self.cleaner_offset = Offset(min(self.cleaner_offset, offset))
        self.leader_epochs.truncate_from_end(offset)
        self._load_producers(self._snapshots, _END_OF_TIME)
        self.recheck_markers()

    def delete_records_before(self, offset: int) -> Offset:
        """Move the log start offset up (DeleteRecords); return it. Retention frees the space.

        Raises OFFSET_OUT_OF_RANGE above the log's end. `LogDirectory` makes it durable.
        """
        if offset > self.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is above the log's end, {self.log_end_offset}",
            )
        if offset > self.log_start_offset:
            self.log_start_offset = Offset(offset)
            self.leader_epochs.truncate_from_start(offset)
            if self.is_damaged:
                self.is_damaged = bool(self.damages)
        return self.log_start_offset

    # ---- append

    def append_as_leader(
        self,
        records: memoryview | bytes | bytearray,
        leader_epoch: int,
        *,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification: Verification | None = None,
    ) -> AppendInfo:
        """Validate one batch, assign its offsets, and write it with one system call.

        A transactional batch needs a `verification`. A writable buffer is patched in place. Raises
        ApiError with nothing appended; LogDirectoryFailure if the outcome is unknown.
        """
        view = records if type(records) is memoryview else memoryview(records)
        config = self.config
        header = check_leader_batch(view, config, now_ms, origin)
        if self._looks_at_records and origin is AppendOrigin.CLIENT:
            view, header = prepare_records(view, header, config, now_ms)
        size = len(view)
        if size > config.segment_bytes:
            raise ApiError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size} bytes do not fit into a segment of {config.segment_bytes}",
            )
        producer_id = header.producer_id
        if producer_id >= 0:
            known = self._check_producer(view, header, origin, verification)
            if known is not None:
                return known
        delta = header.last_offset_delta
        max_timestamp: int = header.max_timestamp
        append_time = NO_APPEND_TIME
        if self._stamps_append_time:
            append_time = TimestampMs(now_ms)
            max_timestamp = now_ms
            view = _stamp_append_time(view, header.attributes, now_ms)
        first_offset = self.log_end_offset
        last_offset: Offset = first_offset + delta  # type: ignore[assignment]  # NewType costs a call
        segment = self._segment_for(size, last_offset, max_timestamp, now_ms)
        if leader_epoch > self.leader_epochs.latest:
            self.leader_epochs.assign(leader_epoch, first_offset)
        if view.readonly:
            head = OFFSET_LENGTH_EPOCH.pack(first_offset, header.batch_length, leader_epoch)
            position = segment.write_parts(head, view[OFFSET_LENGTH_EPOCH.size :])
        else:
            OFFSET_LENGTH_EPOCH.pack_into(view, 0, first_offset, header.batch_length, leader_epoch)
            position = segment.write(view)
        segment.note_batch(position, size, last_offset, max_timestamp)
        self.log_end_offset = end = last_offset + 1  # type: ignore[assignment]  # as above
        if not view.readonly:
            self.reader.appended(first_offset, end, segment.size, view)
        if producer_id >= 0:
            self._note_producer(view, header, first_offset, max_timestamp)
        if end - self.recovery_point >= config.flush_messages:
            self.flush()
        return _new_tuple(
            AppendInfo, (first_offset, last_offset, append_time, self.log_start_offset, False)
        )

    def append_as_follower(self, records: memoryview | bytes | bytearray) -> AppendInfo | None:
        """Append whole batches as received from the leader, offsets and epochs included.

        Returns None if there is no whole batch. A partial one at the end is left out, and what
        does not fit into the first one's segment.
        """
        view = memoryview(records)
        batches: list[tuple[int, Header]] = []
        next_offset: int = self.log_end_offset
        for at, header in iterate_headers(view):
            if header.base_offset < next_offset and not batches:
                next_offset = self._begin_within(header)
            if batches and header.last_offset - batches[0][1].base_offset > RELATIVE_OFFSET_MAX:
                break
            check_follower_batch(view[at : at + header.size_bytes], header, next_offset)
            batches.append((at, header))
            next_offset = header.last_offset + 1
        if not batches:
            return None
        now_ms = self._clock.now_ms()
        first, (last_at, last) = batches[0][1], batches[-1]
        size = last_at + last.size_bytes
        if next_offset - 1 > self._active.offset_max:
            self.skip_to(first.base_offset)
        segment = self._segment_for(size, next_offset - 1, last.max_timestamp, now_ms)
        if last.partition_leader_epoch > self.leader_epochs.latest:
            for _, header in batches:
                self.leader_epochs.assign(header.partition_leader_epoch, header.base_offset)
        start = segment.write(view[:size])
        for at, header in batches:
            segment.note_batch(
                start + at, header.size_bytes, header.last_offset, newest_timestamp(header)
            )
            if header.producer_id >= 0:
                batch = view[at : at + header.size_bytes]
                self._note_producer(batch, header, header.base_offset, header.max_timestamp)
        self.reader.appended(first.base_offset, next_offset, segment.size, view[:size])
        self.log_end_offset = Offset(next_offset)
        return AppendInfo(
            Offset(first.base_offset),
            Offset(last.last_offset),
            NO_APPEND_TIME,
            self.log_start_offset,
            is_duplicate=False,
        )

    def _begin_within(self, header: Header) -> int:
        """Let an empty log that begins inside a batch begin with that batch; return its end.

        DeleteRecords may move a leader's log start between two offsets of one batch. A follower
        that begins there gets the whole batch (Kafka: UnexpectedAppendOffsetException).
        """
        start, high_watermark = self.log_start_offset, self._high_watermark
        if start == self.log_end_offset <= header.last_offset:
            self.truncate_fully_and_start_at(header.base_offset)
            self.log_start_offset, self._high_watermark = start, high_watermark
        return self.log_end_offset

    def _check_producer(
        self,
        view: memoryview,
        header: Header,
        origin: AppendOrigin,
        verification: Verification | None,
    ) -> AppendInfo | None:
        if header.is_control:
            marker = read_marker(view)
            if marker is not None:
                self.producers.check_marker(header, marker[1])
            return None
        if origin is AppendOrigin.COORDINATOR and verification is not None:
            self.producers.check_coordinated(header, verification)
            return None
        known = self.producers.check(header, verification)
        if known is None:
            return None
        stamped = self.config.stamps_append_time
        return AppendInfo(
            Offset(known.first_offset),
            Offset(known.last_offset),
            TimestampMs(known.timestamp) if stamped else NO_APPEND_TIME,
            self.log_start_offset,
            is_duplicate=True,
        )

    def _note_producer(
        self, view: memoryview, header: Header, first_offset: int, timestamp: int
    ) -> None:
        if not header.is_control:
            self.producers.append(header, first_offset, timestamp)
            return
        marker = read_marker(view)
        if marker is None:
            return
        completed = self.producers.end_transaction(
            header, first_offset, marker[1], is_commit=marker[0] is ControlType.COMMIT
        )
        if completed is not None and completed.is_aborted:
            self._active.transaction_index.append(self.producers.aborted_entry(completed))

    def _segment_for(
        self, size: int, last_offset: int, max_timestamp: int, now_ms: int
    ) -> LogSegment:
        """Return the active segment, after a roll if one is due (LogSegment.shouldRoll).

        Without a descriptor for another segment this one goes on, as far as its indexes can name
        positions and offsets. Raises OutOfDescriptorsError.
        """
        segment = self._active
        if last_offset > segment.offset_max:
            return self.roll(now_ms)
        if not segment.size:
            return segment
        since = segment.first_timestamp
        age = max_timestamp - since if since >= 0 <= max_timestamp else now_ms - segment.created_ms
        if (
            segment.size + size > self.config.segment_bytes
            or age > self._roll_after_ms
            or (segment.size >= self._index_check_size and indexes_full(segment, self.config))
        ):
            try:
                return self.roll(now_ms)
            except OutOfDescriptorsError:
                if segment.size + size > POSITION_MAX:
                    raise
        return segment

    # ---- read

    def read(
        self, offset: int, max_bytes: int, *, upper_bound: int, at_least_one: bool
    ) -> bytes | memoryview:
        """Return whole batches, the first of which holds `offset`, all below `upper_bound`.

        Up to `max_bytes`, or one batch of any size if `at_least_one`. Raises OFFSET_OUT_OF_RANGE,
        and CORRUPT_MESSAGE if the record at `offset` is damaged.
        """
        end = self.log_end_offset
        if offset < self.log_start_offset or offset > end:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside {self.log_start_offset} to {end}",
            )
        bound = min(upper_bound, end)
        if offset >= bound:
            return b""
        if self.is_damaged:
            bound = self._whole_until(offset, bound)
        try:
            return self.reader.read(offset, max_bytes, bound, at_least_one=at_least_one)
        except SuspectedDamage as suspicion:
            self._look(suspicion)
        return self._around_damage(
            lambda: self.reader.read(
                offset, max_bytes, self._whole_until(offset, bound), at_least_one=at_least_one
            )
        )

    def fetch_offset_by_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """Return the first record at or after a time, as (offset, timestamp, leader epoch)."""
        return self._around_damage(
            lambda: first_offset_at_or_after(self.segments, timestamp, self.log_start_offset)
        )

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """Return the record with the largest timestamp (ListOffsets' -3)."""
        return self._around_damage(
            lambda: max_timestamp_record(self.segments, self.log_start_offset)
        )

    def aborted_within(
        self, fetch_offset: int, records: bytes | memoryview
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions with records among those that a fetch returned."""
        if not records:
            return []
        upper_bound = fetch_offset
        for _, header in iterate_headers(records):
            upper_bound = header.next_offset
        return self.aborted_transactions(fetch_offset, upper_bound)

    def aborted_transactions(self, fetch_offset: int, upper_bound: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in the range that a fetch returned."""
        found: list[AbortedTransaction] = []
        for segment in self.segments.from_offset(fetch_offset):
            aborted, complete = segment.transaction_index.collect(fetch_offset, upper_bound)
            found += aborted
            if complete:
                break
        return found

    # ---- damage

    @property
    def damages(self) -> list[Damage]:
        """The unreadable ranges from the log start on, ascending."""
        start = self.log_start_offset
        return [
            found
            for segment in self.segments
            for found in segment.damages
            if found.next_offset > start
        ]

    def cut_damage(self) -> Offset:
        """Cut the log where damage begins, to replicate it again; return the new end.

        Only for a replica that its leader does not count: the records that it cuts were committed.
        A compacted log goes as a whole: the others may have deleted the tombstones and markers of
        records that were never cleaned here.
        """
        found = self.damages
        first = found[0].first_offset if found else self.log_end_offset
        if found and (
            self.config.compacts
            or first <= max(self.log_start_offset, self.segments.first.base_offset)
        ):
            self.truncate_fully_and_start_at(self.log_start_offset)
        else:
            self.truncate_to(first)
        return self.log_end_offset

    @property
    def truncations(self) -> int:
        """The number of truncations since the log was opened."""
        return self._truncations

    def look_for_damage(self, segment: LogSegment, position: int) -> bool:
        """Find what is wrong around a position; return True if it is now known or repaired.

        A damaged index is rebuilt; damaged records are recorded and reported to `on_damage`.
        """
        following = self.segments.after(segment)
        limit = self.log_end_offset if following is None else following.base_offset
        known = set(segment.damages)
        epoch_of = self.leader_epochs.epoch_for_offset
        found = examine(segment, position, (segment.size, limit), epoch_of)
        for damage in found:
            segment.note_damage(damage)
        self.reader.forget()
        for damage in found:
            # Damage below the log start does not matter: nothing reads or repairs it.
            if damage not in known and damage.next_offset > self.log_start_offset:
                self._report(segment, damage)
        if not found and segment.damages == ():
            rebuild_indexes(segment)
        return set(segment.damages) != known or not found

    def disbelieve_epochs(self, above: int) -> None:
        """Take the batches of leader epochs above one, which cannot be true, for damaged."""
        start = self.leader_epochs.start_above(above)
        if start is None:
            return
        found = self._around_damage(lambda: list(batches_from(self.segments, start)))
        self.leader_epochs.truncate_from_end(start)
        self.reader.forget()
        for segment in self.segments.from_offset(start):
            headers = [each for each in found if each.segment is segment]
            if headers:
                (_, position, first), (_, _, last) = headers[0], headers[-1]
                reason = f"leader epoch {first.partition_leader_epoch} above {above}"
                damage = Damage(
                    position, segment.size, first.base_offset, last.last_offset + 1, reason
                )
                segment.note_damage(damage)
                self._report(segment, damage)

    def relabel_epochs(self, epoch: int) -> None:
        """Give the batches of leader epochs above `epoch`, which begins now, to `epoch`.

        The records are whole, so they stay. Nobody else has any of this epoch: whoever replicates
        them drops its own, which may be others.
        """
        start = self.leader_epochs.start_above(epoch)
        if start is None:
            return
        for segment, position, _ in self._around_damage(
            lambda: list(batches_from(self.segments, start))
        ):
            segment.write_epoch(position, epoch)
        for segment in self.segments.from_offset(start):
            segment.sync()
        self.leader_epochs.truncate_from_end(start)
        self.leader_epochs.assign(epoch, start)
        self.reader.forget()

    def _look(self, suspicion: SuspectedDamage) -> None:
        if not self.segments.holds(suspicion.segment) or not self.look_for_damage(
            suspicion.segment, suspicion.position
        ):
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(suspicion)) from suspicion

    def _around_damage(self, work: Callable[[], _Found]) -> _Found:
        """Do `work`, again after each check of a failure; raises KAFKA_STORAGE_ERROR."""
        for _ in range(_LOOKS_MAX):
            try:
                return work()
            except SuspectedDamage as suspicion:
                self._look(suspicion)
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.directory} cannot be read")

    def _report(self, segment: LogSegment, damage: Damage) -> None:
        self.is_damaged = True
        topic, _, partition = self.directory.name.rpartition("-")
        _log.error(
            "records are damaged",
            topic=topic,
            partition=partition,
            first_offset=damage.first_offset,
            next_offset=damage.next_offset,
            path=str(segment.path),
            position=damage.start,
            bytes=damage.end - damage.start,
            reason=damage.reason,
        )
        self.on_damage()

    def _whole_until(self, offset: int, bound: int) -> int:
        """Return the end of the records from `offset` without known damage, at most `bound`."""
        for found in self.damages:
            if found.first_offset <= offset < found.next_offset:
                raise ApiError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"the records {found.first_offset} to {found.next_offset - 1} are damaged",
                )
            if offset < found.first_offset:
                return min(bound, found.first_offset)
        return bound

    # ---- age

    def expire_producers(self, now_ms: int, elapsed_ms: int, expiration_ms: int) -> None:
        """Remove producers that were silent for too long; `elapsed_ms` is on a monotonic clock."""
        self.producers.remove_expired(now_ms, elapsed_ms, expiration_ms)

    def apply_retention(self, now_ms: int) -> int:
        """Roll an old active segment, drop expired segments; return the bytes dropped."""
        self.removal.run_due(now_ms)
        removable = removable_segments(
            self.segments,
            self.config,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            high_watermark=self.high_watermark,
            now_ms=now_ms,
        )
        active = self._active
        # Old records do not make a new segment old: while such are written, it would be rolled at
        # every pass. Appending rolls it by the records' own times.
        since = active.first_timestamp
        if since < 0 or active is not self._loaded:
            since = max(since, active.created_ms)
        if active in removable or (active.size and now_ms - since > self._roll_after_ms):
            try:
                self.roll(now_ms)
            except OutOfDescriptorsError:  # each removed segment gives one back
                removable = [segment for segment in removable if segment is not active]
        for segment in removable:
            self._remove_segment(segment, now_ms + self.config.file_delete_delay_ms)
        return sum(segment.size for segment in removable)

    def _remove_segment(self, segment: LogSegment, due_ms: int) -> None:
        self.segments.remove(segment)
        self.removal.schedule(segment, due_ms)
        self.reader.forget()
        start = max(self.log_start_offset, self.segments.first.base_offset)
        if start > self.log_start_offset:
            self.log_start_offset = Offset(start)
            self.leader_epochs.truncate_from_start(start)
        if self.is_damaged:
            self.is_damaged = bool(self.damages)


def _stamp_append_time(view: memoryview, attributes: int, now_ms: int) -> memoryview:
    """Set LogAppendTime and the time in a batch's header, in place if the buffer is writable."""
    if view.readonly:
        view = memoryview(bytearray(view))
    pack_into(">h", view, ATTRIBUTES_POSITION, attributes | LOG_APPEND_TIME_FLAG)
    pack_into(">q", view, MAX_TIMESTAMP_POSITION, now_ms)
    pack_into(">I", view, CRC_POSITION, crc32c(view[ATTRIBUTES_POSITION:]))
    return view
