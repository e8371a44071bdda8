"""A member of a share group that does not hear that its leader has a successor.

It stays with a leader that its peers do not hear (`share_faults`), and takes records there that
the successor's members are done with; Kafka's leader would give them, too. Nobody hears more of
them: their locks run out.
"""

import asyncio
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages import share_fetch
from headrace_broker.server.shares.share_partition_driver import Status
from simulation.client import FAILURES, Caller, Client

if TYPE_CHECKING:
    from simulation.cluster import Node
    from simulation.invariants.shares import Shares

_LOOK_SECONDS = 0.05


class LateMember:
    """One session with the leader that is cut off, for as long as that lives."""

    def __init__(self, client: Client, shares: "Shares", group: str, topic: str) -> None:
        self._client = client
        self._shares = shares
        self._group = group
        self._topic = topic
        self._id = str(uuid.UUID(int=client.rng.getrandbits(128)))
        self._caller: Caller | None = None
        self._epoch = 0

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Wait for a leader that is cut off, and fetch what it would give away once more."""
        while not is_over():
            await asyncio.sleep(_LOOK_SECONDS)
            node = self._shares.cut_off
            if node is None or node.process is None:
                continue
            try:
                await self._stay(node)
            except FAILURES:
                self._epoch = 0

    async def _stay(self, node: "Node") -> None:
        if self._epoch == 0 or self._caller is None or self._caller.is_closed:
            # Without a session the leader would forget what it knows of the group's records.
            self._epoch = 0
            await self._client.topic_id(self._topic)
            self._caller = await self._client.caller(node.address)
            await self._fetch(self._caller, [])
            return
        indexes = self._given_away(node)
        if indexes:
            await self._fetch(self._caller, indexes)

    def _given_away(self, node: "Node") -> list[int]:
        """Return the partitions of which the leader would give what others are done with."""
        found = []
        broker: Any = node.broker
        for key, driver in broker.shares.partitions._drivers.items():
            if key.group_id != self._group or driver.status is not Status.ACTIVE:
                continue
            begin = driver.state.fetch_offset(driver._settings().limits)
            if begin is None or driver._leader_epoch >= self._shares.newest_epoch(key.partition):
                continue
            end = driver.partition.high_watermark
            if any((key.partition, offset) in self._shares.done for offset in range(begin, end)):
                found.append(key.partition)
        return found

    async def _fetch(self, caller: Caller, indexes: list[int]) -> None:
        partitions = [
            share_fetch.FetchPartition(partition_index=index, acknowledgement_batches=[])
            for index in indexes
        ]
        topic = share_fetch.FetchTopic(
            topic_id=self._client.ids[self._topic], partitions=partitions
        )
        request = share_fetch.ShareFetchRequest(
            group_id=self._group,
            member_id=self._id,
            share_session_epoch=self._epoch,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1_000_000,
            max_records=500,
            batch_size=500,
            topics=[topic] if indexes else [],
        )
        answer = await self._client.call(caller, ApiKey.SHARE_FETCH, request)
        self._epoch = 0 if answer.error_code else self._epoch + 1
