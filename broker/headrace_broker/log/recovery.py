"""Opens a partition's folder: loads its segments and makes sure that they are intact.

Owns recovery after a kill. From the recovery point on, each batch is checked by length, offset and
CRC, and by its leader epoch, which no CRC covers. The first bad batch is cut with everything after
it, with a line in the log. After a clean shutdown only the ends of index files and a few headers
are read.
"""

import os
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

import structlog

from headrace_broker.log.batches import newest_timestamp
from headrace_broker.log.config import LogConfig
from headrace_broker.log.false_epochs import batches_from, false_epoch
from headrace_broker.log.files import (
    as_a_whole,
    failing_the_directory,
    remove_quietly,
    sync_file,
)
from headrace_broker.log.segments.batch_check import BatchWindow, EpochOf, examine
from headrace_broker.log.segments.segment import (
    LOG_SUFFIX,
    RELATIVE_OFFSET_MAX,
    Damage,
    LogSegment,
    SuspectedDamage,
)
from headrace_broker.log.segments.segments import LogSegments
from headrace_broker.log.segments.sparse_index import Entry
from headrace_broker.log.segments.swap import finish_swaps

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedSegments:
    """What was found in a folder, and what was repaired."""

    log_end_offset: int
    recovered_from: int
    """Batches at or above this offset were read again."""
    reindex_from: int
    """Transaction indexes are empty from this offset on, and are rebuilt."""


def add_segments(
    segments: LogSegments, directory: Path, config: LogConfig, now_ms: int
) -> list[str]:
    """Add a folder's segments, as they are; return the names of its files."""
    names = finish_swaps(directory)
    for name in names:
        if name.endswith(LOG_SUFFIX) and name.removesuffix(LOG_SUFFIX).isdigit():
            base_offset = int(name.removesuffix(LOG_SUFFIX))
            segments.add(LogSegment(directory, base_offset, config.index_interval_bytes, now_ms))
    return names


def load_segments(
    segments: LogSegments,
    names: list[str],
    config: LogConfig,
    *,
    recovery_point: int,
    was_clean: bool,
    noted: EpochOf,
) -> LoadedSegments:
    """Load what `add_segments` added, and recover those segments that may be torn.

    `names` are those of the folder's files, `noted` the leader epochs that its checkpoint names.
    """
    damaged = {segment for segment in segments if not adopt_segment(segment, names)}
    recovered_from = RELATIVE_OFFSET_MAX << 32
    # Include the segment that ends at the recovery point: a roll may still lack its time entry.
    suspect = [] if was_clean or not len(segments) else segments.from_offset(recovery_point - 1)
    if suspect:
        recovered_from = _recover_tail(
            segments, suspect, recovery_point, damaged, has_holes=config.compacts
        )
        _remove_what_is_apart(segments)
        _cut_false_epoch(segments, recovered_from, noted)
    # In order: the order of a set would differ between runs of a simulated seed.
    for segment in sorted(damaged.difference(suspect), key=lambda each: each.base_offset):
        recovered_from = min(recovered_from, segment.base_offset)
        size, following = segment.size, segments.after(segment)
        _recover_tail(segments, [segment], 0, damaged, has_holes=True)
        if segment.size < size and following is not None:
            end, limit = segment.load_tail(is_lenient=True), following.base_offset
            missing = Damage(segment.size, segment.size, end, limit, "index and records")
            segment.note_damage(missing)
    log_end_offset = _load_end(segments, recovery_point if was_clean else 0)
    for segment in segments:
        segment.unchecked = (0, segment.size)
    lost = [segment.base_offset for segment in segments if segment.transaction_index.is_lost]
    for segment in segments.from_offset(lost[0]) if lost else ():
        segment.transaction_index.begin_rebuild(lost[0])
    reindex_from = min([recovered_from, *lost])
    return LoadedSegments(
        log_end_offset=log_end_offset,
        recovered_from=recovered_from,
        reindex_from=reindex_from,
    )


def _load_end(segments: LogSegments, known_end: int) -> int:
    """Return the log's end as noted by a clean stop; batches missing before it are damage."""
    if not len(segments):
        return -1
    active = segments.active
    try:
        end = active.load_tail()
    except SuspectedDamage as suspicion:
        end = active.load_tail(is_lenient=True)
        limit = known_end if known_end > end else RELATIVE_OFFSET_MAX << 32
        damages = examine(active, suspicion.position, (active.size, limit), _no_epoch)
        for found in damages:
            is_open = found.next_offset == limit and limit != known_end
            active.note_damage(found._replace(next_offset=found.first_offset) if is_open else found)
        if not damages:
            rebuild_indexes(active)
        end = active.load_tail(is_lenient=True)
    if known_end > 0 and end != known_end and active.size:
        # No checksum covers an offset: the last batch's offset may be wrong.
        for found in examine(active, active.size - 1, (active.size, known_end), _no_epoch):
            if found.first_offset < known_end:
                active.note_damage(found)
        if active.damages:
            end = max(active.load_tail(is_lenient=True), active.damages[-1].next_offset)
            end = min(end, known_end)
    if end < known_end and active.base_offset <= end:
        # A follower would take this log's end for the end of all acknowledged records.
        missing = Damage(active.size, active.size, end, known_end, "records are missing")
        active.note_damage(missing)
        end = known_end
    return end


def _no_epoch(_offset: int) -> int:
    """The default while leader epochs are not loaded."""
    return -1


def rebuild_indexes(segment: LogSegment) -> None:
    """Rebuild a segment's indexes from its batches, whose checksums were checked.

    Raises OutOfDescriptorsError.
    """
    _log.warning("index file is damaged and is built again", path=str(segment.offset_index.path))
    indexes = segment.offset_index, segment.time_index
    with as_a_whole(segment.path):
        for index in indexes:
            index.begin_rebuild()
        size, segment.size = segment.size, 0
        segment.load_tail()
        segment.size = size
        for position, header in segment.headers(0):
            segment.note_batch(
                position, header.size_bytes, header.last_offset, newest_timestamp(header)
            )
        segment.become_inactive()
        for index in indexes:
            index.finish_rebuild()


def adopt_segment(segment: LogSegment, names: Container[str]) -> bool:
    """Load a segment's files; return False if its indexes must be rebuilt."""
    with failing_the_directory(segment.path):
        segment.size = segment.path.stat().st_size
    whole = (
        segment.transaction_index.load() if segment.transaction_index.path.name in names else True
    )
    for index in (segment.offset_index, segment.time_index):
        if index.path.name not in names:
            whole = False
        elif not index.load():
            _log.warning("index file is damaged and is built again", path=str(index.path))
            whole = False
    last_entry, last_time = segment.offset_index.last, segment.time_index.last
    if last_entry is not None and last_entry[1] >= segment.size:
        whole = False
    if last_time is not None:
        segment.max_timestamp = last_time[0]
        segment.max_timestamp_offset = segment.base_offset + last_time[1]
    return whole


def _recover_tail(
    segments: LogSegments,
    suspect: list[LogSegment],
    recovery_point: int,
    damaged: set[LogSegment],
    *,
    has_holes: bool,
) -> int:
    """Check segments in order; cut at the first batch that is not whole. Return where it began.

    A power cut may remove the last batches of a segment and leave the next segment. Unless
    compaction makes such holes (`has_holes`), the log is cut there too: a replica with a hole would
    never fetch the missing records, and might become leader without them.
    """
    recovered_from = max(recovery_point, suspect[0].base_offset)
    for number, segment in enumerate(suspect):
        following = segments.after(segment)
        limit = following.base_offset if following else RELATIVE_OFFSET_MAX << 32
        segment.transaction_index.truncate(recovered_from)
        if segment in damaged or _is_torn(segment, recovery_point):
            # Without intact indexes the recovery point's position is unknown.
            is_cut = _rebuild(segment, limit)
        else:
            is_cut = bool(recover_segment(segment, recovery_point, limit))
        is_apart = (
            following is not None and not has_holes and segment.load_tail(is_lenient=True) < limit
        )
        if not is_cut and not is_apart:
            continue
        for later in suspect[number + 1 :]:
            _log.warning("segment after a torn one is removed", path=str(later.path))
            segments.remove(later)
            remove_segment_files(later)
        break
    return recovered_from


def _remove_what_is_apart(segments: LogSegments) -> None:
    """Remove empty segments behind the last batch, if they begin above its end.

    A power cut may leave the names of segments and none of their batches. Followers fetch batches:
    they could never come to an end that lies behind such a hole. Compaction makes none there: the
    newest batch of what it cleans stays.
    """
    while len(segments) > 1 and not segments.active.size:
        active = segments.active
        if segments.inactive[-1].load_tail(is_lenient=True) >= active.base_offset:
            return
        _log.warning("empty segment after a hole is removed", path=str(active.path))
        segments.remove(active)
        remove_segment_files(active)


def _cut_false_epoch(segments: LogSegments, recovered_from: int, noted: EpochOf) -> None:
    """Cut the log at the first batch whose leader epoch is false.

    A follower with an epoch that its leader never had could not follow.
    """
    batches = batches_from(segments, recovered_from, is_lenient=True)
    found = false_epoch(batches, noted(recovered_from - 1), noted)
    if found is None:
        return
    segment, position, header = found
    _log.warning(
        "log is cut at a false leader epoch",
        path=str(segment.path),
        position=position,
        bytes_cut=segment.size - position,
        next_offset=header.base_offset,
        epoch=header.partition_leader_epoch,
    )
    for later in segments.from_offset(header.base_offset):
        if later is not segment:
            segments.remove(later)
            remove_segment_files(later)
    segment.truncate(position, header.base_offset)
    segment.become_inactive()
    segment.sync()


def _is_torn(segment: LogSegment, recovery_point: int) -> bool:
    """Whether a power cut left bytes in an index that are not valid entries.

    They may have any order, and could lead a search to a position where no batch begins.
    """
    index, times = segment.offset_index, segment.time_index
    if not (index.is_ascending() and times.is_ascending()):
        return True
    durable = recovery_point - 1 - segment.base_offset
    entry = index.floor(durable)
    if entry is not None:
        found = next(segment.headers(entry[1], is_lenient=True), None)
        if found is None or found[1].last_offset - segment.base_offset != entry[0]:
            return True
    time = times.floor_by_value(durable)
    return time is not None and not _is_time_of_a_batch(segment, time)


def _is_time_of_a_batch(segment: LogSegment, entry: Entry) -> bool:
    """Whether the batch at an entry's offset has its time; a torn entry names an earlier batch."""
    timestamp, offset = entry[0], segment.base_offset + entry[1]
    found = next(
        segment.headers(segment.position_of(offset, is_lenient=True), is_lenient=True), None
    )
    return found is not None and (
        found[1].base_offset <= offset and newest_timestamp(found[1]) == timestamp
    )


def _rebuild(segment: LogSegment, limit: int) -> bool:
    """Check a whole segment and rebuild its indexes; return True if it was cut."""
    indexes = segment.offset_index, segment.time_index
    for index in indexes:
        index.begin_rebuild()
    is_cut = bool(recover_segment(segment, 0, limit))
    for index in indexes:
        index.finish_rebuild()
    return is_cut


def recover_segment(segment: LogSegment, recovery_point: int, limit: int) -> str:
    """Check the batches at or above the recovery point, and index them again.

    Returns why the segment was cut, or "" if all of it was whole.
    """
    # The flush that moved the recovery point made the index and batches before it durable.
    start, next_offset = _end_of_whole_batches(segment, recovery_point)
    full_size = segment.size
    # By offset: a later batch's entry may be torn, and give a position before its own.
    segment.offset_index.truncate_from_key(next_offset - segment.base_offset)
    segment.time_index.truncate_above_value(next_offset - segment.base_offset - 1)
    segment.size = start
    segment.load_tail(is_lenient=True)
    position, reason, window = start, "", BatchWindow(segment, full_size)
    while position < full_size:
        header, reason = window.check(position, next_offset, limit)
        if header is None:
            break
        segment.note_batch(
            position, header.size_bytes, header.last_offset, newest_timestamp(header)
        )
        position += header.size_bytes
        next_offset = header.last_offset + 1
    segment.size = position
    if reason:
        _log.warning(
            "torn tail is cut at the last whole batch",
            path=str(segment.path),
            position=position,
            bytes_cut=full_size - position,
            next_offset=next_offset,
            reason=reason,
        )
        with failing_the_directory(segment.path):
            os.truncate(segment.path, position)
        # Later flushes may begin in the next segment; the cut tail must not come back before it.
        sync_file(segment.path)
    segment.become_inactive()
    return reason


def _end_of_whole_batches(segment: LogSegment, recovery_point: int) -> tuple[int, int]:
    """Return the end of the last batch wholly below the recovery point, and the next offset.

    The recovery point may lie inside a batch: a follower truncated its log and got other batches
    since.
    """
    entry = segment.offset_index.floor(recovery_point - 1 - segment.base_offset)
    end, next_offset = entry[1] if entry is not None else 0, segment.base_offset
    for position, header in segment.headers(end, is_lenient=True):
        if header.last_offset >= recovery_point or position + header.size_bytes > segment.size:
            break
        end, next_offset = position + header.size_bytes, header.last_offset + 1
    return end, next_offset


def remove_segment_files(segment: LogSegment) -> None:
    """Unlink a segment's files at once."""
    segment.close()
    for path in segment.paths():
        remove_quietly(path)
