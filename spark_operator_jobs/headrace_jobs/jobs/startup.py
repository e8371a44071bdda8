"""What a job checks before it starts a JVM: brokers, topics, sinks' servers, the start position.

A JVM is started only when there is something to read. A reset of the group is applied here, before
anything is committed: the job's first commit removes the reset's note.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog
from kafka.errors import KafkaError

from headrace_jobs.progress.checkpoint import CheckpointError, local_folder, starting_position
from headrace_jobs.progress.generations import GenerationError, Generations
from headrace_jobs.progress.group import GroupClient
from headrace_jobs.progress.offsets import TopicPartition, format_offsets
from headrace_jobs.progress.owner import known_topics, recreated_topics
from headrace_jobs.sinks.protocol import SinkAwayError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace_jobs.jobs.arguments import JobSettings
    from headrace_jobs.progress.generations import Generation

__all__ = ["JobError", "Start", "Stoppable", "check_gaps", "gaps", "prepare", "when_servers_answer"]

_Found = TypeVar("_Found")

_SAY_AGAIN_SECONDS = 10.0
_POLL_SECONDS = 0.5

_log = structlog.get_logger(__name__)


class JobError(Exception):
    """The job cannot run; the message says why and what to do."""


class _OpenTransactionError(Exception):
    """The query begins behind a transaction that is open; the message says where."""


class Stoppable(Protocol):
    """Whether the process was asked to stop."""

    @property
    def is_requested(self) -> bool:
        """Whether a stop was requested."""

    def wait(self, seconds: float) -> bool:
        """Wait for a time, or until a stop is requested."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where the query continues."""

    client: GroupClient
    generation: Generation
    #: For every partition of the input topics; empty if only the first batch will show them.
    position: dict[TopicPartition, int]
    #: `startingOffsets` of the source; once the checkpoint has a batch, it takes precedence.
    starting_offsets: str
    #: The ids of the input topics, by name.
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    #: `max.message.bytes` of the dead-letter topic, if there is one.
    dead_letter_bytes_max: int | None = None


class _Waiting:
    """The time that a start may wait, and what is said meanwhile."""

    def __init__(self, settings: JobSettings, stop: Stoppable) -> None:
        self._seconds_max = settings.startup_timeout_seconds
        self._deadline = time.monotonic() + self._seconds_max
        self._stop = stop
        self._said_at = -_SAY_AGAIN_SECONDS

    def wait(self, problem: str) -> None:
        """Wait before the next look. Raises `JobError` when the time is over."""
        if time.monotonic() > self._deadline:
            raise JobError(f"gave up after {self._seconds_max:g} s: {problem}")
        if time.monotonic() - self._said_at >= _SAY_AGAIN_SECONDS:
            self._said_at = time.monotonic()
            _log.info("waiting", reason=problem)
        self._stop.wait(_POLL_SECONDS)


def when_servers_answer(
    work: Callable[[], _Found], settings: JobSettings, stop: Stoppable
) -> _Found | None:
    """Do what asks sinks' servers, again while one is away; returns None on a stop request.

    Raises `JobError` when it is away for too long, and what `work` raises.
    """
    waiting = _Waiting(settings, stop)
    while not stop.is_requested:
        try:
            return work()
        except SinkAwayError as error:
            waiting.wait(str(error))
    return None


def prepare(settings: JobSettings, stop: Stoppable) -> Start | None:
    """Wait for brokers and topics; returns None on a stop request. Raises `JobError`."""
    waiting, client = _Waiting(settings, stop), None
    while not stop.is_requested:
        try:
            client = client or GroupClient(settings.bootstrap_servers, client_id=settings.name)
            missing = settings.topics - client.partitions(settings.topics).keys()
            if not missing:
                return _start(settings, client)
            problem = f"topic {' and '.join(sorted(missing))} does not exist"
        except (GenerationError, CheckpointError) as error:
            raise JobError(str(error)) from error
        except _OpenTransactionError as error:
            problem = str(error)
        except (KafkaError, OSError, ValueError) as error:
            problem = f"no broker answers at {settings.bootstrap_servers} ({error})"
        waiting.wait(problem)
    if client is not None:
        client.close()
    return None


def _start(settings: JobSettings, client: GroupClient) -> Start:
    partitions = [
        TopicPartition(topic, index)
        for topic, count in client.partitions(settings.input_topics).items()
        for index in range(count)
    ]
    earliest = client.end_offsets(partitions, earliest=True)
    latest = client.end_offsets(partitions)
    begin = latest if settings.starting_offsets == "latest" else earliest
    if isinstance(settings.starting_offsets, int):
        # Asked after the ends: what comes between is read.
        begin = latest | client.offsets_at(partitions, settings.starting_offsets)
    resets = client.resets(settings.group) if settings.group is not None else {}
    generations = Generations(settings.checkpoint)
    before = generations.current
    generation = generations.follow(
        resets, starting_position(begin, before.position, added=earliest)
    )
    if generation.number != before.number:
        _log.info(
            "the group was reset: the query goes on with another generation of its checkpoint",
            group=settings.group,
            requests=sorted({reset.request_id for reset in resets.values()}),
            checkpoint=generation.path,
        )
    position = starting_position(begin, generation.position, added=earliest)
    ids = client.topic_ids(settings.input_topics)
    found = gaps(position, earliest, client.end_offsets(partitions, with_open_transactions=True))
    check_gaps(settings, [*_recreated(generation, ids), *found])
    # With --no-fail-on-data-loss the remaining records begin here.
    position = {at: max(offset, earliest[at]) for at, offset in position.items()}
    _wait_for_transactions(position, latest)
    return Start(
        client=client,
        generation=generation,
        # Only Spark reads a checkpoint on another file system: a guess could run ahead of it.
        position=position if local_folder(settings.checkpoint) is not None else {},
        # As offsets, so that the group gets the meaning of `latest`. A checkpoint with a batch
        # takes precedence, and Spark then ignores these.
        starting_offsets=format_offsets(position),
        topic_ids=ids,
        dead_letter_bytes_max=client.max_message_bytes(settings.dead_letter_topic)
        if settings.dead_letter_topic is not None
        else None,
    )


def _wait_for_transactions(
    position: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> None:
    """Raise `_OpenTransactionError` where the query would begin behind what it can read.

    A reset to the end of a topic names an offset behind a transaction that is still open. Spark
    would take that for a loss of records.
    """
    ahead = [at for at, offset in sorted(position.items()) if offset > latest[at]]
    if ahead:
        at = ahead[0]
        raise _OpenTransactionError(
            f"a transaction is open in {at.topic}-{at.partition}, from offset {latest[at]} on, and"
            f" {position[at]} is to be read next: it has to end first"
        )


def _recreated(generation: Generation, ids: Mapping[str, str]) -> list[str]:
    """Describe topics that are not the ones whose offsets the checkpoint has."""
    folder = local_folder(generation.path)
    if folder is None or not generation.position:
        return []
    return [
        f"{topic}: was deleted and made again, so the checkpoint's offsets are of other records"
        for topic in recreated_topics(known_topics(folder), ids)
    ]


def gaps(
    position: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
) -> list[str]:
    """Describe the records that the query wants to read but no longer exist. Pure."""
    found = []
    for at, offset in sorted(position.items()):
        name = f"{at.topic}-{at.partition}"
        if offset < earliest[at]:
            lost = earliest[at] - offset
            found.append(
                f"{name}: offsets {offset} to {earliest[at] - 1} ({lost} records) are gone"
            )
        elif offset > latest[at]:
            found.append(f"{name}: ends at {latest[at]}, and {offset} was to be read next")
    return found


def check_gaps(settings: JobSettings, found: Sequence[str]) -> None:
    """Report records that retention, or a recreated topic, removed before the job read them.

    Raises `JobError` if the job must not continue.
    """
    if not found:
        return
    gap = "; ".join(found)
    if settings.fail_on_data_loss:
        raise JobError(
            f"records that the job has not read are no longer there: {gap}. Retention took them, or"
            " the topic was recreated. --no-fail-on-data-loss goes on with the gap; a reset of the"
            " group begins elsewhere"
        )
    _log.warning("the job goes on with a gap, as --no-fail-on-data-loss says", gap=gap)
