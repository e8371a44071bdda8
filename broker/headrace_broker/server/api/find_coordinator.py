"""FindCoordinator: which broker leads the partition with a group's or transaction's state.

Versions: 0 · 1 key type and error message · 2 as 1 · 3 flexible · 4 several keys (KIP-699) ·
5 TRANSACTION_ABORTABLE (KIP-890) · 6 share groups (KIP-932).
"""

import re
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol

from headrace_broker.metadata.entities import (
    GROUP_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    Endpoint,
)
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from headrace_broker.protocol.types import NO_NODE, NodeId, PartitionIndex
from headrace_broker.server.api.services import (
    WithController,
    WithGroups,
    WithMetadata,
    WithShares,
    WithTransactions,
)

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.FIND_COORDINATOR


class KeyType(IntEnum):
    """What a key names, under Kafka's `CoordinatorType`."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


_VERSION_WITH_SEVERAL_KEYS: Final = 4
_NO_PORT: Final = -1
_TOPIC_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}(==)?")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")


class Node(WithController, WithGroups, WithMetadata, WithShares, WithTransactions, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: "RequestContext", request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Answer each key by itself; the first request creates the internal topic."""
    if context.api_version >= _VERSION_WITH_SEVERAL_KEYS:
        found = [
            await _find(broker, context, request.key_type, key) for key in request.coordinator_keys
        ]
        return FindCoordinatorResponse(coordinators=found)
    one = await _find(broker, context, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        # Kafka's text for no error; from version 4 on the field is null.
        error_message=one.error_message if one.error_code else "NONE",
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _find(broker: Node, context: "RequestContext", key_type: int, key: str) -> Coordinator:
    try:
        topic = _topic(key_type, key)
        await broker.controller.ensure_internal_topic(topic)
        # Each new topic counts with all its partitions.
        index = {
            GROUP_METADATA_TOPIC: broker.groups.partition_for,
            SHARE_GROUP_STATE_TOPIC: broker.shares.coordinator.partition_for,
            TRANSACTION_STATE_TOPIC: broker.transactions.partition_for,
        }[topic](key)
        node_id, endpoint = _leader_of(broker, context, topic, index)
    except ApiError as error:
        return Coordinator(
            key=key,
            node_id=NO_NODE,
            port=_NO_PORT,
            error_code=error.code,
            error_message=error.message,
        )
    return Coordinator(key=key, node_id=node_id, host=endpoint.host, port=endpoint.port)


def _topic(key_type: int, key: str) -> str:
    """Return the internal topic that holds the state of a key."""
    match key_type:
        case KeyType.GROUP:
            return GROUP_METADATA_TOPIC
        case KeyType.TRANSACTION:
            return TRANSACTION_STATE_TOPIC
        case KeyType.SHARE:
            if not _is_share_key(key):
                raise ApiError(ErrorCode.INVALID_REQUEST, f"{key!r} is not group:topicId:partition")
            return SHARE_GROUP_STATE_TOPIC
        case _:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{key_type} is not a type of coordinator")


def _is_share_key(key: str) -> bool:
    """Whether it is group:topicId:partition; the group may have colons of its own."""
    head, _, partition = key.rpartition(":")
    group, _, topic_id = head.rpartition(":")
    return bool(group.strip() and _TOPIC_ID.fullmatch(topic_id) and _NUMBER.fullmatch(partition))


def _leader_of(
    broker: Node, context: "RequestContext", topic: str, index: PartitionIndex
) -> tuple[NodeId, Endpoint]:
    image = broker.metadata
    partition = image.partition(topic, index)
    leader = None if partition is None else image.brokers.get(partition.leader)
    endpoint = None if leader is None else leader.endpoint(context.listener)
    if leader is None or endpoint is None:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic}-{index} has no leader")
    return leader.node_id, endpoint
