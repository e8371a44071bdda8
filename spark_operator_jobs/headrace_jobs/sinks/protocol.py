"""What every sink is: rows and progress into one store. Pure types; a sink's module has the IO.

A `Sink` is declared and knows nothing of the run. `open` connects, takes the next fencing epoch of
its (job, generation) in the store itself, and reads the progress that is stored there; the
`SinkWriter` that it returns takes batches. From the moment a successor has opened the sink, the
writer of the driver before it is refused by the store: a zombie is fenced where it would do harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace_jobs.delivery import Delivery
    from headrace_jobs.progress.stored import Batch, StoredProgress

__all__ = ["ProgressWriter", "Run", "Sink", "SinkError", "SinkWriter"]


class SinkError(Exception):
    """A sink cannot be used; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """The run that opens a sink: who it is, and what was asked of it on the command line."""

    job: str
    generation: int
    delivery: Delivery
    bootstrap_servers: str
    #: Of a job with one output topic: the topic that was given instead of the declared one.
    output_topic: str | None = None
    input_topics: tuple[str, ...] = ()
    #: The group that progress is committed to, beside what the sink keeps for itself.
    group: str | None = None
    #: A generation that is new begins beside what readers see.
    is_shadow: bool = False


class SinkWriter(Protocol):
    """An open sink."""

    @property
    def keeps_progress(self) -> bool:
        """Whether it is a `ProgressWriter`."""

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """Write a batch. What is in the store on return is as durable as the store makes it."""

    def close(self) -> None:
        """Let go of connections."""


@runtime_checkable
class ProgressWriter(SinkWriter, Protocol):
    """An open sink that stores progress with its rows."""

    @property
    def stored(self) -> StoredProgress:
        """What the store had when it was opened, or asked last."""

    @property
    def can_rewind(self) -> bool:
        """Whether rows that are written again replace themselves."""

    def rewind(self, progress: StoredProgress) -> None:
        """Store where the next batch has to begin, in place of what is stored."""

    def describe(self) -> str:
        """Return what it is, for messages."""


class Sink(Protocol):
    """A place for results, as declared."""

    def describe(self) -> str:
        """Return what it is, for messages: `topic cpu-load-windows`."""

    def refusal(self, delivery: Delivery, output_mode: str) -> str | None:
        """Return why this delivery cannot hold here; None when it can."""

    def open(self, run: Run) -> SinkWriter:
        """Connect. Raises `SinkError`."""
