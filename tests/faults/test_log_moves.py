"""Replicas move between log directories while brokers are killed at random and writers go on.

Whatever a kill interrupts, each broker has one log of each partition, and no acknowledged record is
lost or doubled. Two kills in the ordinary run, six in `make faults`.
"""

import os
import random
import time

import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from faults.disk import can_mount, fill, small_disk
from faults.workload import Workload, create_topic
from support.headrace_cluster import HeadraceCluster
from support.processes import wait_until

_PARTITIONS = 4
_KILLS = 6 if "HEADRACE_FAULTS_SECONDS" in os.environ else 2

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _second(node):
    return node.directory / "second"


def _cluster(directory):
    cluster = HeadraceCluster(directory)
    for node in cluster.nodes:
        node.settings["log.dirs"] = f"{node.log_directory},{_second(node)}"
    return cluster


def _folders(node, pattern="t-[0-9]"):
    return [
        (path.name, each.name)
        for path in (node.log_directory, _second(node))
        for each in path.glob(pattern)
    ]


def _ask(cluster, wanted):
    """Ask for moves, again until each broker has answered: (broker, partition) to path."""
    left = dict(wanted)
    deadline = time.monotonic() + 60
    while left and time.monotonic() < deadline:
        try:
            admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        except KafkaError:
            continue
        try:
            asked = {("t", index, node): str(path) for (node, index), path in left.items()}
            for replica, error in admin.alter_replica_log_dirs(asked).items():
                if error.__name__ == "NoError":
                    del left[replica.broker_id, replica.partition]
        except KafkaError:
            time.sleep(0.2)
        finally:
            admin.close()
    assert not left


def _has_moved(cluster, wanted):
    return all(
        (path.name, f"t-{index}") in _folders(cluster.nodes[node - 1])
        for (node, index), path in wanted.items()
    )


def test_nothing_is_lost_or_doubled_by_kills_amid_moves(tmp_path):
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)  # noqa: T201 - to run it again
    chance = random.Random(seed)
    with _cluster(tmp_path) as cluster:
        create_topic(cluster, "t", _PARTITIONS)
        wanted = {}
        with Workload(cluster, "t", partitions=_PARTITIONS) as workload:
            for _ in range(_KILLS):
                for node in cluster.nodes:
                    for index in range(_PARTITIONS):
                        path = chance.choice([node.log_directory, _second(node)])
                        wanted[node.node_id, index] = path
                _ask(cluster, wanted)
                time.sleep(chance.random() * 0.3)
                victim = chance.choice(cluster.nodes)
                victim.kill()
                victim.start()
                cluster.wait_complete()
                cluster.wait_in_sync("t")
                workload.progress()
            wait_until(lambda: _has_moved(cluster, wanted), 60, "the moves")
            workload.progress_everywhere()
            workload.assert_nothing_is_lost()
        for node in cluster.nodes:
            names = sorted(name for _, name in _folders(node))
            assert names == [f"t-{index}" for index in range(_PARTITIONS)]
            assert _folders(node, "t-*-future") == []


@pytest.mark.skipif(not can_mount(), reason="mounting a small disk needs root")
def test_a_target_that_fails_leaves_the_replicas_where_they_are(tmp_path):
    cluster = _cluster(tmp_path)
    node = cluster.nodes[0]
    with small_disk(_second(node), 64), cluster:
        create_topic(cluster, "t", _PARTITIONS)
        home = dict.fromkeys(((1, index) for index in range(_PARTITIONS)), node.log_directory)
        _ask(cluster, home)
        wait_until(lambda: _has_moved(cluster, home), 60, "the moves")
        with Workload(cluster, "t", partitions=_PARTITIONS) as workload:
            fill(_second(node))
            admin = KafkaAdminClient(bootstrap_servers=node.bootstrap)
            asked = {("t", index, 1): str(_second(node)) for index in range(_PARTITIONS)}
            admin.alter_replica_log_dirs(asked)
            admin.close()
            workload.progress(200)
            assert node.is_running
            cluster.wait_in_sync("t")
            workload.assert_nothing_is_lost()
        assert _has_moved(cluster, home)
