"""What transactions must bear that no sound client does: zombies, in the seeds that are aimed.

A coordinator that does not know of its successor goes on sending markers. And a producer aborts
while its first records wait for the coordinator's word (KIP-890), so that the marker is in the
log before they are: they must not begin a transaction that nobody would end.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages import write_txn_markers
from simulation.atomicity import Atomicity, Key, Transaction
from simulation.client import FAILURES, Client
from simulation.workloads.transactional import (
    LEDGER,
    ORDERS,
    AbortableError,
    FencedError,
    TransactionalProducer,
    Worker,
    newer_versions,
    older_versions,
)

if TYPE_CHECKING:
    from simulation.cluster import Cluster

SINCE = 3_000_000
KNOWING_SINCE = 4_000_000
"""The first seed in which a former coordinator speaks to leaders alone that know its successor."""
OVERTAKEN_SINCE = 8_000_000
"""The first seed in which a producer wakes after an older client has had its transactional id."""
_EPOCH_MAX = 2**15 - 1


def has_zombies(seed: int) -> bool:
    """Whether a seed's transactions have them."""
    return seed >= SINCE


class HastyWriter(Worker):
    """Aborts what it has just sent."""

    def __init__(self, client: Client, checks: Atomicity, transactional_id: str) -> None:
        super().__init__(client, checks, transactional_id)
        client.generations = None
        client.versions.update(older_versions(client))

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Write and abort until it is over."""
        await self.repeat(is_over, self._abort_early)

    async def _abort_early(self, producer: TransactionalProducer) -> bool:
        rng, transaction = self.client.rng, producer.begin()
        key = rng.choice(ORDERS)
        values = [f"hasty.{transaction.life[1]}#{transaction.number}/{key[1]}".encode()]
        try:
            await producer.abort_early(transaction, key, values, rng.choice((0.0, 0.003, 0.03)))
        except FencedError:
            return False
        except AbortableError:
            return await self.give_up(producer, transaction)
        return True


class Overtaken(Worker):
    """Aborts what never arrived, after an older client has had its id, in the next epoch.

    That one's ends moved no epoch, so this one repeats nothing: its producer is fenced. Taken for a
    repetition, it would go on as the producer that has the id now.
    """

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Be overtaken, and wake, until it is over."""
        client = self.client
        older, newer = older_versions(client), newer_versions(client)
        while not is_over():
            client.versions.update(newer)
            former = await self.new_producer()
            transaction = former.begin()
            for key, values in self._records(transaction).items():
                for value in values:
                    self.checks.send(transaction, key, value)
            client.versions.update(older)
            has_ended = await self._transact(await self.new_producer())
            client.versions.update(newer)
            try:
                await former.end(transaction, commits=False)
            except FencedError:
                if has_ended:
                    client.history.reach("a producer ends after an older client has had its id")
            else:
                client.history.violate(
                    "overtaken-goes-on", f"{former.life} goes on after another has had its id"
                )
            await asyncio.sleep(client.rng.expovariate(4))

    async def _transact(self, producer: TransactionalProducer) -> bool:
        producer.renews_after_aborts = False
        transaction = producer.begin()
        try:
            await producer.write(transaction, self._records(transaction))
            await producer.end(transaction, commits=self.client.rng.random() < 0.5)
        except FencedError:
            return False
        except AbortableError:
            return await self.give_up(producer, transaction)
        return True

    def _records(self, transaction: Transaction) -> dict[Key, list[bytes]]:
        key = self.client.rng.choice(ORDERS)
        name = f"overtaken.{transaction.life[1]}#{transaction.number}/{key[1]}"
        return {key: [name.encode()]}


class Marked(NamedTuple):
    """A producer whose last marker all replicas in sync have, and the leader that has it.

    Another may be a former leader: that one cannot know, and what it takes is not committed.
    """

    leader: tuple[str, int]
    key: Key
    producer_id: int
    epoch: int
    coordinator_epoch: int


class FormerCoordinator:
    """Sends markers in an epoch of its own that is over; it knows what the partitions know."""

    def __init__(self, client: Client, cluster: "Cluster") -> None:
        self._client = client
        self._cluster = cluster

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Send one now and then until it is over."""
        rng = self._client.rng
        while not is_over():
            await asyncio.sleep(rng.expovariate(3))
            found = list(self._marked())
            if found:
                await self._send(rng.choice(found))

    def _marked(self) -> Iterator[Marked]:
        for node in self._cluster.nodes:
            if node.broker is None or not node.is_ready:
                continue
            for key in (*ORDERS, *LEDGER):
                try:
                    partition = node.broker.replicas.partition(*key)
                except ApiError:
                    continue
                log = partition.log
                is_settled = partition.high_watermark >= log.log_end_offset
                if partition.leading is None or not is_settled or log.log_start_offset:
                    continue
                for producer_id, state in log.producers.items():
                    place = (key, producer_id, state.epoch, state.coordinator_epoch)
                    marked = Marked(node.address, *place)
                    if state.coordinator_epoch >= 0 and self._may_send(marked):
                        yield marked

    def _marker(self, marked: Marked) -> write_txn_markers.WritableTxnMarker:
        rng, (topic, index) = self._client.rng, marked.key
        return write_txn_markers.WritableTxnMarker(
            producer_id=marked.producer_id,
            producer_epoch=min(marked.epoch + rng.choice((0, 1)), _EPOCH_MAX),
            transaction_result=rng.random() < 0.5,
            topics=[
                write_txn_markers.WritableTxnMarkerTopic(name=topic, partition_indexes=[index])
            ],
            coordinator_epoch=marked.coordinator_epoch - 1,
            transaction_version=rng.choice((0, 2)),
        )

    def _may_send(self, marked: Marked) -> bool:
        del marked
        return True

    def _taken(self, text: str) -> None:
        self._client.history.violate("former-coordinator-writes", text)

    async def _send(self, marked: Marked) -> None:
        client, (topic, index) = self._client, marked.key
        marker = self._marker(marked)
        request = write_txn_markers.WriteTxnMarkersRequest(markers=[marker])
        try:
            if self._cluster.seed >= KNOWING_SINCE:
                caller = await client.caller(marked.leader)
            else:
                caller, _ = await client.leader(topic, index)
            answer = await client.call(caller, ApiKey.WRITE_TXN_MARKERS, request)
        except FAILURES:
            client.forget(topic, index)
            return
        code = ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)
        client.heard(topic, index, code)
        if code is ErrorCode.NONE:
            self._taken(f"{marker} after {marked}")
