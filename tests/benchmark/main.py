"""The command line of the benchmark: which scenarios, which sides, how long."""

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmark.cluster import cluster_scenarios
from benchmark.latency import connections_scenario, latency_scenario
from benchmark.lifecycle import big_log_scenario, ready_scenario
from benchmark.measure import Goal, Outcome, Scenario, run_scenario
from benchmark.page_cache import PageCache
from benchmark.report import machine_facts, merged, page, table
from benchmark.throughput import Load, fetch_scenario, producer_scenario
from benchmark.transactions import transaction_scenarios
from support.headrace_broker import HeadraceBroker
from support.headrace_cluster import HeadraceCluster
from support.kafka_cluster import KafkaCluster
from support.kafka_peer import KafkaPeer
from support.peer import GivenPeer, Peer

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
_BIG_LOG_BYTES = int(os.environ.get("HEADRACE_BIG_LOG_BYTES", str(10_000_000_000)))
_FASTER = Goal(bound=1.5, is_at_least=True)
_CHEAPER = Goal(bound=0.4, is_at_least=False)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure Headrace beside Apache Kafka.")
    parser.add_argument("--quick", action="store_true", help="a fifth of the load, one round")
    parser.add_argument("--rounds", type=int, help="rounds per scenario (default 3; quick: 1)")
    parser.add_argument("--records", type=int, help="records of a throughput round")
    parser.add_argument("--only", action="append", metavar="SCENARIO", help="may be repeated")
    parser.add_argument("--list", action="store_true", help="list the scenarios and end")
    parser.add_argument("--cluster", action="store_true", help="three brokers of each instead")
    parser.add_argument("--big-log", action="store_true", help="10 GB against 10 MB as well")
    parser.add_argument("--side", choices=["both", "headrace", "kafka"], default="both")
    parser.add_argument("--kafka-bootstrap", help="a Kafka that runs already (HOST:PORT)")
    parser.add_argument("--kafka-pid", type=int, help="its process, for CPU and memory")
    parser.add_argument("--headrace-bootstrap", help="a Headrace that runs already (HOST:PORT)")
    parser.add_argument("--headrace-pid", type=int, help="its process, for CPU and memory")
    parser.add_argument("--write", type=Path, help="where to write the page")
    return parser.parse_args()


def scenarios(options: argparse.Namespace) -> list[Scenario]:
    """Return every scenario at the size asked for, in the order in which they run."""
    scale = 5 if options.quick else 1
    records = options.records or 1_000_000 // scale
    found = [
        *cluster_scenarios(is_quick=options.quick, records=options.records),
        *transaction_scenarios(is_quick=options.quick, records=options.records),
    ]
    if not options.cluster:
        found = _node_scenarios(options, records, scale)
    if options.only:
        known = [scenario.key for scenario in found]
        if unknown := set(options.only) - set(known):
            sys.exit(f"no scenario {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
        found = [scenario for scenario in found if scenario.key in options.only]
    return found


def _node_scenarios(options: argparse.Namespace, records: int, scale: int) -> list[Scenario]:
    """One broker of each."""
    found = [
        producer_scenario(
            "producer-1kb",
            "Produce: 1 KB records, default batches, acks=1, idempotence off; after a whole round",
            Load(records=records, record_size=1000),
            rate_goal=_FASTER,
            cpu_goal=_CHEAPER,
            memory_goal=Goal(bound=120, is_at_least=False, is_ratio=False),
        ),
        producer_scenario(
            "producer-1kb-restarted",
            "The same, on brokers restarted before each round and warmed up with 200,000 records",
            Load(records=records, record_size=1000, after_restart=True),
            rate_goal=_FASTER,
            cpu_goal=_CHEAPER,
        ),
        producer_scenario(
            "producer-1kb-128kb",
            "Produce: 1 KB records, 128 KB batches, linger 5 ms",
            Load(records=records, record_size=1000, batch_size=131_072),
        ),
        producer_scenario(
            "producer-100b",
            "Produce: 100 B records, default batches",
            Load(records=records * 3, record_size=100),
        ),
        latency_scenario(20_000 // scale),
        fetch_scenario(records),
        connections_scenario(1000, 50 // scale),
        ready_scenario(),
    ]
    if options.big_log:
        found.append(big_log_scenario(_BIG_LOG_BYTES // scale))
    return found


def sides(options: argparse.Namespace, directory: Path) -> list[Peer]:
    """Return the brokers to measure, not started yet."""
    found: list[Peer] = []
    if options.cluster:
        ours, theirs = HeadraceCluster(directory / "headrace"), KafkaCluster(directory / "kafka")
        chosen = {"both": [ours, theirs], "headrace": [ours], "kafka": [theirs]}
        return list(chosen[options.side])
    if options.side != "kafka":
        if options.headrace_bootstrap:
            address, pid = options.headrace_bootstrap, options.headrace_pid
            found.append(GivenPeer(HeadraceBroker.name, address, pid))
        else:
            found.append(HeadraceBroker(directory / "headrace"))
    if options.side != "headrace":
        if options.kafka_bootstrap:
            address, pid = options.kafka_bootstrap, options.kafka_pid
            found.append(GivenPeer(KafkaPeer.name, address, pid))
        else:
            found.append(KafkaPeer(directory / "kafka"))
    return found


def show(text: str) -> None:
    """Print a result."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def tell(text: str) -> None:
    """Print progress."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def main() -> None:
    options = parse_arguments()
    chosen = scenarios(options)
    if options.list:
        show("\n".join(f"{scenario.key}: {scenario.title}" for scenario in chosen))
        return
    load_before = os.getloadavg()[0]
    rounds = options.rounds or (1 if options.quick else 3)
    with tempfile.TemporaryDirectory(prefix="headrace-benchmark-") as directory, ExitStack() as end:
        measured = sides(options, Path(directory))
        for side in measured:
            end.callback(side.stop)
            side.start()
            tell(f"{side.name}: ready after {side.ready_seconds:.2f} s at {side.bootstrap}")
        settle = PageCache(Path(directory)).fill
        outcomes: list[Outcome] = []
        show(f"\n{machine_facts()}\n")
        try:
            for scenario in chosen:
                outcomes.append(run_scenario(scenario, measured, rounds, tell, settle))
                show(table(outcomes[-1]) + "\n")  # at once: a run may be ended before its end
        finally:
            if outcomes:
                write_page(options, outcomes, load_before)


def write_page(options: argparse.Namespace, outcomes: list[Outcome], load_before: float) -> None:
    """Put what was measured where it was asked for, or into the page of a whole run."""
    target = options.write or (
        None if options.only or options.quick or options.side != "both" else _PAGE
    )
    if target is not None:
        target.parent.mkdir(exist_ok=True)
        written = page(outcomes, f"tests/benchmark/run.py {_shown()}", load_before)
        former = target.read_text() if target.exists() else ""
        target.write_text(merged(former, written, is_cluster=options.cluster))


def _shown() -> str:
    return " ".join(sys.argv[1:])


if __name__ == "__main__":
    main()
