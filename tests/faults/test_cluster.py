"""Three brokers under faults: whatever was acknowledged stays, once, in order, at its offset.

Every test runs real clients against real processes and judges their history. Each is short;
`HEADRACE_FAULTS_SECONDS` (`make faults`) is how long `test_random_faults_lose_nothing` goes on.
"""

import itertools
import os
import random
import time

import pytest

from faults.disk import can_mount, fill, small_disk
from faults.workload import Workload, create_topic
from support.headrace_cluster import HeadraceCluster

_SECONDS = float(os.environ.get("HEADRACE_FAULTS_SECONDS", "15"))
_LONG_SECONDS = 60
# Every order in the long form; one that is not their own in the short one.
_ORDERS = [*itertools.permutations((1, 2, 3))] if _SECONDS > _LONG_SECONDS else [(3, 1, 2)]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180 + 3 * _SECONDS)]


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory):
    with HeadraceCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def cluster(shared_cluster):
    """The module's cluster, whole again before each test."""
    shared_cluster.make_whole()
    return shared_cluster


@pytest.fixture
def rng():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - a failure is replayed by it
    return random.Random(seed)


def _rejoin(cluster, node, topic):
    node.start()
    cluster.wait_complete()
    cluster.wait_in_sync(topic)


def test_a_killed_leader_loses_nothing(cluster, topic):
    create_topic(cluster, topic, 3)
    with Workload(cluster, topic) as workload:
        victim = cluster.leader(topic)
        victim.kill()
        began = time.monotonic()
        workload.progress()
        assert workload.longest_gap(began) < 5
        _rejoin(cluster, victim, topic)
        workload.progress()
        workload.assert_nothing_is_lost()


def test_a_killed_controller_stops_no_partition(cluster, topic):
    create_topic(cluster, topic, 3)
    with Workload(cluster, topic) as workload:
        victim = cluster.active_controller()
        victim.kill()
        began = time.monotonic()
        create_topic(cluster, f"{topic}-after", 1, factor=2)
        assert time.monotonic() - began < 10
        workload.progress()
        assert cluster.active_controller() is not victim
        _rejoin(cluster, victim, topic)
        workload.assert_nothing_is_lost()


def test_two_of_three_killed_one_after_another_lose_nothing(cluster, topic):
    """min.insync.replicas=1: the last replica alone has, and keeps, everything acknowledged."""
    create_topic(cluster, topic, 3, min_insync_replicas="1")
    with Workload(cluster, topic) as workload:
        first = cluster.leader(topic)
        first.kill()
        workload.progress()
        second = cluster.leader(topic)
        second.kill()
        # The quorum lost its majority: nobody may lead instead until one comes back.
        time.sleep(1)
        second.start()
        workload.progress()
        _rejoin(cluster, first, topic)
        workload.assert_nothing_is_lost()


def test_all_killed_at_once_and_restarted_lose_nothing(cluster, topic):
    create_topic(cluster, topic, 3)
    with Workload(cluster, topic) as workload:
        cluster.kill()
        cluster.start()
        workload.progress()
        workload.assert_nothing_is_lost()


def test_a_paused_leader_is_replaced_and_fenced_when_it_comes_back(cluster, topic):
    create_topic(cluster, topic, 3)
    with Workload(cluster, topic) as workload:
        victim = cluster.leader(topic)
        began = time.monotonic()
        victim.pause()
        try:
            workload.progress()
            gap = workload.longest_gap(began)
        finally:
            victim.resume()
        assert gap < 10
        cluster.wait_in_sync(topic)
        workload.progress()
        workload.assert_nothing_is_lost()


@pytest.mark.parametrize("order", _ORDERS)
def test_rolling_restarts_in_every_order_fail_no_write(cluster, topic, order):
    create_topic(cluster, topic, 3)
    with Workload(cluster, topic) as workload:
        for node_id in order:
            node = cluster.node(node_id)
            node.stop()
            _rejoin(cluster, node, topic)
            workload.progress(20)
        assert workload.failures == []
        workload.assert_nothing_is_lost()


@pytest.mark.parametrize("order", _ORDERS)
def test_kills_in_every_order_lose_nothing(cluster, topic, order):
    """Each is back in sync before the next one dies: min.insync.replicas always holds."""
    create_topic(cluster, topic, 3)
    with Workload(cluster, topic) as workload:
        for node_id in order:
            node = cluster.node(node_id)
            node.kill()
            workload.progress(20)
            _rejoin(cluster, node, topic)
        workload.progress(20)
        workload.assert_nothing_is_lost()


@pytest.mark.parametrize("order", _ORDERS)
def test_all_stopped_in_turn_and_started_in_that_order_lose_nothing(cluster, topic, order):
    """The last one to stop is the only one that surely has everything, and it comes back last."""
    create_topic(cluster, topic, 3, min_insync_replicas="1")
    with Workload(cluster, topic) as workload:
        for node_id in order:
            cluster.node(node_id).stop()
        for node_id in order:
            cluster.node(node_id).start()
        cluster.wait_complete()
        cluster.wait_in_sync(topic)
        workload.progress(20)
        workload.assert_nothing_is_lost()


def test_a_controlled_shutdown_fails_no_write_and_leaves_no_gap(cluster, topic):
    create_topic(cluster, topic, 3)
    with Workload(cluster, topic) as workload:
        victim = cluster.leader(topic)
        began = time.monotonic()
        victim.stop()
        workload.progress()
        assert workload.failures == []
        assert workload.longest_gap(began) < 2
        _rejoin(cluster, victim, topic)
        workload.assert_nothing_is_lost()


@pytest.mark.skipif(not can_mount(), reason="mounting a small disk needs root")
def test_a_full_disk_of_a_leader_loses_nothing(tmp_path, topic):
    """Of one broker of three: the others go on, and it comes back when there is space."""
    whole = HeadraceCluster(tmp_path)
    with small_disk(whole.nodes[0].log_directory, 64) as disk, whole:
        create_topic(whole, topic, 3)
        with Workload(whole, topic) as workload:
            filler = fill(disk)
            workload.progress(500)
            filler.unlink()
            whole.nodes[0].kill()
            _rejoin(whole, whole.nodes[0], topic)
            workload.progress()
            workload.assert_nothing_is_lost()


def test_random_faults_lose_nothing(cluster, topic, rng):
    """Kills, pauses and stops of one broker at a time, at random moments."""
    create_topic(cluster, topic, 3)
    with Workload(cluster, topic) as workload:
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            node = rng.choice(cluster.nodes)
            fault = rng.choice(("kill", "pause", "stop"))
            getattr(node, fault)()
            time.sleep(rng.uniform(0, 5))
            if fault == "pause":
                node.resume()
            else:
                node.start()
            cluster.wait_complete()
            # A second fault within one replica's return would leave one of three in sync.
            cluster.wait_in_sync(topic)
        workload.progress()
        workload.assert_nothing_is_lost()
