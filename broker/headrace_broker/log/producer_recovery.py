"""Rebuilds producer states at the log's end: the newest snapshot, and the headers after it.

Owns the replay, which also rewrites `.txnindex` entries that a kill lost.
"""

from pathlib import Path
from typing import Final

import structlog

from headrace_broker.log.batches import (
    Header,
)
from headrace_broker.log.markers import read_marker
from headrace_broker.log.producer_snapshot import load_latest_snapshot
from headrace_broker.log.producer_state import CompletedTransaction, ProducerStates
from headrace_broker.log.segments.segment import LogSegment
from headrace_broker.log.segments.segments import LogSegments
from headrace_broker.protocol.batch import ControlType

_NEVER: Final = 1 << 62
_log = structlog.get_logger(__name__)


def rebuild_producers(
    directory: Path,
    segments: LogSegments,
    snapshots: list[int],
    *,
    log_end_offset: int,
    reindex_from: int,
) -> ProducerStates:
    """Return the states before `log_end_offset`.

    Aborted transactions whose marker is at or above `reindex_from` get their index entry again.
    """
    # The newest snapshot has batches that compaction has since removed from the log.
    start, states = _snapshot_or_nothing(directory, segments, snapshots, log_end_offset)
    if reindex_from < start:
        # Lost index entries are found only by a replay that begins before the first of them.
        older = _snapshot_or_nothing(directory, segments, snapshots, reindex_from)
        _replay_from(*older, segments, reindex_from)
        reindex_from = log_end_offset
    if start < log_end_offset:
        batches = _replay_from(start, states, segments, reindex_from)
        _log.debug("producer states rebuilt", directory=str(directory), batches=batches)
    return states


def completed_above(
    directory: Path, segments: LogSegments, snapshots: list[int], high_watermark: int
) -> list[CompletedTransaction]:
    """Return the transactions whose marker is at or above the high watermark and may be lost.

    A snapshot of the log's end does not have them; one from below the high watermark does.
    """
    start, states = _snapshot_or_nothing(directory, segments, snapshots, high_watermark)
    _replay_from(start, states, segments, _NEVER)
    states.note_high_watermark(high_watermark)
    return states.unreplicated


def _snapshot_or_nothing(
    directory: Path, segments: LogSegments, snapshots: list[int], offset_max: int
) -> tuple[int, ProducerStates]:
    found = load_latest_snapshot(directory, snapshots, offset_max=offset_max)
    return found if found is not None else (segments.first.base_offset, ProducerStates())


def _replay_from(
    start: int, states: ProducerStates, segments: LogSegments, reindex_from: int
) -> int:
    batches = 0
    for segment in segments.from_offset(start):
        position = segment.position_of(start) if start > segment.base_offset else 0
        for at, header in segment.headers(position):
            batches += 1
            if header.producer_id >= 0 and header.base_offset >= start:
                _replay(states, segment, at, header, reindex_from)
    return batches


def _replay(
    states: ProducerStates, segment: LogSegment, position: int, header: Header, reindex_from: int
) -> None:
    if not header.is_control:
        states.append(header, header.base_offset, header.max_timestamp)
        return
    marker = read_marker(segment.read_batch(position, header))
    if marker is None:
        return
    completed = states.end_transaction(
        header, header.base_offset, marker[1], is_commit=marker[0] is ControlType.COMMIT
    )
    if completed is not None and completed.is_aborted and completed.last_offset >= reindex_from:
        segment.transaction_index.append(states.aborted_entry(completed))
