"""Throughput: Kafka's own producer-perf and consumer-perf, and what a run costs the broker."""

import atexit
import functools
import random
import re
import shutil
import string
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmark.measure import Figures, Goal, Measure, Scenario, fresh_topic
from support.kafka_peer import run_tool
from support.peer import Peer

_RATE = re.compile(r"^(\d+) steady state records sent, ([\d.]+) records/sec", re.MULTILINE)
_MB = 1_000_000
_TOOL_SECONDS = 1800
# A JVM's first 200,000 records are several times slower, on both ends of the wire. The
# load generator is a new JVM each time and warms up within each run; the brokers take a whole round
# before the first, because Kafka's CPU per record goes on falling that long.
WARM_UP_RECORDS = 200_000
_PAYLOADS = 1000
_SEED = 20


@dataclass(frozen=True, kw_only=True)
class Load:
    """What producer-perf sends."""

    records: int
    record_size: int
    batch_size: int | None = None
    after_restart: bool = False

    def arguments(self, bootstrap: str, topic: str, records: int, payloads: str) -> list[str]:
        properties = ["acks=1", "enable.idempotence=false"]
        if self.batch_size is not None:
            properties += [f"batch.size={self.batch_size}", "linger.ms=5"]
        sizes = ["--num-records", str(records), "--payload-file", payloads]
        where = ["--bootstrap-server", bootstrap, "--topic", topic, "--throughput", "-1"]
        return [*where, *sizes, "--command-property", *properties]


@functools.cache
def payload_file(record_size: int) -> str:
    """Return a file of payloads, a line each, that is removed when the process ends.

    With `--record-size` the load generator makes each payload letter by letter, at a cost near
    that of all else it does for a record of 1 KB; on two cores it then measures itself.
    """
    directory = Path(tempfile.mkdtemp(prefix="headrace-benchmark-"))
    atexit.register(shutil.rmtree, directory)
    letters = random.Random(_SEED)
    lines = [
        "".join(letters.choices(string.ascii_uppercase, k=record_size)) for _ in range(_PAYLOADS)
    ]
    path = directory / f"{record_size}-bytes"
    path.write_text("\n".join(lines))
    return str(path)


def produce(side: Peer, topic: str, load: Load, records: int, warm_up: int) -> float:
    """Run producer-perf and return the records/s after its own warm-up."""
    warm = ["--warmup-records", str(warm_up)]
    arguments = load.arguments(
        side.bootstrap, topic, records + warm_up, payload_file(load.record_size)
    )
    printed = run_tool("producer-perf", *arguments, *warm, timeout_seconds=_TOOL_SECONDS)
    found = _RATE.search(printed)
    if found is None:
        raise ValueError(f"producer-perf printed no steady state:\n{printed}")
    return float(found[2])


def producer_scenario(
    key: str,
    title: str,
    load: Load,
    *,
    rate_goal: Goal | None = None,
    cpu_goal: Goal | None = None,
    memory_goal: Goal | None = None,
) -> Scenario:
    """Records per second and broker CPU for one kind of load.

    With `after_restart` each round starts a new broker, warmed by 200,000 records.
    """
    warm_up = min(WARM_UP_RECORDS, load.records)

    def prepare(side: Peer) -> None:
        with fresh_topic(side) as topic:
            produce(side, topic, load, load.records, 1000)

    def run(side: Peer) -> Figures:
        if load.after_restart:
            side.stop()
            side.restart()
            with fresh_topic(side) as topic:
                produce(side, topic, load, warm_up, 1)
        with fresh_topic(side) as topic:
            cpu_before = side.cpu_seconds()
            rate = produce(side, topic, load, load.records, warm_up)
            cpu = (side.cpu_seconds() - cpu_before) * 1e6 / (load.records + warm_up)
            return {"rate": rate, "cpu": cpu, "rss": side.rss_bytes() / _MB}

    command = " ".join(load.arguments("…", "…", load.records + warm_up, "…"))
    return Scenario(
        key=key,
        title=title,
        command=f"producer-perf {command} --warmup-records {warm_up}",
        measures=(
            Measure(key="rate", title="records per second", unit="/s", goal=rate_goal),
            Measure(key="cpu", title="broker CPU per million records", unit="s", goal=cpu_goal),
            Measure(key="rss", title="memory (RSS) right after", unit="MB", goal=memory_goal),
        ),
        run=run,
        prepare=None if load.after_restart else prepare,
    )


def fetch_scenario(records: int) -> Scenario:
    """Megabytes per second and broker CPU per gigabyte through consumer-perf."""
    load = Load(records=records, record_size=1000, batch_size=131_072)
    topics: dict[str, str] = {}

    def consume(side: Peer, topic: str) -> tuple[float, float]:
        where = ["--bootstrap-server", side.bootstrap, "--topic", topic]
        count = ["--num-records", str(records), "--hide-header"]
        printed = run_tool("consumer-perf", *where, *count, timeout_seconds=_TOOL_SECONDS)
        fields = printed.strip().splitlines()[-1].split(", ")
        # start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec,
        # rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec
        return float(fields[2]), float(fields[8])

    def run(side: Peer) -> Figures:
        with fresh_topic(side) as topic:
            topics[side.name] = topic
            produce(side, topic, load, records, 1000)
            cpu_before = side.cpu_seconds()
            megabytes, rate = consume(side, topic)
            cpu = (side.cpu_seconds() - cpu_before) * 1024 / megabytes
            return {"rate": rate, "cpu": cpu, "rss": side.rss_bytes() / _MB}

    return Scenario(
        key="fetch",
        title="Fetch: 1 KB records by consumer-perf, from the page cache",
        command=f"consumer-perf --bootstrap-server … --topic … --num-records {records}",
        measures=(
            Measure(key="rate", title="fetched per second", unit="MB/s"),
            Measure(key="cpu", title="broker CPU per gigabyte", unit="s"),
            Measure(key="rss", title="memory (RSS) right after", unit="MB"),
        ),
        run=run,
    )
