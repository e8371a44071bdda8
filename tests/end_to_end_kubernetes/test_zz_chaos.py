"""`make chaos`: pods, nodes, the operator, the API server and owned objects go at random.

Producers with acks=all and a consumer group check every record meanwhile. Only where it is asked
for: HEADRACE_CHAOS_SECONDS (FOR=20m) says how long, HEADRACE_CHAOS_SEED (SEED=7) what happens.
"""

import contextlib
import os
import random

import pytest

from faults.workload import Workload
from support.kube import apply, resource
from support.kube_chaos import Chaos, lost_by_group, parse_seconds, wait_all_ready
from support.kube_cluster import GroupReader, KubeCluster
from support.processes import wait_until
from support.streams import read_partition

_FOR = os.environ.get("HEADRACE_CHAOS_SECONDS", "")
_SECONDS = parse_seconds(_FOR) if _FOR else 0.0
PARTITIONS = 6
GROUP = "chaos-readers"
#: Mending, reading all of it and judging come after.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(int(2 * _SECONDS + 1200))]


@pytest.mark.skipif(not _FOR, reason="HEADRACE_CHAOS_SECONDS is not set: `make chaos` sets it")
def test_whatever_happens_nothing_is_lost_and_all_is_ready_in_the_end(
    namespace, operator, lab, capsys
):
    seed = int(os.environ.get("HEADRACE_CHAOS_SEED") or random.SystemRandom().randrange(1 << 32))
    with KubeCluster(namespace) as cluster, capsys.disabled():
        print(f"\nmake chaos FOR={_FOR} SEED={seed}", flush=True)  # noqa: T201 - to repeat it
        reference = {"name": cluster.name}
        config = {"min.insync.replicas": 2}
        apply(
            resource(
                "Topic",
                namespace,
                "chaos",
                clusterRef=reference,
                partitions=PARTITIONS,
                replicas=3,
                config=config,
            ),
            resource("ConsumerGroup", namespace, GROUP, clusterRef=reference, topics=["chaos"]),
        )
        wait_all_ready(namespace)
        cluster.wait_in_sync("chaos")
        with Workload(cluster, "chaos", partitions=PARTITIONS) as workload:
            chaos = Chaos(cluster, operator, lab, seed)
            with GroupReader(cluster.bootstrap, "chaos", GROUP) as group:
                try:
                    chaos.run(_SECONDS)
                finally:
                    chaos.heal()
                workload.progress(seconds=120)
                cluster.wait_in_sync("chaos", 180)
                workload.assert_nothing_is_lost()
                final = {
                    number: read_partition(cluster.bootstrap, "chaos", number)
                    for number in range(PARTITIONS)
                }
                with contextlib.suppress(TimeoutError):
                    wait_until(lambda: not lost_by_group(group.reads, final), 120)
                while lost_by_group(group.reads, final) and group.replace_if_locked():
                    with contextlib.suppress(TimeoutError):
                        wait_until(lambda: not lost_by_group(group.reads, final), 120)
                assert not lost_by_group(group.reads, final)
                assert group.errors == [], group.errors[:5]
            records = sum(map(len, final.values()))
            given_up = len(workload.failures)
            locked_out = workload.reader.locked_out + group.locked_out
        wait_all_ready(namespace)
        print(  # noqa: T201 - what it came to
            f"SEED={seed}: {len(chaos.happened)} lines of story, {records} records, none lost,"
            f" doubled or moved; {given_up} that producers gave up; {locked_out} consumers locked"
            " themselves out and were replaced",
            flush=True,
        )
