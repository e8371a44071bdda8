"""Orders events of several topics by their event times: one step of the fold.

Owns which events are late, which are duplicates, and which are in order and complete. A group of
keys has a clock for each source partition: the newest event time so far, in offset order, minus the
lateness. An event behind its own partition's clock is late, which depends on the log alone. Events
are held until the slowest clock of all sources has passed them. They leave in the same order
whatever the order of arrival, the speed of a topic and the batch boundaries: so a fold over them
gives the same results for the live run, a backfill and a rewind. Knows no Spark, no clock and no
IO.

Times are microseconds since 1970 in UTC, those that end in `_ms` milliseconds.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_jobs.transforms.window_fold import NEVER_US

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Event", "OrderSpec", "OrderState", "Record", "Taken", "take"]

# A pause between batches counts as silence only up to this time: a job that was down for an hour
# has not observed an hour of silence.
STEP_MS_MAX = 10_000


@dataclass(frozen=True, kw_only=True)
class OrderSpec:
    """Which sources are waited for, and for how long.

    `sources`: in the order in which events of one time are applied.
    `remember_us`: how long after its time an event's id is remembered; a second one is a duplicate,
    and after that it is late. `idle_ms`: a partition without a record for this long, while batches
    run, delays no others. `jump_us`: a time further ahead than this moves its clock only once a
    second one confirms it.
    """

    sources: tuple[str, ...]
    lateness_us: int
    remember_us: int
    idle_ms: int = 60_000
    jump_us: int = 60_000_000


class Record(NamedTuple):
    """A record of a source. Without an id it only moves its partition's clock."""

    source: str
    partition: int
    offset: int
    event_us: int
    id: str | None
    body: Mapping[str, Any]
    #: Its position in the given rows.
    row: int


class Event(NamedTuple):
    """An accepted event. Events are applied in the order of their first three fields."""

    event_us: int
    rank: int
    id: str
    body: Mapping[str, Any]


@dataclass(kw_only=True)
class _Clock:
    newest_us: int = NEVER_US
    second_us: int = NEVER_US
    silent_ms: int = 0

    def advance(self, event_us: int) -> None:
        self.silent_ms = 0
        if event_us > self.newest_us:
            self.newest_us, self.second_us = event_us, self.newest_us
        else:
            self.second_us = max(self.second_us, event_us)

    def watermark_us(self, spec: OrderSpec) -> int:
        is_confirmed = self.newest_us - self.second_us <= spec.jump_us
        known = self.newest_us if is_confirmed else self.second_us
        return known if known == NEVER_US else known - spec.lateness_us


@dataclass(kw_only=True)
class OrderState:
    """The state between batches. `take` changes it in place.

    `clocks`: by source and partition. `horizon_us`: everything before it has been released, in
    order. `held`: events that have not. `ids`: known ids with their times.
    """

    clocks: dict[str, dict[str, _Clock]] = field(default_factory=dict)
    horizon_us: int = NEVER_US
    at_ms: int = 0
    age_ms: int = 0
    held: list[Event] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> OrderState:
        """Read what `to_json` returned."""
        document = json.loads(text)
        clocks = {
            source: {at: _Clock(**clock) for at, clock in partitions.items()}
            for source, partitions in document.pop("clocks").items()
        }
        held = [Event(*event) for event in document.pop("held")]
        return cls(clocks=clocks, held=held, **document)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The result of one step.

    `released`: events that are complete up to the horizon, in order. `late`: given rows with the
    watermark that they missed. `duplicates`: given rows. `watermarks_us`: by source and partition.
    """

    released: list[Event]
    late: dict[int, int]
    duplicates: list[int]
    watermarks_us: dict[tuple[str, int], int]


def take(
    state: OrderState,
    records: Sequence[Record],
    *,
    spec: OrderSpec,
    now_ms: int,
    is_silent: bool = False,
) -> Taken:
    """Process a group's records of one batch. Changes `state`.

    `is_silent`: all sources were silent for the idle timeout. Held events are then released, up to
    the newest time that a second record confirms; older events that come later are late.
    """
    _grow_silent(state, now_ms)
    late: dict[int, int] = {}
    duplicates: list[int] = []
    last: tuple[str, int, int] | None = None
    for record in sorted(records, key=lambda each: (each[:3], each.id is None)):
        place = (record.source, record.partition, record.offset)
        if place == last and record.id is None:
            continue  # the record itself is here, too: a time does not confirm itself
        last = place
        partitions = state.clocks.setdefault(record.source, {})
        clock = partitions.setdefault(str(record.partition), _Clock())
        clock.advance(record.event_us)
        if record.id is None:
            continue
        name = f"{record.source}/{record.id}"
        watermark_us = max(clock.watermark_us(spec), state.horizon_us)
        if name in state.ids:
            duplicates.append(record.row)
        elif record.event_us < watermark_us:
            late[record.row] = watermark_us
        else:
            state.ids[name] = record.event_us
            rank = spec.sources.index(record.source)
            state.held.append(Event(record.event_us, rank, record.id, record.body))
    return Taken(
        released=_release(state, spec, is_silent=is_silent and not records),
        late=late,
        duplicates=duplicates,
        watermarks_us={
            (source, int(partition)): clock.watermark_us(spec)
            for source, partitions in state.clocks.items()
            for partition, clock in partitions.items()
        },
    )


def _grow_silent(state: OrderState, now_ms: int) -> None:
    """Let time pass since the batch before."""
    passed_ms = min(max(now_ms - state.at_ms, 0), STEP_MS_MAX) if state.at_ms else 0
    state.at_ms = now_ms
    state.age_ms += passed_ms
    for partitions in state.clocks.values():
        for clock in partitions.values():
            clock.silent_ms += passed_ms


def _release(state: OrderState, spec: OrderSpec, *, is_silent: bool) -> list[Event]:
    """Move the horizon; return the events before it, in order."""
    complete_us = _newest_us(state, spec) + 1 if is_silent else _slowest_us(state, spec)
    state.horizon_us = max(state.horizon_us, complete_us)
    released = sorted(event for event in state.held if event.event_us < state.horizon_us)
    state.held = [event for event in state.held if event.event_us >= state.horizon_us]
    forget_us = state.horizon_us - spec.remember_us
    state.ids = {name: at for name, at in state.ids.items() if at >= forget_us}
    return released


def _newest_us(state: OrderState, spec: OrderSpec) -> int:
    """Return the newest time of all partitions; a single one far ahead is ignored."""
    clocks = [clock for partitions in state.clocks.values() for clock in partitions.values()]
    times = sorted(time for each in clocks for time in (each.newest_us, each.second_us))
    if not times:
        return NEVER_US
    is_believed = times[-1] - times[-2] <= spec.jump_us
    return times[-1] if is_believed else times[-2]


def _slowest_us(state: OrderState, spec: OrderSpec) -> int:
    """Return the watermark of the slowest partition that is not idle."""
    marks: list[int] = []
    for source in spec.sources:
        partitions = state.clocks.get(source, {})
        if not partitions and state.age_ms < spec.idle_ms:
            return NEVER_US
        marks += [
            clock.watermark_us(spec)
            for clock in partitions.values()
            if clock.silent_ms < spec.idle_ms
        ]
    return min(marks, default=NEVER_US)
