"""What a job is: sources, a pure transform, sinks, delivery and generation, declared with types.

A module with a `Job` named `JOB` is a job, in this package or in anybody's:

    JOB = Job(
        name="orders-by-minute",
        sources=(Topic("orders"),),
        transform=orders_by_minute,            # DataFrame → DataFrame, pure
        sinks=(PostgresTable(table="orders_by_minute", key=("minute",)),),
        delivery=Delivery.EXACTLY_ONCE,
    )

`headrace jobs run MODULE` runs it, and a SparkApplication names the module in its arguments. A
combination that cannot hold is refused before anything starts, with the reason (`problems`).
Imports no PySpark: a declaration is read by tools that have no JVM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from headrace_jobs.delivery import Delivery
from headrace_jobs.sinks.generations import shadowing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

    from headrace_jobs.sinks.protocol import Sink

__all__ = ["Delivery", "Job", "Parameter", "Topic", "problems"]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True)
class Topic:
    """A topic to read. Without a name, `--input-topic` gives it."""

    topic: str | None = None
    #: What `--input-topic NAME=TOPIC` calls it, in a job that has several.
    name: str = "input"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """An argument of the job's own, `--name`; the transform gets it under its name."""

    name: str
    help: str
    #: From text; raises `argparse.ArgumentTypeError` or `ValueError` that says what is accepted.
    parse: Callable[[str], Any] = str
    #: As text; None leaves the argument out, and the transform gets None.
    default: str | None = None


def _accept(_parameters: Mapping[str, Any]) -> None:
    """Accept any parameters."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A stream job.

    `transform` gets one frame of Kafka's columns (`key, value, topic, partition, offset,
    timestamp, headers`) for each source, in their order, then the parameters by name, and
    `output_mode` where it has a parameter of that name. It is pure: the same function is tested on
    frames that do not stream. Records that it sets aside leave it beside the results
    (`headrace_jobs.transforms.tagged`).
    """

    name: str
    sources: tuple[Topic, ...]
    transform: Callable[..., DataFrame]
    sinks: tuple[Sink, ...]
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    #: A new one begins beside the old one, with progress and output of its own.
    generation: int = 1
    #: A new generation's output begins beside the one that readers see, to be compared and swapped.
    shadow: bool = False
    description: str = ""
    output_mode: Literal["append", "update"] = "append"
    #: Columns that identify a result. With them `headrace jobs replay-late` computes again what
    #: late records belong to: the transform has to give all results of frames that do not stream.
    result_key: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    #: Raises `ValueError` for parameters that do not fit each other.
    check: Callable[[Mapping[str, Any]], None] = field(default=_accept)

    @property
    def query_name(self) -> str:
        """The name that Spark and the metrics know the query by."""
        return self.name.replace("-", "_")


def problems(job: Job) -> list[str]:
    """Return why this job cannot run as declared; empty when it can. Pure."""
    found = []
    if not _NAME.fullmatch(job.name):
        found.append(f"name {job.name!r}: lower-case letters, digits and - only, as in Kubernetes")
    if not job.sources:
        found.append("sources: a job reads at least one topic")
    names = [source.name for source in job.sources]
    if len(set(names)) < len(names):
        found.append(f"sources: names are not unique: {', '.join(names)}")
    if not job.sinks:
        found.append("sinks: a job without one computes for nobody")
    if job.generation < 1:
        found.append(f"generation: {job.generation} is not a number from 1")
    for sink in job.sinks:
        if job.shadow and shadowing(sink) is None:
            found.append(
                f"shadow: {sink.describe()} cannot be swapped in one step; name another place for"
                " the new generation instead"
            )
        reason = sink.refusal(job.delivery, job.output_mode)
        if reason is not None:
            found.append(f"delivery {job.delivery} cannot hold in {sink.describe()}: {reason}")
    return found
