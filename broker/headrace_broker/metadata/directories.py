"""Decides which log directory of a broker holds a replica, as the broker reports (KIP-858)."""

from uuid import UUID

from headrace_broker.metadata.brokers.liveness import leaves_partition, registered_broker
from headrace_broker.metadata.decision import MetadataDecision
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.partition_change import PartitionTarget
from headrace_broker.metadata.partitions import TopicPolicy
from headrace_broker.metadata.records import MetadataRecord
from headrace_broker.metadata.replication_rules import ReplicationRules
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectoryData,
    AssignReplicasToDirsResponsePartitionData,
    AssignReplicasToDirsResponseTopicData,
)
from headrace_broker.protocol.types import (
    LOST_DIRECTORY,
    BrokerEpoch,
    NodeId,
    PartitionIndex,
    TopicId,
)


def decide_assign_replicas_to_dirs(
    image: MetadataImage, request: AssignReplicasToDirsRequest, policy: TopicPolicy
) -> MetadataDecision[AssignReplicasToDirsResponse]:
    """Decide the directories of one broker's replicas; each replica has its own outcome.

    A replica with damaged records is reported in `LOST_DIRECTORY`: it stops leading, and is neither
    in sync nor eligible to lead (KIP-966) before it has been replicated again. The last in-sync
    replica stays: INELIGIBLE_REPLICA.

    Raises ApiError(STALE_BROKER_EPOCH or BROKER_ID_NOT_REGISTERED).
    """
    node_id = NodeId(request.broker_id)
    registered_broker(image, node_id, BrokerEpoch(request.broker_epoch))
    assigning = _Assigning(image, node_id, policy)
    directories = [
        AssignReplicasToDirsResponseDirectoryData(
            id=directory.id,
            topics=[
                AssignReplicasToDirsResponseTopicData(
                    topic_id=topic.topic_id,
                    partitions=[
                        AssignReplicasToDirsResponsePartitionData(
                            partition_index=asked.partition_index,
                            error_code=assigning.assign(
                                TopicId(topic.topic_id),
                                PartitionIndex(asked.partition_index),
                                directory.id,
                            ),
                        )
                        for asked in topic.partitions
                    ],
                )
                for topic in directory.topics
            ],
        )
        for directory in request.directories
    ]
    return MetadataDecision(
        records=assigning.records,
        response=AssignReplicasToDirsResponse(directories=directories),
    )


class _Assigning:
    """One request in progress."""

    def __init__(self, image: MetadataImage, node_id: NodeId, policy: TopicPolicy) -> None:
        self.records: list[MetadataRecord] = []
        self._image = image
        self._node_id = node_id
        self._rules = ReplicationRules(image, policy)
        self._assigned: set[tuple[TopicId, PartitionIndex]] = set()

    def assign(self, topic_id: TopicId, index: PartitionIndex, directory: UUID) -> ErrorCode:
        """Add the record of one replica's directory; return its outcome."""
        topic = self._image.topics_by_id.get(topic_id)
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        partition = topic.partitions.get(index)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self._node_id not in partition.replicas:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if (topic_id, index) in self._assigned:
            return ErrorCode.INVALID_REQUEST
        self._assigned.add((topic_id, index))
        lost: frozenset[NodeId] = frozenset()
        if directory == LOST_DIRECTORY:
            if set(partition.isr) <= {self._node_id}:
                return ErrorCode.INELIGIBLE_REPLICA  # it is damaged, but there is no better replica
            lost = frozenset({self._node_id})
        target = PartitionTarget(directories={self._node_id: directory}, lost=lost)
        if self._rules.is_online(self._node_id, directory):
            record = self._rules.change(topic, index, target)
        else:
            # The directory failed before it was known to hold the replica, or the replica is
            # damaged.
            record = leaves_partition(self._rules, topic, index, self._node_id, target)
        self.records += [] if record is None else [record]
        return ErrorCode.NONE
