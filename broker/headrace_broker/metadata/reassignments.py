"""Decides reassignments: which brokers hold a partition's replicas, and the steps there (KIP-455).

During a reassignment, a partition has the target's replicas first, then those to be removed. When
all target replicas are in sync, the change that reports this completes it (`partition_change`).
Cancelling restores the original replicas.
"""

from collections import Counter
from collections.abc import Sequence

from headrace_broker.metadata.cordons import check_not_cordoned
from headrace_broker.metadata.decision import MetadataDecision
from headrace_broker.metadata.entities import PartitionImage, TopicImage, merge_partition
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.partition_change import (
    Election,
    PartitionTarget,
    is_reassigning,
    without,
)
from headrace_broker.metadata.partitions import TopicPolicy
from headrace_broker.metadata.records import MetadataRecord, PartitionChangeRecord
from headrace_broker.metadata.replication_rules import ReplicationRules, partitions_of
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from headrace_broker.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from headrace_broker.protocol.types import NodeId, PartitionIndex


def decide_alter_reassignments(
    image: MetadataImage, request: AlterPartitionReassignmentsRequest, policy: TopicPolicy
) -> MetadataDecision[AlterPartitionReassignmentsResponse]:
    """Decide which reassignments begin, change or are cancelled; each has its own outcome."""
    rules = ReplicationRules(image, policy)
    allow_factor_change = request.allow_replication_factor_change
    times = Counter(
        (topic.name, asked.partition_index)
        for topic in request.topics
        for asked in topic.partitions
    )
    records: list[MetadataRecord] = []
    responses = []
    for topic in request.topics:
        outcomes = []
        for asked in topic.partitions:
            outcome = ReassignablePartitionResponse(
                partition_index=asked.partition_index, error_message=None
            )
            outcomes.append(outcome)
            try:
                if times[topic.name, asked.partition_index] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "The partition is named twice.")
                record = _reassign(
                    rules, topic.name, asked, allow_factor_change=allow_factor_change
                )
            except ApiError as error:
                outcome.error_code, outcome.error_message = error.code, error.message
            else:
                records += [] if record is None else [record]
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=outcomes))
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=allow_factor_change,
        error_message=None,
        responses=responses,
    )
    return MetadataDecision(records=records, response=response)


def _reassign(
    rules: ReplicationRules, name: str, asked: ReassignablePartition, *, allow_factor_change: bool
) -> PartitionChangeRecord | None:
    topic = rules.image.topics.get(name)
    index = PartitionIndex(asked.partition_index)
    partition = None if topic is None else topic.partitions.get(index)
    if topic is None or partition is None:
        raise ApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a partition {name}-{index}."
        )
    if asked.replicas is None:
        return cancel_reassignment(rules, topic, index)
    target = [NodeId(node) for node in asked.replicas]
    _check_assignment(rules.image, target)
    check_not_cordoned(rules.image, without(target, partition.replicas), f"{name}-{index}")
    original = original_replicas(partition)
    if not allow_factor_change and len(target) != len(original):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(original)} to {len(target)}",
        )
    return rules.change(topic, index, reassignment_target(partition, target))


def reassignment_target(partition: PartitionImage, target: Sequence[NodeId]) -> PartitionTarget:
    """Return the change of a partition towards the replicas `target`, from any state.

    A replica that an unfinished reassignment added and this one does not want is both adding and
    removing: it is removed at the end, and also if this reassignment is cancelled.
    """
    original = original_replicas(partition)
    removing = without(partition.replicas, target)
    replicas = (*target, *removing)
    return PartitionTarget(replicas=replicas, adding=without(replicas, original), removing=removing)


def original_replicas(partition: PartitionImage) -> tuple[NodeId, ...]:
    """Return the replicas that a cancelled reassignment returns to."""
    return without(partition.replicas, partition.adding_replicas)


def _check_assignment(image: MetadataImage, target: Sequence[NodeId]) -> None:
    problem = None
    unknown = [node for node in target if node not in image.brokers]
    if not target:
        problem = "The manual partition assignment includes an empty replica list."
    elif len(set(target)) != len(target):
        problem = f"The manual partition assignment includes a broker twice: {list(target)}."
    elif unknown:
        problem = (
            f"The manual partition assignment includes broker {unknown[0]}, but no such broker "
            "is registered."
        )
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)


def cancel_reassignment(
    rules: ReplicationRules, topic: TopicImage, index: PartitionIndex
) -> PartitionChangeRecord | None:
    """Return the change of a partition back to its original replicas; raises ApiError."""
    partition = topic.partitions[index]
    if not is_reassigning(partition):
        raise ApiError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."
        )
    adding = partition.adding_replicas
    isr = without(partition.isr, adding)
    # An eligible replica that is down is no reason to drop the live ones: it may return with an
    # empty disk, and the last known leader would be one that was dropped.
    if not isr and not rules.topic(topic.name).unclean_election:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Unable to revert the partition assignment of {topic.name}-{index}: it would need an "
            "unclean leader election.",
        )
    target = PartitionTarget(
        replicas=original_replicas(partition),
        adding=(),
        removing=(),
        isr=isr,
        election=Election.ONLINE if isr else Election.UNCLEAN,
    )
    record = rules.change(topic, index, target)
    after = partition if record is None else merge_partition(partition, record)
    if not set(after.last_known_elr) <= set(after.replicas):
        # Without a leader the partition would wait for a broker that no longer has a replica.
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Unable to revert the partition assignment of {topic.name}-{index}: none of the "
            f"replicas {list(after.replicas)} is available to lead.",
        )
    return record


def list_reassignments(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """List the reassignments in progress, of all partitions or of the given ones."""
    asked: list[tuple[str, list[int]]]
    if request.topics is None:
        asked = [(name, list[int](topic.partitions)) for name, topic in image.topics.items()]
    else:
        asked = [(topic.name, topic.partition_indexes) for topic in request.topics]
    topics = []
    for name, indexes in asked:
        found = [
            OngoingPartitionReassignment(
                partition_index=index,
                replicas=list[int](partition.replicas),
                adding_replicas=list[int](partition.adding_replicas),
                removing_replicas=list[int](partition.removing_replicas),
            )
            for index in indexes
            if (partition := image.partition(name, PartitionIndex(index))) is not None
            and is_reassigning(partition)
        ]
        if found:
            topics.append(OngoingTopicReassignment(name=name, partitions=found))
    return ListPartitionReassignmentsResponse(error_message=None, topics=topics)


def decide_complete_reassignments(
    image: MetadataImage, policy: TopicPolicy
) -> MetadataDecision[int]:
    """Complete reassignments that can be completed now; return how many.

    A growing ISR completes them automatically; this is for those that another change left open.
    """
    rules = ReplicationRules(image, policy)
    records: list[MetadataRecord] = []
    for topic, index, partition in partitions_of(image):
        if is_reassigning(partition):
            target = PartitionTarget(election=rules.election(topic.name))
            record = rules.change(topic, index, target)
            if record is not None:
                records.append(record)
    return MetadataDecision(records=records, response=len(records))
