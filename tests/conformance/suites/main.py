"""Runs suites one after the other, each against a fresh broker, and says what passed."""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from conformance.suites.kgo import Kgo
from conformance.suites.librdkafka import Librdkafka
from conformance.suites.suite import Broker, Outcome, Suite, SuiteMissingError, reason_left_out
from support.headrace_broker import HeadraceBroker
from support.headrace_cluster import HeadraceCluster
from support.kafka_peer import KafkaPeer

SUITES: dict[str, type[Suite]] = {"kgo": Kgo, "librdkafka": Librdkafka}
ONE_BROKER = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
THREE_BROKERS = {
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
}


def main() -> int:
    """Return 1 where a test failed that is not left out, 2 where a suite could not be had."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", help=f"of {', '.join(SUITES)}; all if none is named")
    parser.add_argument("--peer", choices=("headrace", "kafka"), default="headrace")
    parser.add_argument("--only", help="one test by its name, left out or not")
    parser.add_argument("--list", action="store_true", help="what is left out, and why")
    options = parser.parse_args()
    if unknown := set(options.suites) - set(SUITES):
        parser.error(f"no suite {', '.join(unknown)}; there are {', '.join(SUITES)}")
    status = 0
    for name in options.suites or SUITES:
        suite = SUITES[name]()
        if options.list:
            for test, reason in suite.left_out.items():
                say(f"{name} {test}: {reason}")
            continue
        try:
            suite.build()
        except SuiteMissingError as error:
            say(f"{name}: NOT RUN: {error}")
            status = 2
            continue
        failed = run(suite, options.peer, options.only)
        status = status or min(failed, 1)
    return status


def run(suite: Suite, peer_name: str, only: str | None) -> int:
    """Run one suite; return how many tests failed that should not."""
    directory = Path(tempfile.mkdtemp(prefix=f"headrace-suite-{suite.name}-"))
    peer = make_peer(suite, peer_name, directory / "brokers")
    counts: Counter[str] = Counter()
    failed: list[str] = []
    began = time.monotonic()
    with peer:
        say(f"{suite.name}: against {peer.name} at {peer.bootstrap}, logs in {directory}")
        for result in suite.run(Broker(bootstrap=peer.bootstrap, directory=directory), only):
            reason = None if only else reason_left_out(suite, result.name)
            known = result.outcome is Outcome.FAILED and reason is not None
            counts["left out" if known else result.outcome.value] += 1
            if result.outcome is Outcome.FAILED and not known:
                failed.append(result.name)
            if result.outcome is not Outcome.PASSED:
                say(f"  {result.outcome.value} {result.name} {f'({reason})' if reason else ''}")
    took = time.monotonic() - began
    shown = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    say(f"{suite.name}: {shown or 'nothing ran'} in {took:.0f} s")
    for name in failed:
        say(f"  failed: {name}")
    return len(failed) if counts else 1


def make_peer(
    suite: Suite, name: str, directory: Path
) -> HeadraceBroker | HeadraceCluster | KafkaPeer:
    """Return brokers, not started yet, as the suite wants them."""
    properties = ONE_BROKER if suite.broker_count == 1 else THREE_BROKERS
    properties = properties | dict(suite.broker_properties)
    if name == "kafka":
        return KafkaPeer(directory, properties, node_count=suite.broker_count)
    if suite.broker_count == 1:
        return HeadraceBroker(directory, properties)
    return HeadraceCluster(directory, suite.broker_count, properties)


def say(text: str) -> None:
    """Print at once: suites take long."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
