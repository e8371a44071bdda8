"""What the replicas of a broker share: the broker's identity, the clock for lag, the image.

Lag is measured on the event loop's clock, which adjustments of the wall clock do not move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.types import BrokerEpoch, NodeId, PartitionIndex, TopicId
from headrace_broker.replication.throttle import Throttle
from headrace_broker.server.network.delayed import Purgatory
from headrace_broker.server.network.wakeups import Wakeups

if TYPE_CHECKING:
    from headrace_broker.replication.leader import LeaderState

REPLICA_LAG_TIME_MAX_MS = 10_000


def _ignore(_: object) -> None:
    """The default without a controller: in-sync sets stay as they are."""


class LedPartition(Protocol):
    """A partition whose leader asks for another in-sync set (`leading.pending`)."""

    topic: str
    topic_id: TopicId
    index: PartitionIndex
    leading: LeaderState | None

    def isr_committed(
        self, leader_epoch: int, isr: tuple[NodeId, ...], partition_epoch: int
    ) -> None:
        """The controller has changed the in-sync set."""

    def advance_high_watermark(self) -> None:
        """Commit what every counted replica has."""


class Deletion(Protocol):
    """A DeleteRecords request that waits for replicas."""

    def check(self) -> None:
        """A replica's log start, a leader or a broker has changed: answer if that is enough."""


class ReplicaHost:
    """One broker, as its replicas see it. `image` is the metadata that was applied last."""

    def __init__(self, node_id: NodeId, *, lag_time_max_ms: int = REPLICA_LAG_TIME_MAX_MS) -> None:
        self.node_id = node_id
        self.lag_time_max_ms = lag_time_max_ms
        self.image = MetadataImage()
        self.leader_throttle = Throttle()
        self.follower_throttle = Throttle()
        self.wakeups = Wakeups()
        self.purgatory = Purgatory()
        """Delayed Produce and DeleteRecords requests of all listeners."""
        self.deletions: dict[Deletion, None] = {}
        """Delayed DeleteRecords requests, in the order in which they came."""
        self.incarnation_id: UUID | None = None
        """This process's incarnation id as it registers; None counts as registered."""
        self.request_isr_update: Callable[[LedPartition], None] = _ignore
        """Called when a partition's leader has an in-sync set to ask for (`leading.pending`)."""
        self.on_failure: Callable[[BaseException], None] = _raise
        self.on_damage: Callable[[UUID, int], None] = lambda _topic_id, _index: None
        """Called with a replica whose records are found damaged."""

    def belong_to(self, incarnation_id: UUID, on_failure: Callable[[BaseException], None]) -> None:
        """Set the id under which this process registers, and who handles failed log directories."""
        self.incarnation_id = incarnation_id
        self.on_failure = on_failure

    def check_deletions(self) -> None:
        """Answer the DeleteRecords requests that nothing keeps waiting any more."""
        for deletion in list(self.deletions):
            deletion.check()

    def now_ms(self) -> int:
        """Return milliseconds on the event loop's clock."""
        return int(asyncio.get_running_loop().time() * 1000)

    @property
    def broker_epoch(self) -> BrokerEpoch:
        """The epoch of this broker's registration; -1 before it is known."""
        broker = self.image.brokers.get(self.node_id)
        return BrokerEpoch(-1) if broker is None else broker.epoch

    @property
    def may_lead(self) -> bool:
        """Whether this very process is registered: it must not lead what a former one led."""
        own = self.image.brokers.get(self.node_id)
        is_registered = own is not None and own.incarnation_id == self.incarnation_id
        return is_registered or self.incarnation_id is None

    def is_eligible(self, node_id: NodeId, broker_epoch: BrokerEpoch) -> bool:
        """Whether a broker may join an in-sync set: same process, unfenced, not shutting down."""
        broker = self.image.brokers.get(node_id)
        return broker is not None and broker.is_active and broker.epoch == broker_epoch


def _raise(error: BaseException) -> None:
    raise error
