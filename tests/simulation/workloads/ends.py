"""A client that asks where partitions begin and end, at both isolation levels, as tools do.

What it may hear is judged where it is answered (`invariants.admissions`).
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey
from simulation.atomicity import Key
from simulation.client import Client
from simulation.workloads.consumers import Consumer
from simulation.workloads.transactional import LEDGER, ORDERS
from simulation.workloads.workload import Workload

if TYPE_CHECKING:
    from simulation.scenario import Scenario

_LATEST, _EARLIEST, _NEWEST = -1, -2, -3
_ISOLATION_FROM, _NEWEST_FROM = 2, 7


class Ends:
    """Asks again and again, and most of all for the end."""

    def __init__(self, client: Client, partitions: list[Key]) -> None:
        self._client = client
        self._partitions = partitions
        self._asker = Consumer(client, client.name, partitions)

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Ask until it is over."""
        rng, version = self._client.rng, self._client.versions[ApiKey.LIST_OFFSETS]
        isolations = (0, 1) if version >= _ISOLATION_FROM else (0,)
        asked = (_LATEST, _LATEST, _LATEST, _EARLIEST)
        asked += (_NEWEST,) if version >= _NEWEST_FROM else ()
        while not is_over():
            await asyncio.sleep(rng.expovariate(20))
            key, isolation = rng.choice(self._partitions), rng.choice(isolations)
            await self._asker.list_offset(key, rng.choice(asked), isolation)


def _start(scenario: "Scenario") -> list[Any]:
    client, process = scenario.client("ends")
    partitions = list(scenario.profile.places)
    if "transactions" in scenario.profile.works:
        partitions += [*ORDERS, *LEDGER]
    return [scenario.loop.start_task(process, Ends(client, partitions).run(scenario.is_over))]


ENDS = Workload(name="ends", share=0.5, since=3_000_000, start=_start)
