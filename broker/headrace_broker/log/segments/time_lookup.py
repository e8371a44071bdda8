"""Looks up offsets by timestamp, for ListOffsets.

Owns the search: the segment by its largest timestamp, the batch by the time index and headers,
and the record within that one batch, which is the only thing decompressed.
"""

from typing import NamedTuple

from headrace_broker.log.batches import (
    Header,
    newest_timestamp,
)
from headrace_broker.log.segments.segment import LogSegment
from headrace_broker.log.segments.segments import LogSegments
from headrace_broker.protocol.batch import iterate_records
from headrace_broker.protocol.batch_header import (
    LOG_APPEND_TIME_FLAG,
)
from headrace_broker.protocol.errors import DecodeError
from headrace_broker.protocol.types import NO_TIMESTAMP, LeaderEpoch, Offset, TimestampMs


class UnreadableRecordsError(DecodeError):
    """The records of the batch that the search ends in cannot be unpacked."""

    def __init__(self, offset: int, error: DecodeError) -> None:
        super().__init__(str(error))
        self.offset = offset
        """The batch's first offset, not before the log's start: all before it are older."""


class TimestampOffset(NamedTuple):
    """The offset of a record, with its timestamp and leader epoch."""

    offset: Offset
    timestamp: TimestampMs
    leader_epoch: LeaderEpoch


def first_offset_at_or_after(
    segments: LogSegments, timestamp: int, start_offset: int
) -> TimestampOffset | None:
    """Return the first record from `start_offset` on whose timestamp is at least `timestamp`.

    Raises UnreadableRecordsError.
    """
    for segment in segments:
        if segment.max_timestamp < timestamp:
            continue
        found = _search_segment(segment, timestamp, start_offset)
        if found is not None:
            return found
    return None


def max_timestamp_record(segments: LogSegments, start_offset: int) -> TimestampOffset | None:
    """Return the first record from `start_offset` on that has the largest timestamp of those.

    -1 is one, as in Kafka. Raises UnreadableRecordsError.
    """
    largest = max(segments, key=lambda segment: segment.max_timestamp, default=None)
    if largest is None:
        return None
    found = _search_segment(largest, largest.max_timestamp, start_offset)
    if found is not None:
        return found
    # DeleteRecords removed it: look among what is left. Only the first segment has to be read.
    for segment in segments.from_offset(start_offset):
        newest = segment.max_timestamp
        if segment.base_offset < start_offset:
            newest = _newest_from(segment, start_offset)
        if found is None or newest > found.timestamp:
            found = _search_segment(segment, newest, start_offset) or found
    return found


def _newest_from(segment: LogSegment, start_offset: int) -> int:
    """Return the largest timestamp of the records from an offset on, by headers where possible."""
    newest: int = NO_TIMESTAMP
    for position, header in segment.headers(segment.position_of(start_offset)):
        if header.base_offset >= start_offset or header.attributes & LOG_APPEND_TIME_FLAG:
            newest = max(newest, newest_timestamp(header))
            continue
        try:
            for record in iterate_records(segment.read_batch(position, header)):
                if record.offset >= start_offset:
                    newest = max(newest, record.timestamp)
        except DecodeError as error:
            raise UnreadableRecordsError(start_offset, error) from error
    return newest


def _search_segment(
    segment: LogSegment, timestamp: int, start_offset: int
) -> TimestampOffset | None:
    # Every record up to this entry's offset is older: the entry has the largest timestamp so far.
    entry = segment.time_index.floor(timestamp - 1)
    relative = entry[1] if entry is not None else 0
    first = max(segment.base_offset + relative, start_offset)
    for position, header in segment.headers(segment.position_of(first)):
        if newest_timestamp(header) >= timestamp:
            found = _search_batch(segment, position, header, timestamp, start_offset)
            if found is not None:
                return found
    return None


def _search_batch(
    segment: LogSegment, position: int, header: Header, timestamp: int, start_offset: int
) -> TimestampOffset | None:
    epoch = LeaderEpoch(header.partition_leader_epoch)
    if header.attributes & LOG_APPEND_TIME_FLAG:
        offset = max(header.base_offset, start_offset)
        return TimestampOffset(Offset(offset), TimestampMs(header.max_timestamp), epoch)
    try:
        for record in iterate_records(segment.read_batch(position, header)):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return TimestampOffset(Offset(record.offset), TimestampMs(record.timestamp), epoch)
    except DecodeError as error:
        raise UnreadableRecordsError(max(header.base_offset, start_offset), error) from error
    return None
