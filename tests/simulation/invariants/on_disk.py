"""What a step must have made durable by the time it returns; the simulated disk knows.

A moment later a flush of the same log covers most of what was forgotten, so that only a power cut
in between would show it. Each rule is judged in the step itself, whether or not the power fails.
"""

import contextvars
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace_broker.log import (
    checkpoints,
    future_log,
    log_directory,
    meta_properties,
    partition_log,
    producer_snapshot,
    recovery,
)
from headrace_broker.log.epoch_cache import LeaderEpochCache
from headrace_broker.log.log_directory import CLEAN_SHUTDOWN_NAME, LogDirectory
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.segments import transaction_index
from headrace_broker.log.segments.flush import Flush
from headrace_broker.protocol.batch_header import HEADER_SIZE, parse_batch_header
from headrace_broker.server.quorum import quorum_state
from headrace_broker.server.quorum import recovery as quorum_recovery
from headrace_broker.server.quorum.raft_log import MetadataLog
from simulation.history import History
from simulation.invariants.logs import data_of, position_of
from simulation.observing import observer

_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
_LOG = ".log"
_QUORUM_FOLDER = "__cluster_metadata-0"


def _violate(history: History, path: Any, text: str) -> None:
    path = Path(path)
    history.violate("not-on-disk", f"{path.parent.name}/{path.name}: {text}")


def _is_durable(history: History, path: Any) -> bool:
    """Whether a power cut changes neither a file's bytes nor its name; true where there is none."""
    disk = history.disk()
    return disk is None or not Path(path).exists() or not disk.may_change(path)


# ---- files that are replaced


def _replace_file(
    history: History, original: Any, path: Path, data: bytes, *, durable: bool = True
) -> None:
    """After a crash the old file or the new one is there, whole: the new one, once this returns."""
    original(path, data, durable=durable)
    if durable and not _is_durable(history, path):
        _violate(history, path, "it was replaced durably, and a power cut may take it")


for _module in (
    checkpoints,
    future_log,
    log_directory,
    meta_properties,
    producer_snapshot,
    quorum_recovery,
    quorum_state,
    transaction_index,
):
    observer(_module, "replace_file")(_replace_file)


def _epochs_are_durable(history: History, original: Any, cache: Any, *arguments: Any) -> Any:
    """Epochs that are taken away, or found in batches that are not read again, are on disk.

    A start trusts what the file says below the recovery point.
    """
    before = cache.entries
    found = original(cache, *arguments)
    if cache.entries != before and not _is_durable(history, cache.path):
        _violate(history, cache.path, f"{before} became {cache.entries} without fsync")
    return found


for _name in ("truncate_from_end", "recover", "extend_back", "take_over", "clear"):
    observer(LeaderEpochCache, _name)(_epochs_are_durable)


# ---- logs


@observer(PartitionLog, "truncate_to")
def _truncate_to(history: History, original: Any, log: PartitionLog, offset: int) -> None:
    """What was cut does not come back in front of what is appended next."""
    before = log.log_end_offset
    original(log, offset)
    if log.log_end_offset >= before:
        return
    active, disk = log.segments.active, history.disk()
    if not _is_durable(history, active.path):
        _violate(history, active.path, f"cut to {log.log_end_offset} without fsync")
    if disk is not None and disk.may_bring_back(log.directory, _LOG):
        _violate(history, active.path, "the segments above it are removed without fsync")


@observer(PartitionLog, "begin_flush")
def _begin_flush(history: History, original: Any, log: PartitionLog) -> Any:
    history.flushed_logs[id(log._flush_turns)] = log
    return original(log)


@observer(Flush, "_sync")
def _sync(history: History, original: Any, flush: Flush) -> None:
    """A flush covers all files of its log: segments, indexes, snapshots, epochs, and their names.

    What a roll began since then belongs to the next flush. After a truncation it vouches for
    nothing (`_finish_flush`).
    """
    original(flush)
    if flush.directory.name == _QUORUM_FOLDER:
        return  # it has a flush of its own, below, and a start reads all of it
    log = history.flushed_logs.get(id(flush.turns))
    if log is not None and log._truncations != flush.truncations:
        return
    for path in sorted(flush.directory.iterdir()):
        name, _, suffix = path.name.partition(".")
        is_segments = f".{suffix}" in _SUFFIXES and name.isdigit() and int(name) < flush.offset
        if (is_segments or path == flush.epochs) and not _is_durable(history, path):
            _violate(history, path, f"a flush up to {flush.offset} leaves it out")


@observer(PartitionLog, "finish_flush")
def _finish_flush(history: History, original: Any, log: PartitionLog, flush: Flush) -> Any:
    """The recovery point names what this very flush covered, not what came after a truncation."""
    before = log.recovery_point
    reached = original(log, flush)
    if log.recovery_point > before and (
        flush.truncations != log._truncations or log.recovery_point > flush.offset
    ):
        history.violate(
            "not-on-disk",
            f"{log.directory.name}: the recovery point becomes {log.recovery_point} by a flush up "
            f"to {flush.offset}, {log._truncations - flush.truncations} truncations ago",
        )
    return reached


@observer(MetadataLog, "finish_flush")
def _finish_metadata_flush(history: History, original: Any, log: MetadataLog, offset: Any) -> None:
    """What a voter vouches for is on its disk, with its segment's name."""
    original(log, offset)
    disk, reached = history.disk(), log._log.recovery_point
    for segment in log._log.segments if disk is not None else ():
        if segment.base_offset >= reached:
            continue
        unsynced = disk.unsynced_from(segment.path)
        if disk.has_unsynced_name(segment.path):
            _violate(history, segment.path, f"{reached} is vouched for, no fsync covers its name")
        elif unsynced is not None and unsynced < position_of(segment, reached):
            _violate(history, segment.path, f"{reached} is vouched for, {unsynced} is not durable")


# ---- starts, and clean ends


@observer(recovery, "recover_segment")
def _recover_segment(
    history: History, original: Any, segment: Any, recovery_point: int, limit: int
) -> Any:
    """What a start cut does not come back in front of what is appended next."""
    reason = original(segment, recovery_point, limit)
    disk = history.disk()
    # Where its name is not durable, the tail may go with it.
    if reason and disk is not None and disk.has_unsynced_bytes(segment.path):
        _violate(history, segment.path, "a torn tail was cut without fsync")
    return reason


@observer(recovery, "_end_of_whole_batches")
def _end_of_whole_batches(
    history: History, original: Any, segment: Any, recovery_point: int
) -> Any:
    """No fsync covered the end of a batch that goes on above the recovery point."""
    end, next_offset = original(segment, recovery_point)
    if end and next_offset > recovery_point:
        _violate(
            history, segment.path, f"whole to {next_offset}, the fsync was at {recovery_point}"
        )
    return end, next_offset


@observer(partition_log, "load_segments")
def _load_segments(
    history: History, original: Any, segments: Any, names: Any, config: Any, **named: Any
) -> Any:
    """Above the recovery point nothing is missing between two segments, once they are recovered."""
    loaded = original(segments, names, config, **named)
    if named["was_clean"] or config.compacts or history.rots or history.may_have_holes:
        return loaded
    for segment in segments:
        following = segments.after(segment)
        if following is None or following.base_offset <= named["recovery_point"]:
            continue
        end = _end_of(segment)
        if end < following.base_offset and not segment.damages:
            _violate(history, segment.path, f"it ends at {end}, {following.path.name} follows it")
    return loaded


def _end_of(segment: Any) -> int:
    data, at, end = data_of(segment), 0, int(segment.base_offset)
    while at + HEADER_SIZE <= len(data):
        header = parse_batch_header(data, at)
        at, end = at + header.size_bytes, header.base_offset + header.last_offset_delta + 1
    return end


@observer(PartitionLog, "_load")
def _load(
    history: History, original: Any, log: PartitionLog, *arguments: Any, **named: Any
) -> None:
    """A start knows no epoch that begins above the log's end."""
    original(log, *arguments, **named)
    entries = log.leader_epochs.entries
    if entries and entries[-1][1] >= log.log_end_offset > log.log_start_offset:
        _violate(history, log.directory, f"{entries}, the log ends at {log.log_end_offset}")


@observer(LogDirectory, "close")
def _close(history: History, original: Any, directory: LogDirectory, **named: Any) -> None:
    """A clean end vouches for folders whose files are on disk, and names all others."""
    original(directory, **named)
    disk, marker = history.disk(), directory.path / CLEAN_SHUTDOWN_NAME
    if disk is None or not marker.exists():
        return
    # Read as by nobody: the broker's disk does not fail for it.
    content = contextvars.Context().run(marker.read_bytes)
    left_out = set(json.loads(content).get("unrecovered", ()))
    for folder in sorted(directory.path.iterdir()):
        is_partitions = folder.is_dir() and folder.name.rpartition("-")[2].isdigit()
        if not is_partitions or folder.name in left_out or folder.name == _QUORUM_FOLDER:
            continue
        for path in sorted(folder.glob(f"*{_LOG}")):
            if disk.unsynced_from(path) is not None:
                _violate(history, path, "a clean end vouches for it, no fsync covers it")


@observer(LogDirectory, "_take_clean_marker")
def _take_clean_marker(history: History, original: Any, directory: LogDirectory) -> None:
    """Once a process has begun, nothing says any longer that the one before it ended cleanly."""
    original(directory)
    disk, marker = history.disk(), directory.path / CLEAN_SHUTDOWN_NAME
    if marker.exists():
        _violate(history, marker, "a process has begun, and it is there")
    elif disk is not None and disk.may_bring_back(directory.path, CLEAN_SHUTDOWN_NAME):
        _violate(history, marker, "it was removed, and a power cut may bring it back")


# ---- checkpoints


@observer(checkpoints, "_checked_lines")
def _checked_lines(
    history: History, original: Callable[[bytes], list[str]], data: bytes
) -> list[str]:
    """A file whose bytes a power cut changed is not believed."""
    lines = original(data)
    body, _, last = data.removesuffix(b"\n").rpartition(b"\n")
    if lines[0] != "0" and last + b"\n" != checkpoints._checksum_line(body + b"\n"):
        history.violate("damaged-checkpoint", f"{data!r} is believed")
    return lines
