"""Text checkpoint files: a version line, a count line, one entry a line, and a checksum line.

Owns their format and their atomic replacement. Version 0 is Kafka's, which has no checksum; it is
read, and never written. Some of these files are replaced without an fsync, so a power cut may leave
any bytes in them. A damaged file reads as missing, with a line in the log: each of these files only
saves work or can be rebuilt.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog
from crc32c import crc32c

from headrace_broker.log.files import failing_the_directory, read_file, replace_file

_log = structlog.get_logger(__name__)
_Entry = TypeVar("_Entry")
_VERSION_WITHOUT_CHECKSUM = "0"
_VERSION = "1"


class TopicPartition(NamedTuple):
    """A topic's name and a partition's index."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def write_checkpoint(path: Path, lines: Iterable[str], *, durable: bool = True) -> None:
    """Replace a checkpoint file as a whole."""
    entries = list(lines)
    body = ("\n".join([_VERSION, str(len(entries)), *entries]) + "\n").encode()
    replace_file(path, body + _checksum_line(body), durable=durable)


def _checksum_line(body: bytes) -> bytes:
    return b"crc32c %08x\n" % crc32c(body)


def read_checkpoint(path: Path, parse: Callable[[list[str]], _Entry]) -> list[_Entry] | None:
    """Return the entries, or None for a missing or damaged file; raises LogDirectoryFailure."""
    with failing_the_directory(path):
        try:
            data = read_file(path)
        except FileNotFoundError:
            return None
    try:
        lines = _checked_lines(data)
        count = int(lines[1])
        entries = [parse(line.split(" ")) for line in lines[2:] if line]
        if len(entries) != count:
            raise ValueError(f"{len(entries)} entries where {count} are announced")
    except (ValueError, IndexError) as error:
        _log.warning("checkpoint file is damaged", path=str(path), error=str(error))
        return None
    return entries


def _checked_lines(data: bytes) -> list[str]:
    """Return the lines up to the checksum; raises ValueError."""
    *lines, rest = data.decode().split("\n")
    # Version 0 torn within its last number would read as a smaller number.
    if rest:
        raise ValueError(f"it ends in {rest!r}, without a new line")
    version = lines[0] if lines else ""
    if version == _VERSION_WITHOUT_CHECKSUM:
        return lines
    if version != _VERSION:
        raise ValueError(f"version {version!r}")
    last = f"{lines.pop()}\n".encode()
    if last != _checksum_line(data[: -len(last)]):
        raise ValueError(f"its checksum is not {last.decode().strip()!r}")
    return lines


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Write `topic partition offset` lines."""
    write_checkpoint(path, (f"{tp.topic} {tp.partition} {at}" for tp, at in offsets.items()))


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """Read what `write_offsets` wrote; missing or damaged is empty."""
    entries = read_checkpoint(path, _parse_offset)
    return dict(entries) if entries else {}


def _parse_offset(words: list[str]) -> tuple[TopicPartition, int]:
    topic, partition, offset = words
    return TopicPartition(topic, int(partition)), int(offset)
