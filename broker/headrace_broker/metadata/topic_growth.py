"""Decides the growth of topics. Partitions never shrink."""

from collections import Counter

from headrace_broker.metadata.decision import MetadataDecision, RandomSource
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.partition_change import without
from headrace_broker.metadata.partitions import (
    PartitionBudget,
    TopicPolicy,
    checked_assignment,
    partition_record,
)
from headrace_broker.metadata.placement import Placer
from headrace_broker.metadata.records import MetadataRecord
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from headrace_broker.protocol.types import NodeId


def decide_create_partitions(
    image: MetadataImage,
    request: CreatePartitionsRequest,
    policy: TopicPolicy,
    rng: RandomSource,
) -> MetadataDecision[CreatePartitionsResponse]:
    """Decide which topics grow, and where their new partitions go."""
    growth = _Growth(image, policy, rng)
    times = Counter(topic.name for topic in request.topics)
    records: list[MetadataRecord] = []
    results: list[CreatePartitionsTopicResult] = []
    for topic in request.topics:
        result = CreatePartitionsTopicResult(name=topic.name)
        results.append(result)
        try:
            records.extend(growth.grow(topic, times=times[topic.name]))
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
    return MetadataDecision(
        records=[] if request.validate_only else records,
        response=CreatePartitionsResponse(results=results),
    )


class _Growth:
    """One CreatePartitions request in progress."""

    def __init__(self, image: MetadataImage, policy: TopicPolicy, rng: RandomSource) -> None:
        self._image = image
        self._placer = Placer(image, rng)
        self._budget = PartitionBudget(image, policy)

    def grow(self, asked: CreatePartitionsTopic, *, times: int) -> list[MetadataRecord]:
        """Return the records of one topic's new partitions; raises ApiError.

        `times`: how often the request names the topic.
        """
        if times > 1:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        topic = self._image.topics.get(asked.name)
        if topic is None:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "This server does not host this topic-partition.",
            )
        if topic.is_internal:
            # Groups and transactions find their coordinator by hash modulo the number of
            # partitions.
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"{topic.name} cannot grow: groups and transactions would lose their partition",
            )
        existing = len(topic.partitions)
        if asked.count <= existing:
            raise ApiError(ErrorCode.INVALID_PARTITIONS, _not_growing(existing, asked.count))
        added = asked.count - existing
        self._budget.take(existing=existing, added=added)
        first = next(iter(topic.partitions.values()))
        # In the middle of a move a partition has the replicas of both its ends.
        factor = len(without(first.replicas, first.removing_replicas))
        if asked.assignments is None:
            placements = self._placer.place(added, factor)
        else:
            placements = self._manual(asked, existing, added, factor)
        return [
            partition_record(self._image, topic.topic_id, existing + position, replicas)
            for position, replicas in enumerate(placements)
        ]

    def _manual(
        self, asked: CreatePartitionsTopic, existing: int, added: int, factor: int
    ) -> list[list[NodeId]]:
        assignments = asked.assignments or []
        if len(assignments) != added:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), but only "
                f"{len(assignments)} assignment(s) were specified.",
            )
        return [
            checked_assignment(self._image, existing + position, entry.broker_ids, factor)
            for position, entry in enumerate(assignments)
        ]


def _not_growing(existing: int, count: int) -> str:
    if count == existing:
        return f"Topic already has {existing} partition(s)."
    return (
        f"The topic currently has {existing} partition(s); {count} would not be an increase, "
        "and partitions never shrink."
    )
