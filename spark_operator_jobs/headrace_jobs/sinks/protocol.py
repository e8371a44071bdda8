"""The interface of every sink: rows and progress in one store. Types only; sinks do the IO.

A `Sink` is a declaration and knows nothing of the run. `open` connects, takes the next fencing
epoch of its (job, generation) in the store itself, and reads the stored progress; the `SinkWriter`
that it returns takes batches. Once a successor has opened the sink, the store refuses the previous
driver's writer: a zombie is fenced where it would do harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame

    from headrace_jobs.delivery import Delivery
    from headrace_jobs.progress.stored import Batch, StoredProgress

__all__ = [
    "LATE",
    "ProgressWriter",
    "Run",
    "Sink",
    "SinkAwayError",
    "SinkError",
    "SinkWriter",
    "layers_of",
    "whole_of",
]

#: The end of the name under which a job's results are corrected. No job's own name has a dot.
LATE = ".late"


class SinkError(Exception):
    """A sink cannot be used; the message says why and what to do."""


class SinkAwayError(SinkError):
    """A sink's server does not answer, or refuses for now: it may be asked again."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """The run that opens a sink: its identity, and its command-line options."""

    job: str
    generation: int
    delivery: Delivery
    bootstrap_servers: str
    #: For a job with one output topic: the topic given instead of the declared one.
    output_topic: str | None = None
    input_topics: tuple[str, ...] = ()
    #: The group to which progress is committed, besides the sink's own progress; None in all sinks
    #: of a job but the last one.
    group: str | None = None
    #: Whether a new generation starts beside the live output.
    is_shadow: bool = False

    @property
    def corrects(self) -> str | None:
        """The job whose results this run corrects; None for a job's own run."""
        return self.job.removesuffix(LATE) if self.job.endswith(LATE) else None


class SinkWriter(Protocol):
    """An open sink."""

    @property
    def keeps_progress(self) -> bool:
        """Whether it is a `ProgressWriter`."""

    def unfit(self, frame: DataFrame) -> Column | None:
        """Return why each row can never be written, null for those that can; None if all can."""

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """Write a batch of rows that fit. On return it is as durable as the store makes it."""

    def close(self) -> None:
        """Close connections."""


@runtime_checkable
class ProgressWriter(SinkWriter, Protocol):
    """An open sink that stores progress with its rows."""

    @property
    def stored(self) -> StoredProgress:
        """The progress in the store when it was opened or last read."""

    @property
    def can_rewind(self) -> bool:
        """Whether rows can be written again and replace themselves."""

    def rewind(self, progress: StoredProgress) -> None:
        """Replace the stored position by one where the next batch must start."""

    def describe(self) -> str:
        """Return a description for messages."""


class Sink(Protocol):
    """A place for results, as declared."""

    def describe(self) -> str:
        """Return a description for messages: `topic cpu-load-windows`."""

    def refusal(self, delivery: Delivery, output_mode: str) -> str | None:
        """Return why this delivery is impossible here; None if it is possible."""

    def open(self, run: Run) -> SinkWriter:
        """Connect. Raises `SinkError`."""


def layers_of(sink: Sink) -> Iterator[Sink]:
    """Yield what says which part of the results a sink gets (`Only`), outermost first, and it."""
    yield sink
    while (inner := getattr(sink, "sink", None)) is not None:
        sink = inner
        yield sink


def whole_of(sink: Sink) -> Sink:
    """Return the sink itself where it is to get a part of the results (`Only`). Pure."""
    *_, whole = layers_of(sink)
    return whole
