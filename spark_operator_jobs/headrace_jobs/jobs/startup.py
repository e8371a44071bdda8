"""What a job finds out before it starts a JVM: brokers, topics, and where its query goes on.

A JVM is started only when there is something to read. A reset of the group is followed here, before
anything is committed: the job's first commit takes the reset's note away.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog
from kafka.errors import KafkaError

from headrace_jobs.progress.checkpoint import starting_position
from headrace_jobs.progress.generations import GenerationError, Generations
from headrace_jobs.progress.group import GroupClient
from headrace_jobs.progress.offsets import TopicPartition, format_offsets

if TYPE_CHECKING:
    from headrace_jobs.jobs.arguments import JobSettings
    from headrace_jobs.progress.generations import Generation

__all__ = ["JobError", "Start", "Stoppable", "prepare"]

_SAY_AGAIN_SECONDS = 10.0
_POLL_SECONDS = 0.5

_log = structlog.get_logger(__name__)


class JobError(Exception):
    """The job cannot run; the message says why and what to do."""


class Stoppable(Protocol):
    """Whether somebody asked us to stop."""

    @property
    def is_requested(self) -> bool:
        """Whether it was asked."""

    def wait(self, seconds: float) -> bool:
        """Wait, but no longer than until it is asked."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where the query goes on."""

    client: GroupClient
    generation: Generation
    #: For every partition of the input topic.
    position: dict[TopicPartition, int]
    #: `startingOffsets` of the source; its checkpoint knows better once it has a batch.
    starting_offsets: str


def prepare(settings: JobSettings, stop: Stoppable) -> Start | None:
    """Wait for brokers and topics; returns None when stopped meanwhile. Raises `JobError`."""
    deadline = time.monotonic() + settings.startup_timeout_seconds
    said_at, client = -_SAY_AGAIN_SECONDS, None
    while not stop.is_requested:
        try:
            client = client or GroupClient(settings.bootstrap_servers, client_id=settings.name)
            missing = settings.topics - client.partitions(settings.topics).keys()
            if not missing:
                return _start(settings, client)
            problem = f"topic {' and '.join(sorted(missing))} does not exist"
        except (KafkaError, OSError, ValueError) as error:
            problem = f"no broker answers at {settings.bootstrap_servers} ({error})"
        except GenerationError as error:
            raise JobError(str(error)) from error
        if time.monotonic() > deadline:
            raise JobError(f"gave up after {settings.startup_timeout_seconds:g} s: {problem}")
        if time.monotonic() - said_at >= _SAY_AGAIN_SECONDS:
            said_at = time.monotonic()
            _log.info("waiting", reason=problem)
        stop.wait(_POLL_SECONDS)
    if client is not None:
        client.close()
    return None


def _start(settings: JobSettings, client: GroupClient) -> Start:
    topic = settings.input_topic
    count = client.partitions([topic]).get(topic, 0)
    partitions = [TopicPartition(topic, index) for index in range(count)]
    earliest = client.end_offsets(partitions, earliest=True)
    begin = earliest
    if settings.starting_offsets == "latest":
        begin = client.end_offsets(partitions)
    resets = client.resets(settings.group) if settings.group is not None else {}
    generations = Generations(settings.checkpoint)
    before = generations.current
    generation = generations.follow(resets, starting_position(begin, before.position))
    if generation.number != before.number:
        _log.info(
            "the group was reset: the query goes on with another generation of its checkpoint",
            group=settings.group,
            requests=sorted({reset.request_id for reset in resets.values()}),
            checkpoint=generation.path,
        )
    # Retention may have taken what a reset named: what is left begins here.
    wanted = {
        at: max(offset, earliest.get(at, 0)) for at, offset in generation.starting_offsets.items()
    }
    return Start(
        client=client,
        generation=generation,
        position=starting_position(begin, generation.position),
        starting_offsets=(
            format_offsets(starting_position(begin, wanted))
            if wanted
            else settings.starting_offsets
        ),
    )
