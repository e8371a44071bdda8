"""Transactions on real processes: a bank whose books must balance under kills, pauses and cuts.

Short in the ordinary run; `HEADRACE_FAULTS_SECONDS` (`make faults`: ten minutes) is how long the
faults go on.
"""

import os
import random
import time

import pytest

from faults.bank import PARTITIONS, Bank
from faults.network import can_make_networks, networked_cluster
from faults.workload import create_topic
from support.headrace_cluster import HeadraceCluster

_SECONDS = float(os.environ.get("HEADRACE_FAULTS_SECONDS", "4"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400 + 3 * _SECONDS)]


@pytest.fixture
def rng():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - a failure is replayed by it
    return random.Random(seed)


def _open_bank(cluster, topic):
    bank = Bank(cluster.bootstrap, topic)
    for name in (bank.orders, bank.entries):
        create_topic(cluster, name, PARTITIONS)
    return bank


def test_books_balance_though_brokers_are_killed_and_paused(tmp_path, topic, rng):
    with HeadraceCluster(tmp_path) as cluster, _open_bank(cluster, topic) as bank:
        bank.wait_progress(5)
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            node = rng.choice(cluster.nodes)
            fault = rng.choice(("kill", "kill", "pause"))
            getattr(node, fault)()
            time.sleep(rng.uniform(0, 3))
            if fault == "pause":
                node.resume()
            else:
                node.start()
            cluster.wait_complete()
            # A second fault within one replica's return would leave one of three in sync.
            for name in (bank.orders, bank.entries, "__transaction_state", "__consumer_offsets"):
                cluster.wait_in_sync(name)
        bank.wait_progress(5)
        bank.assert_balanced()


@pytest.mark.skipif(not can_make_networks(), reason="network namespaces need root and iproute2")
def test_books_balance_though_the_network_is_cut(tmp_path, topic, rng):
    """Any directions between any brokers, and at times one is cut off from everybody."""
    with networked_cluster(tmp_path) as cluster, _open_bank(cluster, topic) as bank:
        bank.wait_progress(5)
        ids = [node.node_id for node in cluster.nodes]
        links = [(source, other) for source in ids for other in ids if source != other]
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            if rng.random() < 1 / 3:
                cluster.network.isolate(rng.choice(ids))
            else:
                for source, other in rng.sample(links, rng.randint(1, len(links))):
                    cluster.network.drop(source, other)
            time.sleep(rng.uniform(1, 5))
            cluster.network.heal()
            time.sleep(rng.uniform(0, 3))
        bank.wait_progress(5)
        bank.assert_balanced()
