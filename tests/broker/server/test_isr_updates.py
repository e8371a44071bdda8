"""The look for laggards: were it to end unnoticed, a dead follower would hold writes up."""

import asyncio

from headrace_broker.server.partitions.isr_updates import IsrUpdates
from headrace_broker.server.partitions.replica_host import ReplicaHost


class _BrokenReplicas:
    """A broker's replicas, with a bug that shows as they are looked at."""

    def __init__(self, lag_time_max_ms: int) -> None:
        self.host = ReplicaHost(1, lag_time_max_ms=lag_time_max_ms)
        self.failures: asyncio.Queue[BaseException] = asyncio.Queue()
        self.host.on_failure = self.failures.put_nowait

    def __iter__(self):
        raise KeyError("a follower that nobody knows")


def test_a_look_that_fails_is_reported_as_a_failure_of_the_broker():
    async def scenario():
        replicas = _BrokenReplicas(lag_time_max_ms=2)
        updates = IsrUpdates(replicas, peers=None)
        updates.start()
        failure = await asyncio.wait_for(replicas.failures.get(), 5)
        await updates.close()
        return failure

    assert isinstance(asyncio.run(scenario()), KeyError)


def test_closing_is_no_failure():
    async def scenario():
        replicas = _BrokenReplicas(lag_time_max_ms=60_000)
        updates = IsrUpdates(replicas, peers=None)
        updates.start()
        await asyncio.sleep(0)
        await updates.close()
        await asyncio.sleep(0)
        return replicas.failures.empty()

    assert asyncio.run(scenario())
