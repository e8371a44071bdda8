"""The declaration of a job: sources, a pure transform, sinks, delivery and generation, typed.

A module with a `Job` named `JOB` is a job, in this package or in any other:

    JOB = Job(
        name="orders-by-minute",
        sources=(Topic("orders"),),
        transform=orders_by_minute,            # DataFrame → DataFrame, pure
        sinks=(PostgresTable(table="orders_by_minute", key=("minute",)),),
        delivery=Delivery.EXACTLY_ONCE,
    )

`headrace jobs run MODULE` runs it, and a SparkApplication names the module in its arguments. An
impossible combination is refused before anything starts, with the reason (`problems`). Imports no
PySpark: tools without a JVM read declarations, too.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from headrace_jobs.delivery import Delivery
from headrace_jobs.sinks.generations import shadowing
from headrace_jobs.sinks.kafka import KafkaSink
from headrace_jobs.sinks.protocol import layers_of, whole_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

    from headrace_jobs.sinks.protocol import Sink

__all__ = ["Delivery", "Job", "Parameter", "Topic", "mistakes", "problems", "topic_sinks"]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True)
class Topic:
    """A topic to read. Without a name, `--input-topic` gives it."""

    topic: str | None = None
    #: The name for `--input-topic NAME=TOPIC`, in a job with several sources.
    name: str = "input"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """The job's own argument `--name`; the transform gets its value under that name."""

    name: str
    help: str
    #: Parses the text; raises `argparse.ArgumentTypeError` or `ValueError` that says what is
    #: accepted.
    parse: Callable[[str], Any] = str
    #: As text; None makes the argument optional, and the transform gets None.
    default: str | None = None


def _accept(_parameters: Mapping[str, Any]) -> None:
    """Accept any parameters."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A stream job.

    `transform` gets one frame of Kafka's columns (`key, value, topic, partition, offset, timestamp,
    headers`) for each source, in their order, then the parameters by name, and `output_mode` if it
    has a parameter of that name. It is pure: tests call the same function with batch frames.
    Rejected records leave it in the same frame as the results (`headrace_jobs.transforms.tagged`).
    """

    name: str
    sources: tuple[Topic, ...]
    transform: Callable[..., DataFrame]
    sinks: tuple[Sink, ...]
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    #: A new generation runs beside the old one, with its own progress and output.
    generation: int = 1
    #: Write a new generation's output beside the live output, to be compared and swapped.
    shadow: bool = False
    description: str = ""
    output_mode: Literal["append", "update"] = "append"
    #: Columns that identify a result. With them `headrace jobs replay-late` recomputes the results
    #: that late records belong to: the transform must return all results for batch frames.
    result_key: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    #: Raises `ValueError` for parameters that are inconsistent with each other.
    check: Callable[[Mapping[str, Any]], None] = field(default=_accept)

    @property
    def query_name(self) -> str:
        """The query's name in Spark and in the metrics."""
        return self.name.replace("-", "_")


def problems(job: Job) -> list[str]:
    """Return why this job cannot run as declared; empty when it can. Pure."""
    found = mistakes(job)
    if found:
        return found
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
    places = Counter(
        sink.describe()
        for sink in job.sinks
        if job.delivery is Delivery.EXACTLY_ONCE or shadowing(sink) is not None
    )
    found += [
        f"sinks: {place} is there more than once, and progress is kept once for each place: let one"
        " sink have all of its rows"
        for place, count in places.items()
        if count > 1
    ]
    topics = topic_sinks(job)
    if len(topics) > 1 and any(sink.topic is None for sink in topics):
        # --output-topic would be the topic of all of them.
        found.append("sinks: the output topic is one of several: name it, KafkaSink(topic=…)")
    for sink in job.sinks:
        if job.shadow and shadowing(sink) is None:
            found.append(
                f"shadow: {sink.describe()} cannot be swapped in one step; name another place for"
                " the new generation instead"
            )
        reason = sink.refusal(job.delivery, job.output_mode)
        if reason is not None:
            found.append(f"delivery {job.delivery} cannot hold in {sink.describe()}: {reason}")
    return found or _misfits(job)


def topic_sinks(job: Job) -> list[KafkaSink]:
    """Return the sinks that are topics, also those that get a part of the results. Pure."""
    return [sink for sink in map(whole_of, job.sinks) if isinstance(sink, KafkaSink)]


def mistakes(job: Job) -> list[str]:
    """Return which fields have values of another kind: nobody has to run a type checker. Pure."""
    found = [
        f"{name}: {getattr(job, name)!r} is no {kind.__name__}"
        for name, kind in (("name", str), ("generation", int), ("shadow", bool))
        if not isinstance(getattr(job, name), kind)
    ]
    if not callable(job.transform):
        found.append(f"transform: {job.transform!r} is no function")
    if job.delivery not in list(Delivery):
        found.append(f"delivery: {job.delivery!r} is none of {', '.join(Delivery)}")
    if job.output_mode not in ("append", "update"):
        found.append(f"output_mode: {job.output_mode!r} is neither append nor update")
    for name, one, many in (
        ("sources", "Topic", "Topic"),
        ("sinks", "sink", "sinks"),
        ("parameters", "Parameter", "Parameter"),
    ):
        values: Any = getattr(job, name)
        if not isinstance(values, (tuple, list)):
            found.append(f"{name}: a tuple of {many}, as in {name}=(…,)")
            continue
        found += [f"{name}: {each!r} is no {one}" for each in values if not _is_a(one, each)]
    if not found:
        found += _single_names(job)
    return found


def _single_names(job: Job) -> list[str]:
    """Return where a name stands for a tuple of names, whose letters would be taken for them."""
    places = [("result_key", job.result_key)]
    for sink in job.sinks:
        for each in layers_of(sink):
            # A name alone, as of a search index's `version`, is no tuple.
            names = ("key", "key_columns", "number_columns", "columns")
            places += [(f"sinks: {name}", getattr(each, name, ())) for name in names]
    return [
        f"{place}: {names!r} is one name: a tuple of names, as in ({names!r},)"
        for place, names in places
        if isinstance(names, str)
    ]


def _is_a(kind: str, value: object) -> bool:
    if kind == "sink":
        return all(callable(getattr(value, name, None)) for name in ("describe", "open", "refusal"))
    return isinstance(value, Topic if kind == "Topic" else Parameter)


def _misfits(job: Job) -> list[str]:
    """Return why the transform cannot be called with what it gets."""
    names = [each.name.replace("-", "_") for each in job.parameters]
    try:
        signature = inspect.signature(job.transform)
        by_name = [*names, *(["output_mode"] if "output_mode" in signature.parameters else [])]
        signature.bind(*job.sources, **dict.fromkeys(by_name))
    except ValueError:
        return []  # of a function that does not tell
    except TypeError as error:
        sources = ", ".join(source.name for source in job.sources) or "no source"
        given = f", and {', '.join(names)} by name" if names else ""
        return [f"transform: {error}; it gets a frame for each of {sources}{given}"]
    return []
