"""Progress as a sink stores it with its rows, and the decision about a batch. Pure.

For each (job, generation) a sink keeps the fencing epoch of the driver that opened it last, and the
last batch in its rows, with that batch's end offsets. Every sink decides with `judge`, under the
lock or compare-and-set of its store, so that all follow the same rules.

Batches are numbered by their checkpoint, and a new checkpoint starts at 0 again, so a number alone
means nothing. The checkpoint's identity is stored with it, and a batch must start exactly where the
stored one ended. That finds every gap and every overlap, whatever was lost, restored or rewound.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from headrace_jobs.progress.offsets import format_offsets, parse_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_jobs.progress.offsets import TopicPartition

__all__ = [
    "Batch",
    "FencedError",
    "GapError",
    "StoredProgress",
    "Verdict",
    "format_progress",
    "judge",
    "parse_progress",
]

NO_BATCH = -1


class FencedError(Exception):
    """A later driver of the same job and generation has opened the sink: this one must end."""


class GapError(Exception):
    """The batch does not start where the stored one ended; the message has both."""


class Verdict(Enum):
    """What to do with a batch."""

    APPLY = "apply"
    #: The sink has it already: the batch is a replay.
    SKIP = "skip"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One batch of a query. `checkpoint` is the query's id, which Spark keeps in its checkpoint."""

    batch_id: int
    checkpoint: str = ""
    begin: Mapping[TopicPartition, int] = field(default_factory=dict)
    end: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: The ids of the topics, by name; of a broker before 2.8 there are none.
    topics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StoredProgress:
    """A sink's progress. Without a batch, `offsets` say where the first one must start, if set."""

    epoch: int
    batch_id: int = NO_BATCH
    checkpoint: str = ""
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: Ids of the reset that was applied last: a rewind of the same generation.
    reset: str = ""
    #: The ids of the topics whose offsets these are, by name. None in what former versions stored.
    topics: Mapping[str, str] = field(default_factory=dict)

    def after(self, batch: Batch) -> StoredProgress:
        """Return the progress that is stored with this batch's rows."""
        return StoredProgress(
            epoch=self.epoch,
            batch_id=batch.batch_id,
            checkpoint=batch.checkpoint,
            # Partitions that the batch no longer has were deleted with their topic.
            offsets=dict(batch.end),
            reset=self.reset,
            topics=dict(batch.topics),
        )


def judge(stored: StoredProgress, epoch: int, batch: Batch) -> Verdict:
    """Decide about a batch of the driver with this epoch. Raises `FencedError`, `GapError`."""
    if stored.epoch != epoch:
        raise FencedError(
            f"another driver opened the sink (epoch {stored.epoch}, this one has {epoch}):"
            " this one is fenced and ends"
        )
    if stored.checkpoint == batch.checkpoint and batch.batch_id <= stored.batch_id:
        beyond = {at: end for at, end in batch.end.items() if end > stored.offsets.get(at, end)}
        if batch.batch_id == stored.batch_id and beyond:
            raise GapError(_different(batch, "ends", beyond, stored))
        return Verdict.SKIP
    elsewhere = {
        at: begin for at, begin in batch.begin.items() if stored.offsets.get(at, begin) != begin
    }
    if elsewhere:
        raise GapError(_different(batch, "begins", elsewhere, stored))
    return Verdict.APPLY


def _different(
    batch: Batch, verb: str, offsets: Mapping[TopicPartition, int], stored: StoredProgress
) -> str:
    known = {at: stored.offsets[at] for at in offsets if at in stored.offsets}
    return (
        f"batch {batch.batch_id} {verb} at {format_offsets(offsets)}, and the sink holds rows up to"
        f" {format_offsets(known)}: the checkpoint and the sink are not of one history"
    )


def format_progress(progress: StoredProgress) -> str:
    """Return the JSON that `parse_progress` reads."""
    return json.dumps(
        {
            "epoch": progress.epoch,
            "batch": progress.batch_id,
            "checkpoint": progress.checkpoint,
            "offsets": json.loads(format_offsets(progress.offsets)),
            "reset": progress.reset,
            "topics": dict(progress.topics),
        }
    )


def parse_progress(text: str | bytes) -> StoredProgress:
    """Parse what `format_progress` wrote. Raises `ValueError` for anything else."""
    try:
        document: dict[str, Any] = json.loads(text)
        return StoredProgress(
            epoch=int(document["epoch"]),
            batch_id=int(document["batch"]),
            checkpoint=str(document["checkpoint"]),
            offsets=parse_offsets(json.dumps(document["offsets"])),
            reset=str(document["reset"]),
            topics={str(name): str(id_) for name, id_ in document.get("topics", {}).items()},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a job's progress: {str(text)[:200]}") from error
