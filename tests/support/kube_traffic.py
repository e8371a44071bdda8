"""Clients that write and read a topic of a Cluster on Kubernetes all the while something happens.

An idempotent acks=all producer pair, readers, and a member of a consumer group; the checker of
`tests/faults` judges what they saw. How long they waited is kept for the end of the run.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from faults.workload import Workload, create_topic
from support.kube import ROOT
from support.kube_cluster import GroupReader, KubeCluster
from support.processes import wait_until
from support.streams import read_partition

PARTITIONS = 6
_GROUP_SECONDS = 60
#: What one request may take on a busy machine.
PAUSE_SECONDS_MAX = float(os.environ.get("HEADRACE_TEST_PAUSE_SECONDS", "10"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """The longest time without an acknowledgement, and without a record, in any partition."""

    during: str
    write_seconds: float
    read_seconds: float
    records: int


#: Filled by `judged`; shown, and written to a file, at the end of the run.
PAUSES: list[Pause] = []


def topic_of(during: str) -> str:
    """Name the topic of a judged block."""
    return re.sub(r"[^a-zA-Z0-9]+", "-", during)


def write_pauses() -> None:
    """Keep the pauses of this run."""
    path = ROOT / "build/end-to-end/pauses.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(each) for each in PAUSES], indent=1), encoding="utf-8")


@contextlib.contextmanager
def judged(
    cluster: KubeCluster, during: str, *, pause_seconds: float = PAUSE_SECONDS_MAX
) -> Iterator[Workload]:
    """Write and read during the block; then judge: nothing lost, doubled, reordered or refused."""
    topic = topic_of(during)
    create_topic(cluster, topic, PARTITIONS, min_insync_replicas="2")
    with Workload(cluster, topic, partitions=PARTITIONS) as workload:
        began = time.monotonic()
        with GroupReader(cluster.bootstrap, topic, f"readers-of-{topic}") as group:
            yield workload
            workload.progress()
            write_seconds = workload.longest_gap(began)
            assert workload.failures == [], workload.failures[:5]
            workload.assert_nothing_is_lost()
            final = {
                number: read_partition(cluster.bootstrap, topic, number)
                for number in range(PARTITIONS)
            }
            with contextlib.suppress(TimeoutError):
                wait_until(lambda: not group.violations(final), _GROUP_SECONDS)
            missed = group.violations(final)
            assert not missed, f"{topic}: {missed[:5]}"
            assert group.errors == [], group.errors[:5]
            PAUSES.append(
                Pause(
                    during=during,
                    write_seconds=round(write_seconds, 2),
                    read_seconds=round(group.longest_pause, 2),
                    records=sum(map(len, final.values())),
                )
            )
    assert write_seconds < pause_seconds
