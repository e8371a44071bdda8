"""DescribeCluster: the brokers, the controller and the cluster's id.

Versions: 0 (KIP-700) · 1 endpoint type (KIP-919) · 2 fenced brokers on request (KIP-1073).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace_broker.metadata.views import CLUSTER_OPERATIONS, ClusterView
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from headrace_broker.server.api.services import (
    WithClusterId,
    WithConfig,
    WithController,
    WithMetadata,
    WithRaft,
)

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.DESCRIBE_CLUSTER

_BROKERS = 1
_CONTROLLERS = 2


class Node(WithClusterId, WithConfig, WithController, WithMetadata, WithRaft, Protocol):
    """What this handler needs from the node."""


def handle(
    broker: Node, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """List the brokers with their addresses on the listener of the client's connection."""
    if context.listener in broker.config.controller_listener_names:
        return _controllers(broker, request)
    response = DescribeClusterResponse(endpoint_type=request.endpoint_type)
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == _CONTROLLERS
        response.error_code = (
            ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        )
        response.error_message = "This is a broker's listener; ask it for brokers (type 1)."
        return response
    view = ClusterView(broker.metadata, context.listener)
    response.cluster_id = broker.cluster_id
    response.controller_id = view.controller_id(broker.config.node_id)
    for image, endpoint in view.brokers(include_fenced=request.include_fenced_brokers):
        response.brokers.append(
            DescribeClusterBroker(
                broker_id=image.node_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=image.rack,
                is_fenced=image.fenced,
            )
        )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def _controllers(broker: Node, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """List the voters of the metadata quorum, as a controller listener is asked to."""
    response = DescribeClusterResponse(endpoint_type=request.endpoint_type)
    if request.endpoint_type != _CONTROLLERS:
        known = request.endpoint_type == _BROKERS
        response.error_code = (
            ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        )
        response.error_message = "This is a controller's listener; ask it for controllers (type 2)."
        return response
    response.cluster_id = broker.cluster_id
    response.controller_id = broker.controller.leader
    response.brokers = [
        DescribeClusterBroker(
            broker_id=voter.key.node_id,
            host=voter.endpoints[0].host,
            port=voter.endpoints[0].port,
        )
        for voter in broker.raft.node.voters.voters
        if voter.endpoints
    ]
    return response
