"""The offsets of a batch, read from the checkpoint while the batch runs. Reads files only."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headrace_jobs.progress.checkpoint import batch_offsets, initial_offsets
from headrace_jobs.progress.owner import known_topics
from headrace_jobs.progress.stored import Batch

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["checkpoint_identity", "read_batch"]


def checkpoint_identity(checkpoint: Path) -> str:
    """Return the id that Spark gave the query (`StreamMetadata`); empty for a new checkpoint.

    It is written before the first batch and never changes in a checkpoint.
    """
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except FileNotFoundError:
        return ""


def read_batch(checkpoint: Path, batch_id: int) -> Batch:
    """Return a planned batch. Raises `CheckpointError`, and OSError and ValueError.

    A partition that was added since the previous batch has no start offset here.
    """
    is_first = batch_id == 0
    return Batch(
        batch_id=batch_id,
        checkpoint=checkpoint_identity(checkpoint),
        begin=initial_offsets(checkpoint) if is_first else batch_offsets(checkpoint, batch_id - 1),
        end=batch_offsets(checkpoint, batch_id),
        topics=known_topics(checkpoint),
    )
