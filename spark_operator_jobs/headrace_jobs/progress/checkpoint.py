"""The position of a query, read from its checkpoint. Reads files, writes none.

`<checkpoint>/offsets/<batch>` has a version and the batch's metadata, then the offsets of each
source: a line each in version 1, `name:offsets` in version 2, which queries with named sources
write; `<checkpoint>/commits/<batch>` exists once the batch is done, and `<checkpoint>/sources/…/0`
has where a Kafka source began (Spark's `OffsetSeqLog`, `CommitLog`,
`KafkaSourceInitialOffsetWriter`).

A missing file means a new checkpoint. A file that cannot be read is an error: if it counted as new,
the group would move to the topic's start, and partitions that no reset named would be rewound.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace_jobs.progress.offsets import TopicPartition, end_offsets, is_tick

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CheckpointError",
    "batch_offsets",
    "committed_position",
    "has_clock",
    "initial_offsets",
    "local_folder",
    "starting_position",
]


class CheckpointError(ValueError):
    """The checkpoint exists and cannot be read; the message says which part."""


def committed_position(checkpoint: str) -> dict[TopicPartition, int]:
    """Return the end offsets of the last committed batch; before that, the sources' start offsets.

    Empty for a new checkpoint, and for one that is not a local folder: there the first batch will
    show them. Raises `CheckpointError`.
    """
    root = local_folder(checkpoint)
    if root is None or not root.exists():
        return {}
    batches = [int(path.name) for path in _listed(root / "commits") if path.name.isdigit()]
    if batches:
        return batch_offsets(root, max(batches))
    return initial_offsets(root)


def has_clock(checkpoint: str) -> bool:
    """Whether a query may also read the clock: Spark fixes the sources with the checkpoint.

    False for the checkpoint of a program without a clock. A checkpoint that is not a local folder
    counts as new.
    """
    root = local_folder(checkpoint)
    batches = [] if root is None else [each.name for each in _listed(root / "offsets")]
    numbers = [int(name) for name in batches if name.isdigit()]
    if root is None or not numbers:
        return True
    lines = _read(root / "offsets" / str(max(numbers))).splitlines()[2:]
    return any(is_tick(line) for line in lines)


def batch_offsets(checkpoint: Path, batch_id: int) -> dict[TopicPartition, int]:
    """Return a planned batch's end offsets. Raises `CheckpointError`."""
    path = checkpoint / "offsets" / str(batch_id)
    return _read_offsets(path, *_read(path).splitlines())


def initial_offsets(checkpoint: Path) -> dict[TopicPartition, int]:
    """Return what earliest or latest meant for each source. Raises `CheckpointError`."""
    first = [path / "0" for path in _listed(checkpoint / "sources") if (path / "0").exists()]
    return {
        at: offset
        for path in first
        for at, offset in _parsed(path, _read(path).splitlines()[-1:]).items()
    }


def local_folder(checkpoint: str) -> Path | None:
    """Return the checkpoint's folder; None when it is on another file system (`s3a://…`)."""
    location = checkpoint.removeprefix("file://").removeprefix("file:")
    return None if "://" in location else Path(location)


def starting_position(
    begin: Mapping[TopicPartition, int],
    checkpoint: Mapping[TopicPartition, int],
    *,
    added: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, int]:
    """Return where the query continues: the checkpoint's offsets, else the start offsets.

    Partitions that a checkpoint with offsets does not have were added later; Spark reads those from
    `added`, their beginning, wherever a new query would begin. Partitions that the topic no longer
    has are left out.
    """
    other = added if added is not None and checkpoint else begin
    return {at: checkpoint.get(at, other[at]) for at in begin}


def _read_offsets(
    path: Path, version: str = "", _metadata: str = "", *sources: str
) -> dict[TopicPartition, int]:
    """Read the lines of a batch's entry in the offset log."""
    if version == "v1":
        return _parsed(path, sources)
    if version == "v2":
        return _parsed(path, [line.partition(":")[2].strip() for line in sources])
    raise CheckpointError(f"{path} is of a version that is not known here: {version[:20]!r}")


def _parsed(path: Path, lines: list[str] | tuple[str, ...]) -> dict[TopicPartition, int]:
    try:
        # A dash is a source without offsets yet; a number belongs to another kind of source.
        return end_offsets(line for line in lines if line.startswith("{") and not is_tick(line))
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error}") from error
