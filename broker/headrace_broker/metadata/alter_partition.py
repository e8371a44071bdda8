"""Decides leaders' AlterPartition requests: their in-sync replicas, and the end of recovery.

A leader's request is valid for the leader epoch and the partition epoch that it knows; each replica
that it adds is checked with the broker epoch under which that replica fetched (KIP-497, KIP-841,
KIP-903). The errors are KRaft's (ReplicationControlManager.alterPartition).
"""

from collections.abc import Mapping

from headrace_broker.metadata.brokers.liveness import registered_broker
from headrace_broker.metadata.decision import MetadataDecision
from headrace_broker.metadata.entities import BrokerImage, PartitionImage, merge_partition
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.partition_change import LeaderRecoveryState, PartitionTarget
from headrace_broker.metadata.partitions import TopicPolicy
from headrace_broker.metadata.records import MetadataRecord
from headrace_broker.metadata.replication_rules import ReplicationRules
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
    BrokerState,
)
from headrace_broker.protocol.types import BrokerEpoch, NodeId, PartitionIndex, TopicId

_ANY_BROKER_EPOCH = -1


def decide_alter_partition(
    image: MetadataImage, request: AlterPartitionRequest, policy: TopicPolicy
) -> MetadataDecision[AlterPartitionResponse]:
    """Decide the in-sync replicas that one leader asks for; each partition has its own outcome.

    The response without an error has the partition's new state. Raises
    ApiError(STALE_BROKER_EPOCH or BROKER_ID_NOT_REGISTERED).
    """
    leader = NodeId(request.broker_id)
    registered_broker(image, leader, BrokerEpoch(request.broker_epoch))
    alteration = _Alteration(image, leader, policy)
    topics = [
        AlterPartitionResponseTopicData(
            topic_id=topic.topic_id,
            partitions=[
                alteration.alter(TopicId(topic.topic_id), asked) for asked in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return MetadataDecision(
        records=alteration.records, response=AlterPartitionResponse(topics=topics)
    )


class _Alteration:
    """One AlterPartition request in progress."""

    def __init__(self, image: MetadataImage, leader: NodeId, policy: TopicPolicy) -> None:
        self.records: list[MetadataRecord] = []
        self._image = image
        self._leader = leader
        self._rules = ReplicationRules(image, policy)
        self._altered: set[tuple[TopicId, int]] = set()

    def alter(
        self, topic_id: TopicId, asked: AlterPartitionRequestPartitionData
    ) -> AlterPartitionResponsePartitionData:
        """Return one partition's outcome and add its record."""
        topic = self._image.topics_by_id.get(topic_id)
        if topic is None:
            return _refusal(asked, ErrorCode.UNKNOWN_TOPIC_ID)
        index = PartitionIndex(asked.partition_index)
        partition = topic.partitions.get(index)
        if partition is None:
            return _refusal(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        isr = _requested_isr(asked)
        error = self._refused(partition, asked, isr)
        if error is ErrorCode.NONE and (topic_id, index) in self._altered:
            error = ErrorCode.INVALID_REQUEST
        if error is not ErrorCode.NONE:
            return _refusal(asked, error)
        self._altered.add((topic_id, index))
        target = PartitionTarget(
            isr=[NodeId(state.broker_id) for state in isr],
            recovery=LeaderRecoveryState(asked.leader_recovery_state),
            election=self._rules.election(topic.name),
        )
        record = self._rules.change(topic, index, target)
        if record is not None:
            self.records.append(record)
            partition = merge_partition(partition, record)
        if partition.leader != self._leader:
            # The request completed a reassignment that removes the leader.
            return _refusal(asked, ErrorCode.NEW_LEADER_ELECTED)
        return AlterPartitionResponsePartitionData(
            partition_index=index,
            leader_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            isr=list[int](partition.isr),
            leader_recovery_state=partition.leader_recovery_state,
            partition_epoch=partition.partition_epoch,
        )

    def _refused(
        self,
        partition: PartitionImage,
        asked: AlterPartitionRequestPartitionData,
        isr: list[BrokerState],
    ) -> ErrorCode:
        """Return why the request is invalid, or NONE."""
        wanted = [state.broker_id for state in isr]
        error = _epoch_error(partition, asked)
        if error is not ErrorCode.NONE:
            return error
        if (
            self._leader != partition.leader
            or self._leader not in wanted
            or len(set(wanted)) != len(wanted)
            or not set(wanted) <= set(partition.replicas)
            or not _recovery_is_legal(partition, asked, len(wanted))
        ):
            return ErrorCode.INVALID_REQUEST
        if not all(_is_eligible(self._image.brokers, partition, state) for state in isr):
            return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE


def _epoch_error(partition: PartitionImage, asked: AlterPartitionRequestPartitionData) -> ErrorCode:
    if (
        asked.leader_epoch > partition.leader_epoch
        or asked.partition_epoch > partition.partition_epoch
    ):
        # The leader has newer metadata than this controller: there is a newer active controller.
        return ErrorCode.NOT_CONTROLLER
    if asked.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if asked.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    return ErrorCode.NONE


def _recovery_is_legal(
    partition: PartitionImage, asked: AlterPartitionRequestPartitionData, isr_size: int
) -> bool:
    """Whether the state is legal: a recovering leader is alone, and recovery begins once."""
    if asked.leader_recovery_state == LeaderRecoveryState.RECOVERED:
        return True
    return (
        asked.leader_recovery_state == LeaderRecoveryState.RECOVERING
        and partition.leader_recovery_state == LeaderRecoveryState.RECOVERING
        and isr_size == 1
    )


def _is_eligible(
    brokers: Mapping[NodeId, BrokerImage], partition: PartitionImage, state: BrokerState
) -> bool:
    broker = brokers.get(NodeId(state.broker_id))
    return (
        broker is not None
        and broker.is_active
        and broker.has_online(partition.directory_of(broker.node_id))
        and state.broker_epoch in (_ANY_BROKER_EPOCH, broker.epoch)
    )


def _requested_isr(asked: AlterPartitionRequestPartitionData) -> list[BrokerState]:
    """Return the ISR of version 3, or that of version 2, which has no broker epochs."""
    if asked.new_isr_with_epochs:
        return asked.new_isr_with_epochs
    return [BrokerState(broker_id=node) for node in asked.new_isr]


def _refusal(
    asked: AlterPartitionRequestPartitionData, error: ErrorCode
) -> AlterPartitionResponsePartitionData:
    return AlterPartitionResponsePartitionData(
        partition_index=asked.partition_index, error_code=error
    )
