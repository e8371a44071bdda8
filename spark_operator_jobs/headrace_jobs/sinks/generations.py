"""Generations of a job's output: listed, compared, swapped and deleted.

A new generation of a job reads the past again, with a changed program, into a shadow beside the
live output. It is compared, then swapped in atomically or discarded; the same step swaps back to
the old one. Code common to all sinks is here; a sink that supports it has `output_generations`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from headrace_jobs.progress.stored import NO_BATCH, StoredProgress
from headrace_jobs.sinks.protocol import LATE, SinkError, whole_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from headrace_jobs.progress.offsets import TopicPartition
    from headrace_jobs.sinks.protocol import Sink

__all__ = [
    "Difference",
    "OutputGeneration",
    "OutputGenerations",
    "Shadowing",
    "columns_of_one",
    "generation_of",
    "mixing",
    "refuse_others",
    "refuse_unwritten",
    "row_digest",
    "seen_by_readers",
    "shadowing",
]

_Generation = TypeVar("_Generation")


@dataclass(frozen=True, kw_only=True)
class OutputGeneration:
    """One generation: where its rows are, its progress, and whether readers see it."""

    generation: int
    output: str
    is_live: bool
    batch_id: int
    offsets: Mapping[TopicPartition, int]
    delivery: str


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Rows that differ between two generations. `examples`: pairs as JSON; None: no such row."""

    only_old: int
    only_new: int
    changed: int
    same: int
    examples: tuple[tuple[str | None, str | None], ...] = ()
    #: Columns that only one of them has: all of its rows differ in them.
    columns_old: tuple[str, ...] = ()
    columns_new: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        """Whether both have the same rows of the same columns."""
        is_same = not (self.columns_old or self.columns_new)
        return is_same and not (self.only_old or self.only_new or self.changed)


def columns_of_one(
    old: Collection[str], new: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns that only the old rows have, and those that only the new ones have."""
    return tuple(sorted({*old} - {*new})), tuple(sorted({*new} - {*old}))


class OutputGenerations(Protocol):
    """The generations of one job in one sink."""

    def all(self) -> list[OutputGeneration]:
        """Return every generation. Raises `SinkError`."""

    def diff(self, old: int, new: int, *, examples_max: int = 10) -> Difference:
        """Compare two. Raises `SinkError`."""

    def swap(self, generation: int) -> None:
        """Make it the live one, atomically. Raises `SinkError`."""

    def discard(self, generation: int) -> None:
        """Discard a shadow, and fence its driver. Raises `SinkError`."""


@runtime_checkable
class Shadowing(Protocol):
    """A sink that can hold a shadow beside the live output."""

    def output_generations(self, job: str) -> OutputGenerations:
        """Return the job's generations there."""


def shadowing(sink: Sink) -> Shadowing | None:
    """Return the sink as a `Shadowing`, if it is one; also if it gets a part of the results."""
    whole = whole_of(sink)
    return whole if isinstance(whole, Shadowing) else None


def generation_of(
    found: Mapping[int, _Generation], generation: int, *, place: str, job: str
) -> _Generation:
    """Return one of the found generations. Raises `SinkError` that lists them."""
    if generation not in found:
        known = ", ".join(map(str, found)) or "none"
        raise SinkError(f"{place} has no generation {generation} of {job} ({known})")
    return found[generation]


def refuse_unwritten(
    place: str, generation: int, progress: StoredProgress | OutputGeneration
) -> None:
    """Raise `SinkError` if a generation has no batch yet: there is nothing for readers to see."""
    if progress.batch_id == NO_BATCH and not progress.offsets:
        raise SinkError(
            f"generation {generation} has written nothing into {place} yet: wait for its first"
            " batch (headrace jobs generations)"
        )


def mixing(place: str, rows: str, live: int, generation: int) -> SinkError:
    """Return why a new generation may not write there: `rows` describes another one's rows."""
    return SinkError(
        f"{place} holds the {rows} of generation {live}: begin generation {generation} beside"
        " them, with --shadow, then compare and swap (headrace jobs diff, headrace jobs swap)"
    )


def refuse_others(place: str, job: str, jobs: Iterable[str]) -> None:
    """Raise `SinkError` if jobs other than this one, and its corrections, write there."""
    others = sorted(set(jobs) - {job, f"{job}{LATE}"})
    if others:
        raise SinkError(
            f"{place} has rows of other jobs, too ({', '.join(others)}): they cannot be told apart"
        )


def seen_by_readers(place: str, generation: int) -> SinkError:
    """Return why a generation cannot be discarded."""
    return SinkError(f"readers see generation {generation} in {place}: swap in another first")


def row_digest(row: str) -> bytes:
    """Return a digest of a row, which is JSON with ordered fields, for comparisons."""
    return hashlib.blake2b(row.encode(), digest_size=16).digest()
