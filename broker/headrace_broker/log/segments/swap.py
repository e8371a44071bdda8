"""Intermediate files of compaction and deletion, and how a start completes them after a crash.

Owns the suffixes. A cleaned segment is written as `.cleaned`, made durable, and renamed to `.swap`,
its `.log` last: that rename decides. Then the segments that it replaces become `.deleted`, and it
gets its final name, its `.log` last again. So if a start finds a `.log.swap`, it completes the
replacement; it removes all other leftovers.
"""

from pathlib import Path
from typing import Final

import structlog

from headrace_broker.log.batches import read_header
from headrace_broker.log.descriptor_shortage import opening
from headrace_broker.log.files import (
    failing_the_directory,
    names_in,
    remove_quietly,
    sync_directory,
)
from headrace_broker.log.segments.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from headrace_broker.protocol.batch_header import HEADER_SIZE, LENGTH_MIN

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
DELETED_SUFFIX: Final = ".deleted"
_LOG_LAST: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, LOG_SUFFIX)
_log = structlog.get_logger(__name__)


def finish_swaps(directory: Path) -> list[str]:
    """Complete or remove what a crash left; return the folder's file names afterwards."""
    names = _names(directory)
    swapped = [name for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    for name in swapped:
        base_offset = int(name.split(".", 1)[0])
        next_offset = _next_offset(directory / name, base_offset)
        _log.info("finishing the swap of a compacted segment", directory=str(directory), file=name)
        for base in _bases(names):
            if base_offset < base < next_offset:
                for suffix in SEGMENT_SUFFIXES:
                    remove_quietly(directory / file_name(base, suffix))
        rename_all(directory, base_offset, SWAP_SUFFIX, "")
    leftovers = (CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX, ".tmp")
    for name in names:
        if name.endswith(leftovers):
            remove_quietly(directory / name)
    if swapped:
        names = _names(directory)
    return [name for name in names if not name.endswith(leftovers)]


def rename_all(directory: Path, base_offset: int, old: str, new: str) -> None:
    """Rename a segment's files from one suffix to another, durably, the `.log` last.

    An optional file (`.txnindex`) of the replaced segment must not survive.
    """
    for suffix in _LOG_LAST:
        source = directory / (file_name(base_offset, suffix) + old)
        target = directory / (file_name(base_offset, suffix) + new)
        if suffix == LOG_SUFFIX:
            # Everything else must be durable before the rename that decides.
            sync_directory(directory)
        with failing_the_directory(target):
            if source.exists():
                source.replace(target)
            elif suffix == TXN_INDEX_SUFFIX:
                target.unlink(missing_ok=True)
    sync_directory(directory)


def _names(directory: Path) -> list[str]:
    with failing_the_directory(directory):
        return names_in(directory)


def _bases(names: list[str]) -> list[int]:
    return [
        int(name.removesuffix(LOG_SUFFIX))
        for name in names
        if name.endswith(LOG_SUFFIX) and name.removesuffix(LOG_SUFFIX).isdigit()
    ]


def _next_offset(path: Path, base_offset: int) -> int:
    """Return the offset after the last batch of a file whose indexes may be missing."""
    next_offset, position = base_offset, 0
    with failing_the_directory(path), opening(lambda: path.open("rb")) as file:
        while len(head := file.read(HEADER_SIZE)) == HEADER_SIZE:
            header = read_header(head)
            if header.batch_length < LENGTH_MIN:
                break
            next_offset, position = header.last_offset + 1, position + header.size_bytes
            file.seek(position)
    return next_offset
