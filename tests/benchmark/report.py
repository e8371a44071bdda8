"""The table of a benchmark run, for the terminal and for docs/benchmarks.md."""

import math
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

from benchmark.measure import Measure, Outcome
from support.headrace_broker import HeadraceBroker
from support.kafka_peer import KAFKA_VERSION, KafkaPeer

_OURS, _THEIRS = HeadraceBroker.name, KafkaPeer.name
_GIB = 1 << 30


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def machine_facts() -> str:
    """Return what a reader needs to judge the numbers; nothing that names the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    return (
        f"{os.cpu_count()} CPUs ({_processor()}), {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, Apache Kafka {KAFKA_VERSION}; "
        f"brokers and load generator share the machine"
    )


def _row(outcome: Outcome, measure: Measure) -> str:
    ours = outcome.median(_OURS, measure.key)
    theirs = outcome.median(_THEIRS, measure.key)
    ratio = ours / theirs if theirs else float("nan")
    goal, verdict = "", ""
    if measure.goal is not None:
        goal = str(measure.goal)
        judged = ratio if measure.goal.is_ratio else ours
        if not math.isnan(judged):
            verdict = "met" if measure.goal.is_met(ours, ratio) else "missed"
    shown = [
        "failed" if side in outcome.failures and math.isnan(value) else _number(value)
        for side, value in ((_OURS, ours), (_THEIRS, theirs))
    ]
    cells = [f"{measure.title}, {measure.unit}", *shown, _number(ratio), goal, verdict]
    return f"| {' | '.join(cells)} |"


def table(outcome: Outcome) -> str:
    """Return one scenario as a Markdown table."""
    rounds = max((len(figures) for figures in outcome.rounds.values()), default=0)
    head = f"### {outcome.scenario.title}\n\n`{outcome.scenario.command}`; median of {rounds}\n\n"
    columns = f"| | {_OURS} | {_THEIRS} | ratio | goal | |\n|---|---:|---:|---:|---:|---|\n"
    rows = "\n".join(_row(outcome, measure) for measure in outcome.scenario.measures)
    failures = "".join(
        f"\n\n{side} failed {'in a later round' if side in outcome.rounds else 'here'}: `{reason}`"
        for side, reason in outcome.failures.items()
    )
    return head + columns + rows + failures


def _spread(outcomes: list[Outcome]) -> Iterator[str]:
    """Every round's figures, so that a reader sees how much the medians hide."""
    for outcome in outcomes:
        for side, rounds in outcome.rounds.items():
            for key in rounds[0]:
                values = ", ".join(_number(figures[key]) for figures in rounds)
                yield f"- {outcome.scenario.key}, {side}, {key}: {values}"


_CLUSTER_TITLE = "# Three brokers of each"


def merged(former: str, written: str, *, is_cluster: bool) -> str:
    """Put a run's page into the former one: a run of clusters replaces its own part only."""
    node_part, _, cluster_part = former.partition(_CLUSTER_TITLE)
    if is_cluster:
        cluster_part = "\n" + written.partition("\n")[2].replace(
            "Both brokers ran", "Both clusters ran"
        )
    else:
        node_part = written
    parts = [node_part.rstrip(), f"{_CLUSTER_TITLE}{cluster_part.rstrip()}" if cluster_part else ""]
    return "\n\n".join(part for part in parts if part) + "\n"


def page(outcomes: list[Outcome], command: str, load_before: float) -> str:
    """Return the whole page; `load_before` is the machine's load average before the run."""
    tables = "\n\n".join(table(outcome) for outcome in outcomes)
    spread = "\n".join(_spread(outcomes))
    return f"""# Measured beside Apache Kafka

Written by `{command}` on {time.strftime("%Y-%m-%d")}. Both brokers ran on one machine in one run,
warmed up, in turn, round after round; each figure is the median of the rounds. The ratio is
Headrace's figure over Kafka's. Kafka ran with the heap and collector of its own start script.
The page cache was full before each round, as on a machine that has been up for long.

{machine_facts()}.
The machine's load average was {load_before:.1f} before the run: what is above 0 is somebody else's
work, which costs both sides and makes the rounds differ.

{tables}

## Every round

{spread}
"""
