"""The shape of a measurement: sides, rounds, medians, and what a round cost the broker.

A scenario runs on every side in turn, round after round (interleaved, so that a noisy minute hits
both), and reports the median of each figure.
"""

import statistics
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from support.peer import Peer
from support.processes import wait_until

Figures = dict[str, float]
_REASON_LENGTH_MAX = 300


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What the ratio ours / Kafka's (or ours alone) has to reach."""

    bound: float
    is_at_least: bool
    is_ratio: bool = True

    def is_met(self, ours: float, ratio: float) -> bool:
        value = ratio if self.is_ratio else ours
        return value >= self.bound if self.is_at_least else value <= self.bound

    def __str__(self) -> str:
        sign = "≥" if self.is_at_least else "≤"
        return f"{sign} {self.bound:g} x" if self.is_ratio else f"{sign} {self.bound:g}"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One figure that a scenario reports: its key, words, unit and goal."""

    key: str
    title: str
    unit: str
    goal: Goal | None = None


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One measured situation. `run` measures one round on one side; `prepare` warms it up."""

    key: str
    title: str
    command: str
    measures: tuple[Measure, ...]
    run: Callable[[Peer], Figures]
    prepare: Callable[[Peer], None] | None = None
    rounds_max: int | None = None


@dataclass(kw_only=True)
class Outcome:
    """The medians of a scenario by side, and every round's figures behind them."""

    scenario: Scenario
    rounds: dict[str, list[Figures]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """By side: why it did not get through the scenario, or not through all rounds."""

    def median(self, side: str, key: str) -> float:
        values = [figures[key] for figures in self.rounds.get(side, []) if key in figures]
        return statistics.median(values) if values else float("nan")


def _nothing() -> None:
    """The machine is as it should be."""


def run_scenario(
    scenario: Scenario,
    sides: list[Peer],
    rounds: int,
    say: Callable[[str], None],
    settle: Callable[[], None] = _nothing,
) -> Outcome:
    """Warm every side up, then measure them in turn; one that fails is left out from there on.

    `settle` puts the machine into the same state before each measurement.
    """
    outcome = Outcome(scenario=scenario)
    say(f"{scenario.title}")

    def attempt(side: Peer, work: Callable[[Peer], Figures | None]) -> Figures | None:
        if side.name in outcome.failures:
            return None
        try:
            return work(side)
        except Exception as error:  # noqa: BLE001 (whatever it is, the other figures are wanted)
            outcome.failures[side.name] = _in_one_line(error)
            say(f"  {side.name} FAILED: {outcome.failures[side.name]}")
            _revive(side, say)
            return None

    for side in sides:
        if scenario.prepare is not None:
            attempt(side, scenario.prepare)
    for number in range(min(rounds, scenario.rounds_max or rounds)):
        # The order alternates: whoever goes first finds a colder page cache.
        for side in sides if number % 2 == 0 else sides[::-1]:
            settle()
            figures = attempt(side, scenario.run)
            if figures is not None:
                outcome.rounds.setdefault(side.name, []).append(figures)
                shown = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
                say(f"  round {number + 1}, {side.name}: {shown}")
    return outcome


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_REASON_LENGTH_MAX]


def _revive(side: Peer, say: Callable[[str], None]) -> None:
    """Give the next scenario a side that runs, with the data that it had."""
    try:
        side.kill()
        side.restart()
    except Exception as error:  # noqa: BLE001 (the next scenario says so again)
        say(f"  {side.name} does not start again: {_in_one_line(error)}")


@contextmanager
def fresh_topic(side: Peer, partitions: int = 1, **config: str) -> Iterator[str]:
    """Create a topic of its own for one measurement and delete it afterwards."""
    admin = AdminClient({"bootstrap.servers": side.bootstrap})
    name = f"benchmark-{uuid.uuid4().hex[:12]}"
    topic = NewTopic(name, partitions, 1, config=config)
    admin.create_topics([topic])[name].result(30)
    # An acknowledged creation reaches a broker's metadata a moment later.
    wait_until(lambda: name in admin.list_topics(timeout=5).topics, what=f"topic {name}")
    try:
        yield name
    finally:
        try:
            admin.delete_topics([name])[name].result(30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
