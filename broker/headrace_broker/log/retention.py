"""Which segments a log no longer keeps, and when the active segment is due to be rolled.

Owns Kafka's rules of `retention.ms`, `retention.bytes`, `segment.ms`, `max.compaction.lag.ms` and
the log start offset; it removes nothing itself.
"""

from crc32c import crc32c

from headrace_broker.log.config import LogConfig
from headrace_broker.log.segments.segment import LogSegment
from headrace_broker.log.segments.segments import LogSegments
from headrace_broker.log.segments.sparse_index import OFFSET_ENTRY, TIME_ENTRY


def roll_after_ms(segment: LogSegment, config: LogConfig) -> int:
    """How long a segment stays active, less a jitter of its own that never changes."""
    longest = config.segment_ms_max
    if config.segment_jitter_ms <= 0:
        return longest
    jitter: int = crc32c(str(segment.path).encode()) % config.segment_jitter_ms
    return longest - min(jitter, longest)


def indexes_full(segment: LogSegment, config: LogConfig) -> bool:
    """Whether `segment.index.bytes` has no room for another entry."""
    limit = config.segment_index_bytes
    return (
        len(segment.offset_index) >= limit // OFFSET_ENTRY.size
        or len(segment.time_index) >= limit // TIME_ENTRY.size
    )


def index_check_size(config: LogConfig) -> int:
    """Return a size below which no segment's indexes can be full, given the index interval."""
    return config.segment_index_bytes // TIME_ENTRY.size * config.index_interval_bytes


def removable_segments(
    segments: LogSegments,
    config: LogConfig,
    *,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    now_ms: int,
) -> list[LogSegment]:
    """Return the oldest segments that may be deleted; none reaches above the high watermark."""
    removable: list[LogSegment] = []
    excess = _excess_bytes(segments, config)
    for segment in segments:
        following = segments.after(segment)
        upper_bound = log_end_offset if following is None else following.base_offset
        if upper_bound > high_watermark:
            break
        below_start = following is not None and following.base_offset <= log_start_offset
        expired = (
            config.deletes
            and config.retention_ms >= 0
            and (segment.size > 0 or following is not None)
            and now_ms - segment.largest_timestamp > config.retention_ms
        )
        excessive = config.deletes and excess >= segment.size > 0
        if not (below_start or expired or excessive):
            break
        excess -= segment.size
        removable.append(segment)
    return removable


def _excess_bytes(segments: LogSegments, config: LogConfig) -> int:
    if config.retention_bytes < 0:
        return -1
    return sum(segment.size for segment in segments) - config.retention_bytes
