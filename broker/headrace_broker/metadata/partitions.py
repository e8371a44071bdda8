"""Rules for new partitions, however they are created: limits, assignments, and their record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace_broker.metadata.cordons import check_not_cordoned
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.records import PartitionRecord
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import NodeId, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    """The broker's settings about topics; every limit is finite."""

    node_id: NodeId
    static: Mapping[str, str] = field(default_factory=dict)
    num_partitions: int = 1
    replication_factor: int = 1
    deletion_enabled: bool = True
    partitions_per_topic_max: int = 10_000
    partitions_max: int = 100_000
    # Kafka's ReplicationControlManager.MAX_PARTITIONS_PER_BATCH: one request is one log batch.
    partitions_per_request_max: int = 10_000


class PartitionBudget:
    """Counts new partitions against the request's, the topic's and the cluster's limit."""

    def __init__(self, image: MetadataImage, policy: TopicPolicy) -> None:
        self._image = image
        self._policy = policy
        self._taken = 0

    def check(self, *, existing: int, added: int) -> None:
        """Raise ApiError(POLICY_VIOLATION) naming the limit that `added` would break."""
        policy = self._policy
        if existing + added > policy.partitions_per_topic_max:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"{existing + added} partitions are more than headrace.max.partitions.per.topic "
                f"({policy.partitions_per_topic_max}) allows",
            )
        if self._taken + added > policy.partitions_per_request_max:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                "Excessively large number of partitions per request: at most "
                f"{policy.partitions_per_request_max} can be made by one",
            )
        total = self._image.partition_count + self._taken + added
        if total > policy.partitions_max:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"the cluster would have {total} partitions, more than headrace.max.partitions "
                f"({policy.partitions_max}) allows",
            )

    def take(self, *, existing: int, added: int) -> None:
        """Check, and count `added` for later calls."""
        self.check(existing=existing, added=added)
        self._taken += added


def partition_record(
    image: MetadataImage, topic_id: TopicId, index: int, replicas: Sequence[NodeId]
) -> PartitionRecord:
    """Return a new partition's record: replicas on active brokers are in sync."""
    isr = [node for node in replicas if image.brokers[node].is_active]
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(replicas),
        isr=list[int](isr),
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=[image.brokers[node].default_directory for node in replicas],
    )


def checked_assignment(
    image: MetadataImage, index: int, broker_ids: Sequence[int], factor: int
) -> list[NodeId]:
    """Return one manual assignment; raises ApiError(INVALID_REPLICA_ASSIGNMENT)."""
    problem = _assignment_problem(image, broker_ids, factor)
    if problem is not None:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual assignment of partition {index} {problem}",
        )
    replicas = [NodeId(broker_id) for broker_id in broker_ids]
    check_not_cordoned(image, replicas, f"Partition {index}")
    return replicas


def _assignment_problem(image: MetadataImage, broker_ids: Sequence[int], factor: int) -> str | None:
    if not broker_ids:
        return "includes an empty replica list."
    if len(set(broker_ids)) != len(broker_ids):
        return f"includes a broker more than once: {list(broker_ids)}."
    unknown = [broker_id for broker_id in broker_ids if NodeId(broker_id) not in image.brokers]
    if unknown:
        return f"includes broker {unknown[0]}, but no such broker is registered."
    if len(broker_ids) != factor:
        return f"has {len(broker_ids)} replica(s), but the other partitions have {factor}."
    if not any(image.brokers[NodeId(broker_id)].is_active for broker_id in broker_ids):
        return "names only brokers that are fenced or shutting down."
    return None
