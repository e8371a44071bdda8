"""The transaction coordinator of this broker: routes requests to the shards it owns.

Owns which partitions of `__transaction_state` this broker leads, the timers that find overdue
transactions and unused ids, and the markers in flight. `headrace_broker.coordinator.transactions`
decides what a request means.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeVar

from headrace_broker.coordinator.partitioning import partition_for_group
from headrace_broker.coordinator.transactions.admin import (
    TransactionFilter,
    describe_transaction,
    list_transactions,
)
from headrace_broker.coordinator.transactions.config import TransactionConfig
from headrace_broker.coordinator.transactions.end import decide_end
from headrace_broker.coordinator.transactions.init_producer import decide_init
from headrace_broker.coordinator.transactions.partitions import decide_add, verify
from headrace_broker.coordinator.transactions.shard import Circumstances, TransactionDecision
from headrace_broker.coordinator.transactions.transaction import (
    Identity,
    TopicPartition,
    Transaction,
    TransactionVersion,
)
from headrace_broker.metadata.features import TRANSACTION_VERSION_FEATURE
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.describe_transactions import (
    TransactionState as DescribedTransaction,
)
from headrace_broker.protocol.messages.list_transactions import (
    TransactionState as ListedTransaction,
)
from headrace_broker.protocol.types import PartitionIndex, ProducerId
from headrace_broker.server.clock import Clock
from headrace_broker.server.transactions.marker_sender import MarkerSender, SendMarkers
from headrace_broker.server.transactions.shard_driver import ShardDriver, not_coordinator
from headrace_broker.server.transactions.state_log import StateLog

ResponseT = TypeVar("ResponseT")
Decide = Callable[[Circumstances], TransactionDecision[ResponseT]]


def transaction_config(values: Mapping[str, Any]) -> TransactionConfig:
    """Return the coordinator's settings from a broker's settings."""
    return TransactionConfig(
        timeout_ms_max=values["transaction.max.timeout.ms"],
        id_expiration_ms=values["transactional.id.expiration.ms"],
        abort_check_interval_ms=values[
            "transaction.abort.timed.out.transaction.cleanup.interval.ms"
        ],
        expiry_check_interval_ms=values[
            "transaction.remove.expired.transaction.cleanup.interval.ms"
        ],
        state_topic_partitions=values["transaction.state.log.num.partitions"],
        ids_max=values["headrace.max.transactional.ids"],
        retry_backoff_ms=values["add.partitions.to.txn.retry.backoff.ms"],
        retry_backoff_max_ms=values["add.partitions.to.txn.retry.backoff.max.ms"],
        commit_timeout_ms=values["offsets.commit.timeout.ms"],
    )


Work = Callable[[ShardDriver], bool]
"""Returns whether there is more to do."""


class TransactionCoordinator:
    """The transactional ids of this broker. All methods run on the event loop."""

    def __init__(
        self,
        config: TransactionConfig,
        clock: Clock,
        *,
        image: Callable[[], MetadataImage],
        next_producer_id: Callable[[], Awaitable[ProducerId]],
        send_markers: SendMarkers,
    ) -> None:
        self.config = config
        self.partition_count = config.state_topic_partitions
        self._clock = clock
        self._image = image
        self._next_producer_id = next_producer_id
        self._shards: dict[PartitionIndex, ShardDriver] = {}
        self._markers = MarkerSender(image, send_markers)
        self._timers: dict[Work, asyncio.Handle] = {}

    def start(self) -> None:
        """Begin to look for overdue transactions and unused ids."""
        self._repeat(ShardDriver.abort_timed_out, self.config.abort_check_interval_ms)
        self._repeat(ShardDriver.expire, self.config.expiry_check_interval_ms)

    def _repeat(self, work: Work, interval_ms: int) -> None:
        def run() -> None:
            self._go_on(work, list(self._shards.values()), interval_ms)

        self._timers[work] = asyncio.get_running_loop().call_later(interval_ms / 1000, run)

    def _go_on(self, work: Work, shards: list[ShardDriver], interval_ms: int) -> None:
        """Do one piece of a shard's work; requests are served before the next piece."""
        if not shards:
            self._repeat(work, interval_ms)
            return
        if not work(shards[-1]):
            shards.pop()
        loop = asyncio.get_running_loop()
        self._timers[work] = loop.call_soon(self._go_on, work, shards, interval_ms)

    def close(self) -> None:
        """Stop serving every partition."""
        for timer in self._timers.values():
            timer.cancel()
        self._markers.close()
        for index in list(self._shards):
            self.unload(index)

    def load(self, index: PartitionIndex, state_log: StateLog) -> None:
        """Become the coordinator of a partition's ids: replay it, then serve it.

        Until it is loaded, requests for its ids get COORDINATOR_LOAD_IN_PROGRESS.
        """
        self.unload(index)
        shard = self._shards[index] = ShardDriver(index, state_log, self)
        shard.load()

    def unload(self, index: PartitionIndex) -> None:
        """Stop being the coordinator of a partition's ids."""
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.close()

    def partition_for(self, transactional_id: str) -> PartitionIndex:
        """Return the partition of `__transaction_state` that holds an id."""
        return partition_for_group(transactional_id, self.partition_count)

    # ---- requests

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, expected: Identity
    ) -> Identity:
        """Give a producer its identity. Raises ApiError."""
        return await self._submit(
            transactional_id,
            lambda shard: (
                lambda now: decide_init(shard.shard, transactional_id, timeout_ms, expected, now)
            ),
        )

    async def add(
        self,
        transactional_id: str,
        identity: Identity,
        partitions: Collection[TopicPartition],
        client_version: TransactionVersion,
    ) -> None:
        """Add partitions to the producer's transaction. Raises ApiError."""
        await self._submit(
            transactional_id,
            lambda shard: (
                lambda now: decide_add(
                    shard.shard, transactional_id, identity, partitions, now, client_version
                )
            ),
        )

    def verify(
        self, transactional_id: str, identity: Identity, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Return which partitions are in the producer's transaction. Raises ApiError."""
        shard = self._shard_of(transactional_id)
        return verify(shard.shard, transactional_id, identity, partitions)

    async def end(
        self,
        transactional_id: str,
        identity: Identity,
        client_version: TransactionVersion,
        *,
        commits: bool,
    ) -> Identity:
        """Commit or abort; return the producer's next identity."""
        return await self._submit(
            transactional_id,
            lambda shard: (
                lambda now: decide_end(
                    shard.shard, transactional_id, identity, now, client_version, commits=commits
                )
            ),
        )

    def describe(self, transactional_id: str) -> DescribedTransaction:
        """Describe one id. Raises ApiError."""
        shard = self._shard_of(transactional_id)
        return describe_transaction(shard.shard, transactional_id)

    def list(self, wanted: TransactionFilter) -> list[ListedTransaction]:
        """Return this broker's ids; raise ApiError while some are still loading."""
        for shard in self._shards.values():
            shard.check_active()
        now_ms = self._clock.now_ms()
        return [
            listed
            for shard in self._shards.values()
            for listed in list_transactions(shard.shard, wanted, now_ms)
        ]

    # ---- what shards need

    @property
    def version(self) -> TransactionVersion:
        """The cluster's level of `transaction.version`."""
        return TransactionVersion(self._image().features.get(TRANSACTION_VERSION_FEATURE, 0))

    def circumstances(self, fresh_producer_id: ProducerId | None) -> Circumstances:
        """Return what a decision may depend on now."""
        count = sum(len(shard.shard.transactions) for shard in self._shards.values())
        return Circumstances(
            config=self.config,
            now_ms=self._clock.now_ms(),
            version=self.version,
            fresh_producer_id=fresh_producer_id,
            room_for_an_id=count < self.config.ids_max,
        )

    async def draw_producer_id(self) -> ProducerId:
        """Return an unused producer id; raise COORDINATOR_LOAD_IN_PROGRESS."""
        try:
            return await self._next_producer_id()
        except ApiError as error:
            # As in Kafka's ProducerIdManager: clients retry.
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, error.message) from error

    def send_markers(
        self, shard: ShardDriver, transaction: Transaction, partitions: Collection[TopicPartition]
    ) -> None:
        """Have markers written by the partitions' leaders."""
        self._markers.send(shard, transaction, partitions)

    # ---- routing

    def _shard_of(self, transactional_id: str) -> ShardDriver:
        shard = self._shards.get(self.partition_for(transactional_id))
        if shard is None:
            raise not_coordinator()
        shard.check_active()
        return shard

    async def _submit(
        self, transactional_id: str, decide: Callable[[ShardDriver], Decide[ResponseT]]
    ) -> ResponseT:
        """Decide; if the previous transaction is still completing, wait for it briefly.

        After CONCURRENT_TRANSACTIONS, a client backs off for longer than the markers take
        (KAFKA-18654).
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.config.retry_backoff_max_ms / 1000
        while True:
            shard = self._shard_of(transactional_id)
            was_busy = _is_busy(shard, transactional_id)
            try:
                return await shard.submit(decide(shard))
            except ApiError as error:
                left_s = deadline - loop.time()
                is_concurrent = error.code is ErrorCode.CONCURRENT_TRANSACTIONS
                if not is_concurrent or not was_busy or left_s <= 0:
                    raise
            pause_s = min(left_s, self.config.retry_backoff_ms / 1000)
            await shard.wait_changed(transactional_id, pause_s)


def _is_busy(shard: ShardDriver, transactional_id: str) -> bool:
    """Whether a transition is in progress that will complete by itself."""
    return transactional_id in shard.shard.pending or transactional_id in shard.shard.unmarked
