"""What a node asks of the active controller, for its clients and for itself.

A request that only the active controller may decide is forwarded unchanged on the controller
listener, and retried while there is no controller. After a success, the answer waits until this
node has applied the change, so that the client's next request to this node sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headrace_broker.metadata.auto_creation import WantedTopic
from headrace_broker.metadata.cordons import placeable_brokers
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from headrace_broker.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace_broker.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from headrace_broker.protocol.schema import Message
from headrace_broker.protocol.types import NO_OFFSET, BrokerEpoch, Offset, ProducerId
from headrace_broker.raft.types import METADATA_TOPIC
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.peers.peers import Lane, PeerConnections, PeerUnavailable

if TYPE_CHECKING:
    from random import Random

    from headrace_broker.metadata.partitions import TopicPolicy
    from headrace_broker.server.config.broker_config import BrokerConfig
    from headrace_broker.server.quorum.metadata_loader import MetadataLoader

FORWARD_TIMEOUT_MS = 30000
_APPLY_SECONDS_MAX = 1.0
_USE_DEFAULT = -1


class Forwarding:
    """Asks the active controller. `broker_epoch` returns this broker's own."""

    def __init__(
        self,
        node_id: int,
        peers: PeerConnections,
        loader: MetadataLoader,
        broker_epoch: Callable[[], BrokerEpoch],
    ) -> None:
        self._node_id = node_id
        self._peers = peers
        self._loader = loader
        self._broker_epoch = broker_epoch

    async def request(
        self, request: Message, version: int | None = None, *, timeout_ms: int = FORWARD_TIMEOUT_MS
    ) -> Any:
        """Return the active controller's response, once this node has applied the change.

        Raises ApiError(REQUEST_TIMED_OUT): the outcome is unknown.
        """
        try:
            response = await self._peers.to_controller(
                request, version=version, timeout_ms=timeout_ms
            )
        except PeerUnavailable as error:
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT, f"the active controller did not answer: {error}"
            ) from error
        await self._wait_applied()
        return response

    async def _wait_applied(self) -> None:
        """Wait, up to a limit, until this node has what the controller has committed so far."""
        try:
            offset = await self._committed_offset()
            async with asyncio.timeout(_APPLY_SECONDS_MAX):
                await self._loader.wait_for(offset)
        except (TimeoutError, PeerUnavailable):
            return  # the change is made nevertheless

    async def _committed_offset(self) -> Offset:
        request = DescribeQuorumRequest(
            topics=[
                DescribeQuorumRequestTopicData(
                    topic_name=METADATA_TOPIC,
                    partitions=[DescribeQuorumRequestPartitionData(partition_index=0)],
                )
            ]
        )
        response = await self._peers.to_controller(
            request, timeout_ms=int(_APPLY_SECONDS_MAX * 1000), lane=Lane.QUORUM
        )
        if response.error_code != ErrorCode.NONE or not response.topics:
            return NO_OFFSET
        return Offset(response.topics[0].partitions[0].high_watermark - 1)

    async def allocate_producer_ids(self) -> tuple[ProducerId, int]:
        """Return the first id and the length of a block that no other broker gets."""
        request = AllocateProducerIdsRequest(
            broker_id=self._node_id, broker_epoch=self._broker_epoch()
        )
        try:
            response = await self._peers.to_controller(request, timeout_ms=FORWARD_TIMEOUT_MS)
        except PeerUnavailable as error:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        if response.error_code != ErrorCode.NONE:
            raise ApiError(ErrorCode(response.error_code), "no producer ids were allocated")
        return ProducerId(response.producer_id_start), response.producer_id_len

    async def create_topics(self, names: Sequence[str]) -> Mapping[str, ErrorCode]:
        """Create topics with the controller's defaults; return each error, NONE if it exists."""
        return await self._create(
            [
                CreatableTopic(
                    name=name, num_partitions=_USE_DEFAULT, replication_factor=_USE_DEFAULT
                )
                for name in names
            ]
        )

    async def ensure_topic(self, wanted: WantedTopic) -> None:
        """Create one of the internal topics; raises ApiError."""
        active = len(placeable_brokers(self._loader.image))
        topic = CreatableTopic(
            name=wanted.name,
            num_partitions=wanted.num_partitions,
            replication_factor=max(1, min(wanted.replication_factor, active)),
            configs=[
                CreatableTopicConfig(name=name, value=value)
                for name, value in wanted.configs.items()
            ],
        )
        code = (await self._create([topic]))[wanted.name]
        if code != ErrorCode.NONE:
            raise ApiError(code, f"{wanted.name} was not made")

    async def _create(self, topics: list[CreatableTopic]) -> dict[str, ErrorCode]:
        if not topics:
            return {}
        response = await self.request(CreateTopicsRequest(topics=topics, timeout_ms=5000))
        codes = {topic.name: ErrorCode(topic.error_code) for topic in response.topics}
        return {
            name: ErrorCode.NONE if code == ErrorCode.TOPIC_ALREADY_EXISTS else code
            for name, code in codes.items()
        }


Handler = Callable[..., Any]


class Controller(Protocol):
    """The part of this node's controller that forwarding uses."""

    rng: Random
    policy: TopicPolicy

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""


class Node(Protocol):
    """The part of the node that forwarding uses, besides what its handlers use."""

    @property
    def config(self) -> BrokerConfig:
        """The settings."""

    @property
    def controller(self) -> Controller:
        """This node's controller."""

    @property
    def forwarding(self) -> Forwarding:
        """The client of the active controller."""


def forwarded(handle: Handler) -> Handler:
    """Return a handler that decides here on the active controller, and forwards elsewhere.

    A request on a controller listener is always answered here: its sender looks for the active
    controller itself.
    """

    def forward(broker: Node, context: RequestContext, request: Message) -> Any:
        is_for_controllers = context.listener in broker.config.controller_listener_names
        if broker.controller.is_active or is_for_controllers:
            return handle(broker, context, request)
        return _forward(broker, context, request, handle)

    return forward


async def _forward(broker: Node, context: RequestContext, request: Message, handle: Handler) -> Any:
    try:
        return await broker.forwarding.request(request, context.api_version)
    except ApiError as error:
        # The handler knows how to put the error into its response, for each item of the request.
        response = handle(_Refusing(broker, error), context, request)
        return await response if isinstance(response, Awaitable) else response


class _Refusing:
    """A broker whose controller refuses every decision with the same error."""

    def __init__(self, broker: Node, error: ApiError) -> None:
        self._broker = broker
        self._error = error
        self.rng = broker.controller.rng
        self.policy = broker.controller.policy

    @property
    def controller(self) -> _Refusing:
        """The controller: this object itself."""
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def submit(self, decide: object, *, is_confirmed: bool = False) -> None:
        """Refuse."""
        del decide, is_confirmed
        raise self._error
