"""Where a query stands, read from its checkpoint. Reads files, writes none.

`<checkpoint>/offsets/<batch>` has a version, the batch's metadata, then one line of offsets for
each source; `<checkpoint>/commits/<batch>` exists once the batch is done (Spark's `OffsetSeqLog`
and `CommitLog`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace_jobs.progress.offsets import TopicPartition, end_offsets, parse_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "batch_offsets",
    "batch_range",
    "committed_position",
    "local_folder",
    "starting_position",
]

_HEADER_LINES = 2


def committed_position(checkpoint: str) -> dict[TopicPartition, int]:
    """Return the end offsets of the last committed batch.

    Empty for a new checkpoint, and for one that is no local folder or cannot be read: the first
    batch will tell then.
    """
    root = local_folder(checkpoint)
    if root is None:
        return {}
    try:
        batches = [int(path.name) for path in (root / "commits").iterdir() if path.name.isdigit()]
        if not batches:
            return {}
        return batch_offsets(root, max(batches))
    except (OSError, ValueError):
        return {}


def batch_offsets(checkpoint: Path, batch_id: int) -> dict[TopicPartition, int]:
    """Return the end offsets that were planned for a batch. Raises OSError and ValueError."""
    lines = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
    return end_offsets(lines[_HEADER_LINES:])


def batch_range(
    checkpoint: Path, batch_id: int
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return where a batch of the query's only source begins and ends, for each partition.

    A partition that was added since has no beginning here. Raises OSError and ValueError.
    """
    if batch_id > 0:
        begin = batch_offsets(checkpoint, batch_id - 1)
    else:
        # Where the source itself resolved earliest or latest to (`KafkaSourceInitialOffsetWriter`).
        lines = (checkpoint / "sources" / "0" / "0").read_text().splitlines()
        begin = parse_offsets(lines[-1])
    return begin, batch_offsets(checkpoint, batch_id)


def local_folder(checkpoint: str) -> Path | None:
    """Return the checkpoint's folder; None when it is on another file system (`s3a://…`)."""
    location = checkpoint.removeprefix("file://").removeprefix("file:")
    return None if "://" in location else Path(location)


def starting_position(
    begin: Mapping[TopicPartition, int], checkpoint: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return where the query goes on: the checkpoint's offsets, else where the topic begins.

    Partitions that were added after the last batch begin at their beginning. Partitions that the
    topic no longer has are left out.
    """
    return {partition: checkpoint.get(partition, first) for partition, first in begin.items()}
