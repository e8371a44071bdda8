"""FindCoordinator: which broker leads the partition that a group's state is in.

Versions: 0 · 1 key type and error message · 2 as 1 · 3 flexible · 4 several keys (KIP-699) ·
5 TRANSACTION_ABORTABLE (KIP-890) · 6 share groups (KIP-932).
"""

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from headrace_broker.metadata.entities import GROUP_METADATA_TOPIC, Endpoint
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from headrace_broker.protocol.types import NO_NODE, NodeId

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.context import RequestContext

API_KEY = ApiKey.FIND_COORDINATOR


class KeyType(IntEnum):
    """What a key names, under Kafka's `CoordinatorType`."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


_VERSION_WITH_SEVERAL_KEYS: Final = 4
_NO_PORT: Final = -1


async def handle(
    broker: "Broker", context: "RequestContext", request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Answer for each key by itself; the first question creates the offsets topic."""
    if context.api_version >= _VERSION_WITH_SEVERAL_KEYS:
        found = [
            await _find(broker, context, request.key_type, key) for key in request.coordinator_keys
        ]
        return FindCoordinatorResponse(coordinators=found)
    one = await _find(broker, context, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _find(
    broker: "Broker", context: "RequestContext", key_type: int, key: str
) -> Coordinator:
    try:
        _check_key_type(key_type)
        await broker.controller.ensure_internal_topic(GROUP_METADATA_TOPIC)
        node_id, endpoint = _leader_of(broker, context, key)
    except ApiError as error:
        return Coordinator(
            key=key,
            node_id=NO_NODE,
            port=_NO_PORT,
            error_code=error.code,
            error_message=error.message,
        )
    return Coordinator(key=key, node_id=node_id, host=endpoint.host, port=endpoint.port)


def _check_key_type(key_type: int) -> None:
    match key_type:
        case KeyType.GROUP:
            return
        case KeyType.TRANSACTION:
            # Not COORDINATOR_NOT_AVAILABLE: clients would ask again for as long as they run.
            raise ApiError(ErrorCode.INVALID_REQUEST, "transactions are not supported yet")
        case KeyType.SHARE:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "share groups are not supported")
        case _:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{key_type} is not a type of coordinator")


def _leader_of(
    broker: "Broker", context: "RequestContext", group_id: str
) -> tuple[NodeId, Endpoint]:
    image = broker.metadata
    partition = image.partition(GROUP_METADATA_TOPIC, broker.groups.partition_for(group_id))
    leader = None if partition is None else image.brokers.get(partition.leader)
    endpoint = None if leader is None else leader.endpoint(context.listener)
    if leader is None or endpoint is None:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group's partition has no leader")
    return leader.node_id, endpoint
