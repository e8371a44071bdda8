"""What ShareFetch and ShareAcknowledge share: the members' acknowledgements of records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar
from uuid import UUID

from headrace_broker.coordinator.share_partition.acknowledgement import Acknowledgement
from headrace_broker.coordinator.share_partition.states import AcknowledgeType
from headrace_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext
    from headrace_broker.server.shares.share_partitions import SharePartitions
    from headrace_broker.server.shares.share_sessions import Connection, TopicIdPartition


class AcknowledgementBatch(Protocol):
    """A range of offsets and how they are acknowledged, as in both requests."""

    first_offset: int
    last_offset: int
    acknowledge_types: list[int]


class AcknowledgedPartition(Protocol):
    """A partition in both requests."""

    partition_index: int

    @property
    def acknowledgement_batches(self) -> Sequence[AcknowledgementBatch]:
        """The acknowledgements of its records."""
        ...


class AcknowledgedTopic(Protocol):
    """A topic in both requests."""

    topic_id: UUID

    @property
    def partitions(self) -> Sequence[AcknowledgedPartition]:
        """Its partitions."""
        ...


def said_in(
    topics: Iterable[AcknowledgedTopic],
) -> dict[TopicIdPartition, Sequence[AcknowledgementBatch]]:
    """Return a request's acknowledgements by partition."""
    return {
        (topic.topic_id, partition.partition_index): partition.acknowledgement_batches
        for topic in topics
        for partition in topic.partitions
        if partition.acknowledgement_batches
    }


def connection_of(context: RequestContext) -> Connection:
    """Return the connection that a session belongs to."""
    return context.listener, context.connection_id


def check_names(group_id: str | None, member_id: str | None) -> tuple[str, str]:
    """Return both names; raise INVALID_REQUEST if one is missing."""
    if not group_id or not member_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a share group's request names group and member")
    return group_id, member_id


class Acknowledging:
    """Acknowledgements that are not durable yet."""

    def __init__(
        self, shares: SharePartitions, group_id: str, member_id: str, *, may_renew: bool
    ) -> None:
        self.errors: dict[TopicIdPartition, ApiError | None] = {}
        self._shares = shares
        self._group_id = group_id
        self._member_id = member_id
        self._may_renew = may_renew
        self._futures: dict[TopicIdPartition, asyncio.Future[None]] = {}

    def begin(self, said: dict[TopicIdPartition, Sequence[AcknowledgementBatch]]) -> None:
        """Apply a member's acknowledgements; each partition has its own outcome."""
        for where, batches in said.items():
            self.errors[where] = None
            try:
                acknowledgements = [self._acknowledgement(batch) for batch in batches]
                driver = self._shares.known_driver(self._group_id, where)
                future = driver.acknowledge(self._member_id, acknowledgements)
            except ApiError as error:
                self.errors[where] = error
            else:
                if future is not None:
                    self._futures[where] = future

    def _acknowledgement(self, batch: AcknowledgementBatch) -> Acknowledgement:
        if AcknowledgeType.RENEW in batch.acknowledge_types and not self._may_renew:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "records are renewed with IsRenewAck, from version 2 on"
            )
        return Acknowledgement(
            first=batch.first_offset, last=batch.last_offset, types=list(batch.acknowledge_types)
        )

    async def finish(self) -> None:
        """Return when all of them are durable, or have failed."""
        for where, future in self._futures.items():
            try:
                await asyncio.shield(future)
            except ApiError as error:
                self.errors[where] = error


ItemT = TypeVar("ItemT")
TopicT = TypeVar("TopicT")


def by_topic(
    found: dict[TopicIdPartition, ItemT], make: Callable[[UUID, list[ItemT]], TopicT]
) -> list[TopicT]:
    """Return the partitions' results grouped by topic."""
    topics: dict[UUID, list[ItemT]] = {}
    for (topic_id, _), item in found.items():
        topics.setdefault(topic_id, []).append(item)
    return [make(topic_id, items) for topic_id, items in topics.items()]
