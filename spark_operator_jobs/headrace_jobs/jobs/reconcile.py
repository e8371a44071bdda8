"""Reconciles checkpoint and sinks before a query starts: the sinks are authoritative."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from headrace_jobs.jobs.startup import JobError, check_gaps, gaps
from headrace_jobs.progress.batches import checkpoint_identity
from headrace_jobs.progress.checkpoint import (
    CheckpointError,
    local_folder,
    starting_position,
)
from headrace_jobs.progress.generations import Generations, Reset
from headrace_jobs.progress.offsets import format_offsets
from headrace_jobs.progress.owner import remember_topics
from headrace_jobs.progress.resume import RESUMED, CheckpointState, ResumeError, resume
from headrace_jobs.progress.stored import NO_BATCH

if TYPE_CHECKING:
    from pathlib import Path

    from headrace_jobs.jobs.arguments import JobSettings
    from headrace_jobs.jobs.outputs import Outputs
    from headrace_jobs.jobs.startup import Start

__all__ = ["reconcile"]

_log = structlog.get_logger(__name__)


def reconcile(settings: JobSettings, start: Start, outputs: Outputs, *, is_stateful: bool) -> Start:
    """Return where the query really starts. Raises `JobError` with instructions."""
    start = _reconciled(settings, start, outputs, is_stateful=is_stateful)
    folder = local_folder(start.generation.path)
    if folder is not None:
        try:
            remember_topics(folder, start.topic_ids)
        except (CheckpointError, OSError) as error:
            raise JobError(f"the checkpoint cannot be written: {error}") from error
    return start


def _reconciled(
    settings: JobSettings, start: Start, outputs: Outputs, *, is_stateful: bool
) -> Start:
    sinks = outputs.stored()
    folder = local_folder(start.generation.path)
    if not sinks or folder is None:
        return start
    generations = Generations(settings.checkpoint)
    state = CheckpointState(
        identity=checkpoint_identity(folder),
        committed=_last(folder / "commits"),
        planned=_last(folder / "offsets"),
        position=start.position,
        reset=",".join(generations.requests),
        topics=start.topic_ids,
    )
    try:
        found = resume(sinks, state, is_stateful=is_stateful, adopt=settings.adopts_checkpoint)
    except ResumeError as error:
        raise JobError(str(error)) from error
    recreated = [
        f"{topic}: was deleted and made again, so the offsets that the sinks hold are of other"
        " records"
        for topic in found.recreated
    ]
    check_gaps(settings, recreated)
    for name, progress in found.rewinds.items():
        outputs.progress()[name].rewind(progress)
        _log.info("the sink takes batches from another place", sink=name)
    if not found.start_at:
        return start
    earliest = start.client.end_offsets(start.position, earliest=True)
    # What the sinks do not know was added since, and is read from its beginning.
    position = starting_position(start.position, found.start_at, added=earliest)
    ends = start.client.end_offsets(position, with_open_transactions=True)
    check_gaps(settings, gaps(position, earliest, ends))
    request = f"{RESUMED}{max(each.stored.epoch for each in sinks)}"
    resets = {at: Reset(offset, request) for at, offset in position.items()}
    generation = generations.follow(resets, position)
    _log.warning(
        "the checkpoint is lost or of another history: going on from what the sinks hold",
        offsets=format_offsets(found.start_at),
        checkpoint=generation.path,
    )
    return replace(
        start,
        generation=generation,
        position=position,
        starting_offsets=format_offsets(position),
    )


def _last(folder: Path) -> int:
    """Return the highest batch in one of Spark's logs."""
    if not folder.is_dir():
        return NO_BATCH
    batches = (int(path.name) for path in folder.iterdir() if path.name.isdigit())
    return max(batches, default=NO_BATCH)
