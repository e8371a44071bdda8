"""Cut the network between three brokers at random, heal it, and time who goes on how late.

Run by hand, as root: `PYTHONPATH=tests python -m faults.cuts SECONDS [SEED]`. It prints, of each
cut, the links, how long they were cut, the slowest partition of a producer and the slowest commit
of an offset after it healed. Of one that took long, librdkafka's own log is kept.
"""

import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from faults.network import Network, networked_cluster
from faults.workload import Workload, create_topic
from support import streams

_CUTS_PER_TOPIC = 8
_CUT_SECONDS_MAX = 8
_SLOW_SECONDS = 10
_PATIENCE_SECONDS = 75
_IDS = (1, 2, 3)
_LINKS = [(source, other) for source in _IDS for other in _IDS if source != other]
_STDERR = 2


class _Committer:
    """A thread that commits an offset again and again; `seconds` has how long each took."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        settings = {**streams.FAST_CLIENT, "socket.timeout.ms": 60_000, "group.id": "cuts"}
        self._consumer = Consumer(
            {**settings, "bootstrap.servers": bootstrap, "enable.auto.commit": False}
        )
        self._topic = topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.seconds: list[tuple[float, float, str]] = []
        """When each began, how long it took, and its error."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        offset = 0
        while not self._is_over.wait(0.1):
            offset += 1
            began, error = time.monotonic(), ""
            try:
                place = TopicPartition(self._topic, 0, offset)
                self._consumer.commit(offsets=[place], asynchronous=False)
            except KafkaException as failure:
                error = str(failure)
            self.seconds.append((began, time.monotonic() - began, error))

    def slowest(self, since: float) -> float:
        """Return how long the slowest took of those that began since."""
        return max((took for began, took, _ in self.seconds if began > since), default=0.0)


def _cut(network: Network, chance: random.Random) -> str:
    if chance.random() < 1 / 4:
        host = chance.choice(_IDS)
        network.isolate(host)
        return f"all of {host}"
    links = chance.sample(_LINKS, chance.randint(1, len(_LINKS)))
    for source, other in links:
        network.drop(source, other)
    return " ".join(f"{source}>{other}" for source, other in links)


def _recovery_seconds(workload: Workload) -> float:
    began = time.monotonic()
    try:
        workload.progress_everywhere(_PATIENCE_SECONDS)
    except TimeoutError as error:
        print(error)  # noqa: T201 - what the script is for
    return time.monotonic() - began


def _one_cut(
    network: Network, workload: Workload, committer: _Committer, chance: random.Random
) -> float:
    """Cut, heal, and print what came of it; return how long the slowest took to go on."""
    links = _cut(network, chance)
    seconds = chance.uniform(0, _CUT_SECONDS_MAX)
    time.sleep(seconds)
    network.heal()
    healed = time.monotonic()
    took = _recovery_seconds(workload)
    time.sleep(chance.uniform(0.5, 2))
    print(  # noqa: T201 - what the script is for
        f"{time.strftime('%H:%M:%S')} cut {seconds:.1f} s: {links}; went on after {took:.1f} s, "
        f"slowest commit {committer.slowest(healed):.1f} s",
        flush=True,
    )
    return max(took, committer.slowest(healed))


def main() -> None:
    end = time.monotonic() + float(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32)
    logs = Path(tempfile.mkdtemp(prefix="cuts-"))
    print(f"seed {seed}, logs in {logs}", flush=True)  # noqa: T201 - what the script is for
    chance = random.Random(seed)
    streams.FAST_PRODUCER |= {"log_level": 7, "debug": "msg,eos,metadata,broker,topic"}
    errors = os.dup(_STDERR)
    number = 0
    with tempfile.TemporaryDirectory() as folder, networked_cluster(Path(folder)) as cluster:
        while time.monotonic() < end:
            topic = f"cuts-{number}"
            create_topic(cluster, topic, 3)
            with (
                Workload(cluster, topic) as workload,
                _Committer(cluster.bootstrap, topic) as committer,
            ):
                for _ in range(_CUTS_PER_TOPIC):
                    number += 1
                    path = logs / f"{number}.log"
                    with path.open("w") as log:
                        os.dup2(log.fileno(), _STDERR)
                        took = _one_cut(cluster.network, workload, committer, chance)
                        os.dup2(errors, _STDERR)
                    if took < _SLOW_SECONDS:
                        path.unlink()
                cluster.wait_in_sync(topic)
                workload.assert_nothing_is_lost()


if __name__ == "__main__":
    main()
