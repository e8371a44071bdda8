"""`LogState`: what a partition's log consists of, from opening its folder to closing it.

Owns which segments there are: opening and recovery, rolling, truncation, durability. Appending
and reading, which change nothing of that, are `PartitionLog`'s.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from headrace_broker.log.clock import Clock
from headrace_broker.log.config import LogConfig
from headrace_broker.log.epoch_cache import LeaderEpochCache
from headrace_broker.log.files import remove_quietly, sync_directory
from headrace_broker.log.flush import Flush
from headrace_broker.log.producer_recovery import rebuild_producers
from headrace_broker.log.producer_snapshot import snapshot_offsets, snapshot_path, write_snapshot
from headrace_broker.log.producer_state import ProducerStates
from headrace_broker.log.reader import LogReader
from headrace_broker.log.recovery import load_segments
from headrace_broker.log.removal import FileRemoval
from headrace_broker.log.retention import index_check_size, roll_after_ms
from headrace_broker.log.segment import LogSegment
from headrace_broker.log.segments import LogSegments
from headrace_broker.log.validation import looks_at_records
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import Offset

_END_OF_TIME = 1 << 62
_SNAPSHOT_RECORDS = 1000  # fewer are read faster than a file is written


class LogState:
    """The files of one partition and what is known of them."""

    segments: LogSegments
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
        """Open a folder, creating it if need be, and recover what a kill left in it."""
        directory.mkdir(parents=True, exist_ok=True)
        log = cls(directory, config, clock)
        log._load(recovery_point, log_start_offset, was_clean=was_clean)
        return log

    def __init__(self, directory: Path, config: LogConfig, clock: Clock) -> None:
        """Not for callers: a log without segments. Use `open`."""
        self.directory = directory
        self.log_start_offset = Offset(0)
        self.log_end_offset = Offset(0)
        self.recovery_point = Offset(0)
        self.cleaner_offset = Offset(0)
        """Where the part that compaction has not seen yet begins."""
        self.removal = FileRemoval()
        self.before_truncation: Callable[[int], None] = lambda _offset: None
        """Told where the log is about to end: a checkpoint above that has to come down first."""
        self.is_abandoned = False
        """Its files are given back, and may be gone: nothing more is to be done with it."""
        self._clock = clock
        self._high_watermark = Offset(0)
        self._snapshots: list[int] = []
        self._truncations = 0
        self._roll_after_ms = 0
        self.update_config(config)

    def _load(self, recovery_point: int, log_start_offset: int, *, was_clean: bool) -> None:
        now_ms = self._clock.now_ms()
        loaded = load_segments(
            self.directory,
            self.config,
            recovery_point=recovery_point,
            was_clean=was_clean,
            now_ms=now_ms,
        )
        self.segments = loaded.segments
        self.reader = LogReader(self.segments)
        if not len(self.segments):
            self._add_segment(log_start_offset, now_ms)
            self.log_end_offset = Offset(log_start_offset)
        else:
            self.log_end_offset = Offset(loaded.log_end_offset)
        self._active_changed()
        start = max(log_start_offset, self.segments.first.base_offset)
        self.log_start_offset = Offset(min(start, self.log_end_offset))
        self.recovery_point = Offset(min(recovery_point, self.log_end_offset))
        self._high_watermark = self.log_start_offset
        self.leader_epochs = LeaderEpochCache(self.directory, lambda: self.log_end_offset)
        self.leader_epochs.truncate_from_end(self.log_end_offset)
        recovered_from = 0 if self.leader_epochs.is_missing else loaded.recovered_from
        if recovered_from < self.log_end_offset:
            self.leader_epochs.recover(recovered_from, self._batch_epochs(recovered_from))
        self._load_producers(snapshot_offsets(loaded.names), loaded.recovered_from)

    def _batch_epochs(self, recovered_from: int) -> Iterator[tuple[int, int]]:
        """Yield epoch and base offset of the batches from there on."""
        for segment in self.segments:
            following = self.segments.after(segment)
            if following is not None and following.base_offset <= recovered_from:
                continue
            for _, header in segment.headers(segment.position_of(recovered_from)):
                yield header.partition_leader_epoch, header.base_offset

    def _load_producers(self, snapshots: list[int], reindex_from: int) -> None:
        for offset in snapshots:
            if offset > self.log_end_offset:
                snapshot_path(self.directory, offset).unlink(missing_ok=True)
        self._snapshots = [offset for offset in snapshots if offset <= self.log_end_offset]
        self.producers = rebuild_producers(
            self.directory,
            self.segments,
            self._snapshots,
            log_end_offset=self.log_end_offset,
            reindex_from=reindex_from,
        )

    def update_config(self, config: LogConfig) -> None:
        """Take over changed topic settings, which hold from the next append on."""
        self.config = config
        self._looks_at_records = looks_at_records(config)
        self._stamps_append_time = config.stamps_append_time
        self._index_check_size = index_check_size(config)
        if hasattr(self, "segments"):
            self._active_changed()

    def roll(self, now_ms: int) -> LogSegment:
        """Begin a new segment at the log's end."""
        base_offset = self.log_end_offset
        previous = self._active
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
        """Write the producers' states at the log's end, and keep one per segment besides."""
        offset = self.log_end_offset
        write_snapshot(self.directory, offset, self.producers, durable=durable)
        bases = {segment.base_offset for segment in self.segments}
        for old in self._snapshots:
            if old != offset and old not in bases:
                remove_quietly(snapshot_path(self.directory, old))
        self._snapshots = [old for old in self._snapshots if old in bases and old < offset]
        self._snapshots.append(offset)

    def snapshot_producers(self) -> None:
        """Write the producers' states now, where there is much that a start would have to read."""
        last = self._snapshots[-1] if self._snapshots else self.segments.first.base_offset
        if self.log_end_offset - last >= _SNAPSHOT_RECORDS and self.producers:
            self._take_snapshot(durable=False)

    # ---- positions

    @property
    def high_watermark(self) -> Offset:
        """What the owner has said is committed: nothing above is removed or compacted."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        end = self.log_end_offset
        self._high_watermark = end if offset >= end else Offset(offset)
        if self.producers.has_unstable:
            self.producers.note_high_watermark(self._high_watermark)

    @property
    def last_stable_offset(self) -> Offset:
        """Where the first transaction begins that is not decided, else the log's end.

        A read_committed reader stops here or at the high watermark, whichever comes first.
        """
        unstable = self.producers.first_unstable_offset()
        return self.log_end_offset if unstable is None else Offset(unstable)

    @property
    def size_bytes(self) -> int:
        """Bytes of all `.log` files."""
        return sum(segment.size for segment in self.segments)

    # ---- durability

    def begin_flush(self) -> Flush:
        """Write what waits in memory and return the fsync that may run in another thread."""
        self._active.write_indexes()
        return Flush(
            directory=self.directory,
            offset=self.log_end_offset,
            epochs=self.leader_epochs.path,
            truncations=self._truncations,
            segments=tuple(self.segments.from_offset(self.recovery_point)),
            snapshots=tuple(
                snapshot_path(self.directory, offset)
                for offset in self._snapshots
                if offset >= self.recovery_point
            ),
        )

    def finish_flush(self, flush: Flush) -> Offset:
        """Move the recovery point after `Flush.run`; return it.

        A truncation in between leaves it: what was appended since is not what was flushed.
        """
        if flush.truncations != self._truncations:
            return self.recovery_point
        reached = min(flush.offset, self.log_end_offset)
        self.recovery_point = Offset(max(self.recovery_point, reached))
        return self.recovery_point

    def flush(self) -> Offset:
        """Fsync everything appended so far; return the recovery point."""
        flush = self.begin_flush()
        flush.run()
        return self.finish_flush(flush)

    def close(self) -> None:
        """Make everything durable, with the producers' states, so that opening reads nothing."""
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
        """Give the files back as they are: after a failure of the disk, or to delete them."""
        self.is_abandoned = True
        for segment in self.segments:
            segment.close()

    # ---- truncation

    def truncate_to(self, offset: int) -> None:
        """Cut every batch with a record at or above `offset`: a follower whose leader differs."""
        if offset >= self.log_end_offset:
            return
        if offset < self.segments.first.base_offset:
            self.truncate_fully_and_start_at(offset)
            return
        self.before_truncation(offset)
        for segment in [held for held in self.segments if held.base_offset > offset]:
            self.segments.remove(segment)
            self.removal.schedule(segment, 0)
        self.segments.active.truncate(offset)
        # Before anything follows: a power cut that brought the tail back would put it in front of
        # what is appended, and flushed, in later segments.
        self.segments.active.sync()
        self._truncated(offset)
        self.log_start_offset = Offset(min(self.log_start_offset, offset))

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and begin at `offset`: a follower that its leader has outrun."""
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
        return self.log_start_offset
