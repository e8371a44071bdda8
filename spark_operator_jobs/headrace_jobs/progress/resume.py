"""Where a job continues if its sinks and its checkpoint disagree. Pure.

The sinks are authoritative: their progress was stored with the rows. A stateless query can continue
from the sinks' position, with a new checkpoint. A stateful one cannot, because only the checkpoint
has the contents of open windows. It is refused, with instructions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace_jobs.progress.offsets import format_offsets
from headrace_jobs.progress.owner import recreated_topics
from headrace_jobs.progress.stored import NO_BATCH, StoredProgress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_jobs.progress.offsets import TopicPartition

__all__ = ["RESUMED", "CheckpointState", "OpenSink", "ResumeError", "Resumption", "resume"]


#: The prefix of the id of a reset that is not the group's: the job continued from its sinks.
RESUMED = "from-sinks-"


class ResumeError(Exception):
    """The job must not start; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class CheckpointState:
    """The state of a checkpoint before the query starts."""

    #: The query's id; empty for a new checkpoint.
    identity: str
    #: The last batch that is done, and the last planned one; -1: none.
    committed: int
    planned: int
    #: Where the next batch starts.
    position: Mapping[TopicPartition, int]
    #: Ids of the reset that led to this checkpoint; empty: none.
    reset: str = ""
    #: The ids that the input topics have now, by name.
    topics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OpenSink:
    """A sink's progress, and whether its rows can be written again by key."""

    name: str
    stored: StoredProgress
    can_rewind: bool


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """What to do before the query starts."""

    #: Start a new checkpoint here; empty: continue with the existing one.
    start_at: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: By the sink's name: the progress to store, because the next batch starts elsewhere.
    rewinds: Mapping[str, StoredProgress] = field(default_factory=dict)
    #: Topics that are not the ones whose offsets a sink holds.
    recreated: tuple[str, ...] = ()


def resume(
    sinks: Sequence[OpenSink], checkpoint: CheckpointState, *, is_stateful: bool, adopt: bool
) -> Resumption:
    """Decide; `adopt` accepts the checkpoint if a sink has no progress.

    Raises `ResumeError`.
    """
    rewinds: dict[str, StoredProgress] = {}
    behind: list[OpenSink] = []
    recreated: set[str] = set()
    for sink in sinks:
        stored = sink.stored
        if not checkpoint.reset or checkpoint.reset == stored.reset:
            recreated |= set(_recreated(stored, checkpoint))
        if _is_of_one_history(stored, checkpoint):
            continue
        if checkpoint.reset and checkpoint.reset != stored.reset:
            if not sink.can_rewind:
                raise ResumeError(_no_rewind(sink))
            rewinds[sink.name] = _from_here(stored, checkpoint)
        elif not stored.offsets:
            if not adopt:
                raise ResumeError(_empty_sink(sink))
            rewinds[sink.name] = _from_here(stored, checkpoint)
        elif is_stateful:
            raise ResumeError(_lost_state(sink, checkpoint))
        else:
            behind.append(sink)
    if not behind:
        return Resumption(rewinds=rewinds, recreated=tuple(sorted(recreated)))
    start_at = behind[0].stored.offsets
    if any(sink.stored.offsets != start_at for sink in sinks):
        raise ResumeError(_disagree(sinks))
    return Resumption(start_at=start_at, recreated=tuple(sorted(recreated)))


def _recreated(stored: StoredProgress, checkpoint: CheckpointState) -> list[str]:
    known = stored.topics if stored.offsets else {}
    return recreated_topics(known, checkpoint.topics)


def _is_of_one_history(stored: StoredProgress, checkpoint: CheckpointState) -> bool:
    """Whether the checkpoint's next batch is one that the sink has, or expects next."""
    if stored.checkpoint and stored.checkpoint == checkpoint.identity:
        return checkpoint.committed <= stored.batch_id <= checkpoint.planned
    if stored.batch_id == NO_BATCH and not stored.offsets:
        # The driver may have ended within its first batch, before this sink had its part of it.
        return checkpoint.committed == NO_BATCH and not checkpoint.reset
    # Of another checkpoint, or of a start that ended before its first batch.
    is_new = checkpoint.committed == NO_BATCH
    is_expected = stored.batch_id == NO_BATCH or checkpoint.reset.startswith(RESUMED)
    is_there = all(
        stored.offsets.get(at, offset) == offset for at, offset in checkpoint.position.items()
    )
    return is_new and is_expected and is_there


def _from_here(stored: StoredProgress, checkpoint: CheckpointState) -> StoredProgress:
    return StoredProgress(
        epoch=stored.epoch,
        offsets=dict(checkpoint.position),
        reset=checkpoint.reset,
        topics=dict(checkpoint.topics),
    )


def _no_rewind(sink: OpenSink) -> str:
    return (
        f"the group was reset, and {sink.name} would take the rows from there on once more: it has"
        " no key that rows replace themselves by. Undo the reset, or begin a new generation of the"
        " job (--generation), which has an output of its own"
    )


def _empty_sink(sink: OpenSink) -> str:
    return (
        f"the checkpoint has batches, and {sink.name} has no progress of this job and generation."
        " Was it restored, emptied, or another one named? To read everything into it, begin a new"
        " generation (--generation); to go on behind the checkpoint without what came before, give"
        " --adopt-checkpoint once"
    )


def _lost_state(sink: OpenSink, checkpoint: CheckpointState) -> str:
    state = (
        "is new (was its volume lost?)"
        if checkpoint.planned == NO_BATCH
        else f"is of another history (its last batch is {checkpoint.committed})"
    )
    return (
        f"{sink.name} holds rows up to {format_offsets(sink.stored.offsets)} (batch"
        f" {sink.stored.batch_id}), and the checkpoint {state}. The job has state, which was in the"
        " checkpoint alone: going on would miss what was counted of open windows. Restore the"
        " checkpoint as it was, or compute again: --generation with the next number and"
        " --starting-offsets earliest, beside the old rows with --shadow"
    )


def _disagree(sinks: Sequence[OpenSink]) -> str:
    stands = "; ".join(f"{each.name} {format_offsets(each.stored.offsets)}" for each in sinks)
    return (
        f"the checkpoint is lost, and the sinks do not stand at the same offsets: {stands}. Restore"
        " the checkpoint, or begin a new generation (--generation)"
    )
