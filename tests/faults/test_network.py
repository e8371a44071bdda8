"""Networks that lose packets between three brokers, one way or both: nothing acknowledged is lost.

Packets are dropped without a word, so timeouts alone decide. `HEADRACE_FAULTS_SECONDS`
(`make faults`) is how long the random cuts go on.
"""

import os
import random
import time
from contextlib import ExitStack

import pytest

from faults.network import can_make_networks, networked_cluster
from faults.workload import Workload, create_topic
from support.processes import wait_until
from support.readers import JavaReader, LibrdkafkaReader

_SECONDS = float(os.environ.get("HEADRACE_FAULTS_SECONDS", "15"))
_CUT_SECONDS = 4
_REPLACED_SECONDS_MAX = 15

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180 + 3 * _SECONDS),
    pytest.mark.skipif(not can_make_networks(), reason="network namespaces need root and iproute2"),
]


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory):
    with networked_cluster(tmp_path_factory.mktemp("network")) as running:
        yield running


@pytest.fixture
def cluster(shared_cluster):
    """The module's cluster, connected and whole."""
    shared_cluster.network.heal()
    shared_cluster.wait_complete()
    yield shared_cluster
    shared_cluster.network.heal()


def _ids(nodes):
    return [node.node_id for node in nodes]


def _heal(cluster, topic, workload):
    cluster.network.heal()
    cluster.wait_complete()
    cluster.wait_in_sync(topic)
    workload.progress()
    workload.assert_nothing_is_lost()


def test_a_leader_cut_from_its_followers_but_not_from_clients_is_replaced(cluster, topic):
    """It takes writes that it may never acknowledge, and drops them when it is back."""
    create_topic(cluster, topic, 3)
    with Workload(cluster, topic) as workload:
        victim = cluster.leader(topic)
        cluster.network.cut([victim.node_id], _ids(cluster.others(victim)))
        began = time.monotonic()
        with cluster.asked_without(victim):
            workload.progress_everywhere()
            assert workload.longest_gap(began) < _REPLACED_SECONDS_MAX
            assert cluster.leader(topic) is not victim
        _heal(cluster, topic, workload)


def test_a_leader_cut_off_from_everybody_is_replaced(cluster, topic):
    create_topic(cluster, topic, 3)
    with Workload(cluster, topic) as workload:
        victim = cluster.leader(topic)
        cluster.network.isolate(victim.node_id)
        with cluster.asked_without(victim):
            workload.progress_everywhere()
            assert cluster.leader(topic) is not victim
        _heal(cluster, topic, workload)


def test_an_active_controller_cut_off_from_the_others_is_replaced(cluster, topic):
    create_topic(cluster, topic, 3)
    with Workload(cluster, topic) as workload:
        victim = cluster.active_controller()
        cluster.network.cut([victim.node_id], _ids(cluster.others(victim)))
        with cluster.asked_without(victim):
            survivor = cluster.others(victim)[0]
            create_topic(cluster, f"{topic}-after", 1, factor=2, through=survivor)
            workload.progress()
            assert cluster.active_controller() is not victim
        _heal(cluster, topic, workload)


@pytest.mark.parametrize("leads_all", [True, False], ids=["alone", "beside"])
@pytest.mark.parametrize("is_deaf", [True, False], ids=["deaf", "mute"])
def test_a_leader_that_hears_nothing_or_is_not_heard_loses_nothing(
    cluster, topic, is_deaf, leads_all
):
    """One direction only: what it says arrives, or what it is told.

    Clients reach it all the time. Where it leads everything, they are connected to nobody else.
    """
    assignment = [[1, 2, 3]] * 3 if leads_all else [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    create_topic(cluster, topic, 3, assignment=assignment)
    with Workload(cluster, topic) as workload:
        victim = cluster.leader(topic)
        for other in cluster.others(victim):
            ends = (other, victim) if is_deaf else (victim, other)
            cluster.network.drop(*_ids(ends))
        began = time.monotonic()
        with cluster.asked_without(victim):
            workload.progress_everywhere()
            assert workload.longest_gap(began) < _REPLACED_SECONDS_MAX
        _heal(cluster, topic, workload)


def test_two_brokers_that_do_not_hear_one_another_while_the_third_hears_both(cluster, topic):
    create_topic(cluster, topic, 3)
    with Workload(cluster, topic) as workload:
        one, other, _ = cluster.nodes
        cluster.network.cut([one.node_id], [other.node_id])
        time.sleep(_CUT_SECONDS)
        workload.progress(20)
        _heal(cluster, topic, workload)


@pytest.mark.java
@pytest.mark.parametrize("hears_controller", [True, False], ids=["hears", "cut-off"])
def test_readers_in_the_rack_of_a_follower_that_falls_behind_read_on(
    cluster, topic, hears_controller, tmp_path
):
    """It answers its clients, but hears no more of the leader, or of the controller either.

    The controller takes it out of the in-sync set. Cut off from both, it has to notice by itself.
    """
    for attempt in range(3):
        if _has_read_on(cluster, f"{topic}-{attempt}", hears_controller, tmp_path / str(attempt)):
            return
    raise AssertionError("another controller became the active one each time")


def _has_read_on(cluster, topic, hears_controller, directory):
    """Whether the test was run; a busy machine may move the active controller before the cut."""
    directory.mkdir()
    active = controller = cluster.active_controller()
    leader, nearby = cluster.others(controller)
    if not hears_controller:
        leader, controller = controller, leader
    ids = _ids([leader, nearby, controller])
    create_topic(cluster, topic, 1, assignment=[ids])
    with Workload(cluster, topic, partitions=1) as workload, ExitStack() as stack:
        readers = []
        for kind in (LibrdkafkaReader, JavaReader):
            readers.append(kind(cluster.bootstrap, topic, f"rack-{nearby.node_id}", directory))
            stack.callback(readers[-1].stop)
        _wait_read(readers, 100, "the first records")
        if cluster.active_controller() is not active:
            return False
        cluster.network.cut([leader.node_id], [nearby.node_id])
        with cluster.asked_without(nearby):
            wait_until(
                lambda: nearby.node_id not in cluster.partitions(topic)[0].isr,
                30,
                "the follower out of sync",
            )
            workload.progress(50)
            count = sum(producer.acknowledged_count for producer in workload.producers)
            _wait_read(readers, count, "what came since")
        stack.close()
        for reader in readers:
            assert reader.offsets == list(range(len(reader.offsets)))
        _heal(cluster, topic, workload)
    return True


def _wait_read(readers, count, what):
    wait_until(lambda: all(len(each.offsets) > count for each in readers), 30, what)


def test_random_cuts_lose_nothing(cluster, topic):
    """Any directions between any brokers, and at times all at once, for seconds each."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - a failure is replayed by it
    rng = random.Random(seed)
    create_topic(cluster, topic, 3)
    ids = _ids(cluster.nodes)
    links = [(source, other) for source in ids for other in ids if source != other]
    with Workload(cluster, topic) as workload:
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            if rng.random() < 1 / 4:
                cluster.network.isolate(rng.choice(ids))
            else:
                for source, other in rng.sample(links, rng.randint(1, len(links))):
                    cluster.network.drop(source, other)
            time.sleep(rng.uniform(0, 2 * _CUT_SECONDS))
            cluster.network.heal()
            time.sleep(rng.uniform(0, _CUT_SECONDS))
        _heal(cluster, topic, workload)
