"""What the simulated clients make of a coordinator that does not know that it was replaced."""

import asyncio
from dataclasses import replace

import pytest

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from simulation.client import IDS_FROM, REQUEST_SECONDS, Client
from simulation.cluster import Cluster
from simulation.history import History
from simulation.invariants import Invariants
from simulation.profile import draw_profile
from simulation.workloads.offsets import GroupOffsets

_GROUP, _PLACE = "group", ("events", 0)


async def _commit(client: Client, offset: int) -> None:
    async def attempt() -> bool | None:
        codes = await GroupOffsets(client, _GROUP).commit({_PLACE: offset})
        return True if codes[_PLACE] is ErrorCode.NONE else None

    await client.until(attempt)


def test_a_commit_counts_as_lost_where_the_newest_coordinator_does_not_have_it(tmp_path):
    profile = replace(draw_profile(1, 3), loses_power=False, disk_errors=False, slow_disks=False)
    cluster = Cluster(1, tmp_path, profile)
    history = History(now_ms=lambda: 0)
    Invariants(cluster, history)

    def client(name: str, addresses: list[tuple[str, int]]) -> Client:
        made = Client(name, addresses, history, cluster.fork(name))
        made.request_seconds = REQUEST_SECONDS
        # With topic ids it would ask for metadata, and learn of the others.
        made.versions[ApiKey.OFFSET_FETCH] = IDS_FROM[ApiKey.OFFSET_FETCH] - 1
        return made

    async def committed(reader: Client, known: int) -> int:
        async with asyncio.timeout(1):
            return await GroupOffsets(reader, _GROUP).committed(_PLACE, known)

    async def run() -> None:
        for node in cluster.nodes:
            node.start()
        everyone = [node.address for node in cluster.nodes]
        first = client("first", everyone)
        await first.create_topic(_PLACE[0], 1, 3, {})
        await _commit(first, 5)
        epoch, replaced = history.coordinator(_GROUP)
        assert replaced is not None
        others = [address for address in everyone if address != replaced]
        for host, _ in others:
            cluster.network.block(replaced[0], host)
        await asyncio.sleep(5)
        second = client("second", others)
        await _commit(second, 9)
        assert history.coordinator(_GROUP)[0] > epoch

        reader = client("reader", [replaced])
        assert await committed(reader, 5) == 5
        with pytest.raises(TimeoutError):
            await committed(reader, 9)
        assert await committed(second, 10) == 9
        cluster.network.heal()
        async with asyncio.timeout(10):
            assert await GroupOffsets(reader, _GROUP).committed(_PLACE, 9) == 9

    with cluster.installed():
        cluster.loop.run(run(), limit_seconds=60)
        for node in cluster.nodes:
            node.disk.close()
