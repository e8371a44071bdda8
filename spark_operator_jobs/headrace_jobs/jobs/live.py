"""Whether readers see a driver's generation, and to which group it commits then.

A swap changes both under drivers that run. The job's group is that of the generation that readers
see, so that its lag is theirs; every other generation commits to `GROUP-g<number>`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from headrace_jobs.sinks.generations import shadowing

if TYPE_CHECKING:
    from headrace_jobs.declaration import Job
    from headrace_jobs.jobs.arguments import JobSettings
    from headrace_jobs.progress.group import GroupProgress

__all__ = ["GroupFollower", "as_readers_see", "is_live"]

_LOOK_SECONDS = 30.0

_log = structlog.get_logger(__name__)


def is_live(job: Job, generation: int) -> bool | None:
    """Whether readers see the generation in every sink that has it.

    None where no sink has it yet, or between the swaps of several. Raises `SinkError`.
    """
    seen = {
        each.is_live
        for sink in map(shadowing, job.sinks)
        if sink is not None
        for each in sink.output_generations(job.name).all()
        if each.generation == generation
    }
    return seen.pop() if len(seen) == 1 else None


def as_readers_see(job: Job, settings: JobSettings) -> JobSettings:
    """Return the settings with the group of what the generation is now. Raises `SinkError`."""
    if settings.live_group is None:
        return settings
    live = is_live(job, settings.generation)
    if live is None:
        return settings
    own = f"{settings.live_group}-g{settings.generation}"
    group = settings.live_group if live else own
    if group != settings.group:
        _say(live=live, generation=settings.generation, group=group)
    return replace(settings, group=group)


class GroupFollower:
    """Looks now and then whether readers see the generation, and changes the group with it."""

    def __init__(self, job: Job, settings: JobSettings, group: GroupProgress) -> None:
        self._job = job
        self._settings = settings
        self._group = group
        self._looked_at = time.monotonic()

    def look(self, *, now: bool = False) -> None:
        """Look, if it is time. A store that does not answer changes nothing."""
        if not now and time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return
        try:
            found = as_readers_see(self._job, self._settings)
        except Exception as error:  # noqa: BLE001 - the batches themselves say what is wrong
            _log.debug("no sink says which generation is live", error=str(error))
        else:
            if found.group is not None and found.group != self._settings.group:
                self._group.follow(found.group)
            self._settings = found
        self._looked_at = time.monotonic()


def _say(*, live: bool, generation: int, group: str) -> None:
    if live:
        _log.warning(
            "readers see this generation: it commits to the job's own group. Leave --shadow out of"
            " its arguments when you change them next",
            generation=generation,
            group=group,
        )
    else:
        _log.warning(
            "readers see another generation: this one commits to a group of its own",
            generation=generation,
            group=group,
        )
