"""What the fault model leaves alone where nothing but the metadata quorum is fsynced."""

import asyncio
from dataclasses import replace

import pytest

from simulation.cluster import Cluster, Node
from simulation.profile import draw_profile
from simulation.scenario import simulate


def _are_ready(nodes: list[Node]) -> bool:
    return all(node.is_ready and node.broker.controller.leader > 0 for node in nodes)


async def _wait_until(condition) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


def test_no_broker_ends_until_a_machine_that_lost_power_has_registered_again(tmp_path):
    profile = replace(draw_profile(1, 3), loses_power=True, has_fsyncs=False, disk_errors=False)
    cluster = Cluster(1, tmp_path, profile)
    first, second, third = cluster.nodes

    async def run() -> None:
        for node in cluster.nodes:
            node.start()
        await _wait_until(lambda: _are_ready(cluster.nodes))
        third.kill()
        assert not cluster.may_lose_power(first)  # whose end would be found out while it is away
        third.start()
        await _wait_until(lambda: _are_ready(cluster.nodes))

        await _wait_until(lambda: cluster.may_lose_power(first))
        first.cut_power()
        assert not first.is_running
        second.kill()
        second.cut_power()
        assert second.is_running
        second.disk.stop_at = second.disk.operations + 1
        first.start()
        await _wait_until(lambda: second.disk.stop_at is None)
        assert second.is_running
        first.kill()
        assert not first.is_running
        first.start()
        await _wait_until(second.may_end)
        assert first.is_ready
        second.kill()
        assert not second.is_running

    with cluster.installed():
        cluster.loop.run(run(), limit_seconds=120)
        for node in cluster.nodes:
            node.disk.close()


def test_seed_4025_leads_nothing_before_it_is_registered_again():
    """A coordinator's timer wrote in an epoch whose last record the power cut had taken."""
    outcome = simulate(4025, 3)
    assert not outcome.violations, outcome.violations


@pytest.mark.parametrize("seed", [718, 775, 1003])
def test_seeds_that_lost_records_by_a_power_cut_and_kills_hold(seed):
    """As Kafka would, before kills were left out while a machine is away."""
    outcome = simulate(seed, 3)
    assert not outcome.violations, outcome.violations
    assert outcome.reached["a machine loses power without having fsynced"]
