"""`PartitionLog`: the log of one partition.

Owns offsets: it assigns them, and what lies at one never changes while it can be read. It must
not know replication: the caller passes the leader epoch, and sets
`high_watermark`, below which alone retention and compaction may remove anything.
"""

from struct import pack_into
from typing import NamedTuple

from crc32c import crc32c

from headrace_broker.log.batches import (
    MAX_TIMESTAMP_POSITION,
    OFFSET_LENGTH_EPOCH,
    Header,
    iterate_headers,
    newest_timestamp,
)
from headrace_broker.log.compaction import Compaction
from headrace_broker.log.log_state import LogState
from headrace_broker.log.markers import read_marker
from headrace_broker.log.retention import indexes_full, removable_segments
from headrace_broker.log.segment import LogSegment
from headrace_broker.log.time_lookup import (
    TimestampOffset,
    first_offset_at_or_after,
    max_timestamp_record,
)
from headrace_broker.log.transaction_index import AbortedTransaction
from headrace_broker.log.validation import (
    AppendOrigin,
    check_follower_batch,
    check_leader_batch,
    prepare_records,
)
from headrace_broker.protocol.batch import ControlType
from headrace_broker.protocol.batch_header import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    LOG_APPEND_TIME_FLAG,
)
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import NO_TIMESTAMP as NO_APPEND_TIME
from headrace_broker.protocol.types import Offset, TimestampMs


class AppendInfo(NamedTuple):
    """Where records went."""

    first_offset: Offset
    last_offset: Offset
    log_append_time_ms: TimestampMs
    """-1 where records keep their producer's timestamps."""
    log_start_offset: Offset
    is_duplicate: bool


# A named tuple's own constructor is Python code; this runs for every append.
_new_tuple = tuple.__new__


class PartitionLog(LogState):
    """Appends and reads of one partition, all in its owner's thread."""

    # ---- append

    def append_as_leader(
        self,
        records: memoryview | bytes | bytearray,
        leader_epoch: int,
        *,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Validate one batch, give it offsets, and write it by one system call.

        A writable buffer is patched in place. Raises ApiError with nothing appended;
        LogDirectoryFailure when the outcome is unknown.
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
            known = self._check_producer(view, header)
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
        """Append whole batches as the leader has them, offsets and epochs included.

        Returns None when there is no whole batch; a torn one at the end is left out.
        """
        view = memoryview(records)
        batches: list[tuple[int, Header]] = []
        next_offset: int = self.log_end_offset
        for at, header in iterate_headers(view):
            if header.base_offset < next_offset and not batches:
                next_offset = self._begin_within(header)
            check_follower_batch(view[at : at + header.size_bytes], header, next_offset)
            batches.append((at, header))
            next_offset = header.last_offset + 1
        if not batches:
            return None
        now_ms = self._clock.now_ms()
        first, (last_at, last) = batches[0][1], batches[-1]
        size = last_at + last.size_bytes
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
        """Let an empty log that begins within a batch begin with that batch; return its end.

        DeleteRecords may move a leader's log start between two offsets of one batch, and a follower
        that begins there is sent the whole batch (Kafka: UnexpectedAppendOffsetException).
        """
        start, high_watermark = self.log_start_offset, self._high_watermark
        if start == self.log_end_offset <= header.last_offset:
            self.truncate_fully_and_start_at(header.base_offset)
            self.log_start_offset, self._high_watermark = start, high_watermark
        return self.log_end_offset

    def _check_producer(self, view: memoryview, header: Header) -> AppendInfo | None:
        if header.is_control:
            marker = read_marker(view)
            if marker is not None:
                self.producers.check_marker(header, marker[1])
            return None
        known = self.producers.check(header)
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
        """Return the active segment, after a roll where one is due (LogSegment.shouldRoll)."""
        segment = self._active
        if not segment.fits(last_offset):
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
            return self.roll(now_ms)
        return segment

    # ---- read

    def read(
        self, offset: int, max_bytes: int, *, upper_bound: int, at_least_one: bool
    ) -> bytes | memoryview:
        """Return whole batches, the first of which holds `offset`, all below `upper_bound`.

        Up to `max_bytes`, or one batch of any size if `at_least_one`. Raises OFFSET_OUT_OF_RANGE.
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
        return self.reader.read(offset, max_bytes, bound, at_least_one=at_least_one)

    def fetch_offset_by_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """Return the first record at or after a time, as (offset, timestamp, leader epoch)."""
        return first_offset_at_or_after(self.segments, timestamp, self.log_start_offset)

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """Return the record with the largest timestamp (ListOffsets' -3)."""
        return max_timestamp_record(self.segments, self.log_start_offset)

    def aborted_transactions(self, fetch_offset: int, upper_bound: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in the range that a fetch returned."""
        found: list[AbortedTransaction] = []
        for segment in self.segments.from_offset(fetch_offset):
            aborted, complete = segment.transaction_index.collect(fetch_offset, upper_bound)
            found += aborted
            if complete:
                break
        return found

    # ---- age

    def expire_producers(self, now_ms: int, elapsed_ms: int) -> None:
        """Forget producers that were silent for long; `elapsed_ms` is on a monotonic clock."""
        self.producers.remove_expired(now_ms, elapsed_ms, self.config.producer_id_expiration_ms)

    def apply_retention(self, now_ms: int) -> int:
        """Roll an old active segment, drop what retention no longer keeps; return its bytes."""
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
        since = active.first_timestamp if active.first_timestamp >= 0 else active.created_ms
        if active in removable or (active.size and now_ms - since > self._roll_after_ms):
            self.roll(now_ms)
        for segment in removable:
            self._remove_segment(segment, now_ms + self.config.file_delete_delay_ms)
        return sum(segment.size for segment in removable)

    def compact(self, now_ms: int) -> bool:
        """Clean what is dirty enough; return whether anything was.

        `Compaction` does the same in steps, of which the long one may run in another thread.
        """
        compaction = Compaction.begin(self, now_ms)
        if compaction is None:
            return False
        compaction.run()
        return compaction.finish()

    def _remove_segment(self, segment: LogSegment, due_ms: int) -> None:
        self.segments.remove(segment)
        self.removal.schedule(segment, due_ms)
        self.reader.forget()
        start = max(self.log_start_offset, self.segments.first.base_offset)
        if start > self.log_start_offset:
            self.log_start_offset = Offset(start)
            self.leader_epochs.truncate_from_start(start)


def _stamp_append_time(view: memoryview, attributes: int, now_ms: int) -> memoryview:
    """Set LogAppendTime and the time in a batch's header, in place where the buffer allows it."""
    if view.readonly:
        view = memoryview(bytearray(view))
    pack_into(">h", view, ATTRIBUTES_POSITION, attributes | LOG_APPEND_TIME_FLAG)
    pack_into(">q", view, MAX_TIMESTAMP_POSITION, now_ms)
    pack_into(">I", view, CRC_POSITION, crc32c(view[ATTRIBUTES_POSITION:]))
    return view
