"""The image as clients of one listener see it: addresses, reachable leaders, offline replicas."""

from collections.abc import Collection

from headrace_broker.metadata.entities import BrokerImage, Endpoint, PartitionImage
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.types import NO_NODE, NodeId

# Bits of Kafka's AclOperation codes: read 3, write 4, create 5, delete 6, alter 7, describe 8,
# cluster action 9, describe configs 10, alter configs 11, idempotent write 12.
_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = (1 << code for code in range(3, 9))
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = (
    1 << code for code in range(9, 13)
)

#: What anyone may do with a topic without an authorizer (KIP-430).
TOPIC_OPERATIONS = (
    _READ | _WRITE | _CREATE | _DELETE | _ALTER | _DESCRIBE | _DESCRIBE_CONFIGS | _ALTER_CONFIGS
)

#: What anyone may do with the cluster without an authorizer.
CLUSTER_OPERATIONS = (
    _CREATE
    | _ALTER
    | _DESCRIBE
    | _CLUSTER_ACTION
    | _DESCRIBE_CONFIGS
    | _ALTER_CONFIGS
    | _IDEMPOTENT_WRITE
)


class ClusterView:
    """One image, seen through one listener. Created for one response."""

    def __init__(self, image: MetadataImage, listener: str) -> None:
        self.image = image
        self._listener = listener
        self._reachable = {
            node
            for node, broker in image.brokers.items()
            if not broker.fenced and broker.endpoint(listener) is not None
        }

    def brokers(
        self, *, include_fenced: bool = False, also: Collection[NodeId] = ()
    ) -> list[tuple[BrokerImage, Endpoint]]:
        """Return the brokers with an address on this listener, by id; fenced ones in `also`."""
        found = []
        for _, broker in sorted(self.image.brokers.items()):
            endpoint = broker.endpoint(self._listener)
            if endpoint is not None and (
                include_fenced or not broker.fenced or broker.node_id in also
            ):
                found.append((broker, endpoint))
        return found

    def controller_id(self, own: NodeId) -> NodeId:
        """Return the controller for clients: any broker forwards, so the answering one is best.

        Kafka names any live broker. The active controller may just have died; this broker has not.
        """
        if own in self._reachable:
            return own
        return min(self._reachable, default=NO_NODE)

    def partition_error(self, partition: PartitionImage) -> ErrorCode:
        """Return why clients of this listener cannot reach the leader."""
        if partition.leader in self._reachable:
            return ErrorCode.NONE
        if (
            partition.leader in self.image.brokers
            and not self.image.brokers[partition.leader].fenced
        ):
            return ErrorCode.LISTENER_NOT_FOUND
        return ErrorCode.LEADER_NOT_AVAILABLE

    def offline_replicas(self, partition: PartitionImage) -> list[int]:
        """Return the replicas on brokers that are down."""
        return [node for node in partition.replicas if node not in self._reachable]
