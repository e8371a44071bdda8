"""Decides leader elections: those that an administrator requests, and automatic ones.

Preferred leaders are the first replicas, which placement spreads evenly: electing them undoes what
restarts have moved. An unclean election may lose committed records, so it happens only if a topic
allows it or an administrator requests it.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

from headrace_broker.metadata.decision import MetadataDecision
from headrace_broker.metadata.entities import NO_LEADER, PartitionImage
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.partition_change import Election, PartitionTarget
from headrace_broker.metadata.partitions import TopicPolicy
from headrace_broker.metadata.records import MetadataRecord, PartitionChangeRecord
from headrace_broker.metadata.replication_rules import ReplicationRules, partitions_of
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from headrace_broker.protocol.types import NodeId, PartitionIndex

#: Elections of one batch, as Kafka's MAX_ELECTIONS_PER_IMBALANCE.
ELECTIONS_PER_BATCH_MAX = 1000

_ELECTIONS = {0: Election.PREFERRED, 1: Election.UNCLEAN}


def decide_elect_leaders(
    image: MetadataImage, request: ElectLeadersRequest, policy: TopicPolicy
) -> MetadataDecision[ElectLeadersResponse]:
    """Decide the elections of an ElectLeaders request; each partition has its own outcome.

    Without partitions, all are meant, and those that need no election are left out of the answer.
    Raises ApiError(INVALID_REQUEST) for an unknown type of election.
    """
    election = _ELECTIONS.get(request.election_type)
    if election is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    rules = ReplicationRules(image, policy)
    everything = request.topic_partitions is None
    records: list[MetadataRecord] = []
    results: list[ReplicaElectionResult] = []
    for topic, partitions in _asked(image, request):
        outcomes = []
        for index in dict.fromkeys(partitions):
            outcome = PartitionResult(partition_id=index, error_message=None)
            try:
                records.append(_elect(rules, topic, PartitionIndex(index), election))
            except ApiError as error:
                outcome.error_code, outcome.error_message = error.code, error.message
            if not (everything and outcome.error_code == ErrorCode.ELECTION_NOT_NEEDED):
                outcomes.append(outcome)
        if outcomes:
            results.append(ReplicaElectionResult(topic=topic, partition_result=outcomes))
    return MetadataDecision(
        records=records, response=ElectLeadersResponse(replica_election_results=results)
    )


def _asked(
    image: MetadataImage, request: ElectLeadersRequest
) -> Iterator[tuple[str, Sequence[int]]]:
    if request.topic_partitions is None:
        yield from ((name, list(topic.partitions)) for name, topic in image.topics.items())
    else:
        merged: dict[str, list[int]] = {}
        for asked in request.topic_partitions:
            merged.setdefault(asked.topic, []).extend(asked.partitions)
        yield from merged.items()


def _elect(
    rules: ReplicationRules, name: str, index: PartitionIndex, election: Election
) -> PartitionChangeRecord:
    topic = rules.image.topics.get(name)
    partition = None if topic is None else topic.partitions.get(index)
    if topic is None or partition is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    if election is Election.PREFERRED:
        is_needed = not has_preferred_leader(partition)
    else:
        is_needed = partition.leader == NO_LEADER
    if not is_needed:
        raise ApiError(ErrorCode.ELECTION_NOT_NEEDED, "The leader is the one asked for.")
    record = rules.change(topic, index, PartitionTarget(election=election))
    if record is not None:
        return record
    if election is Election.PREFERRED:
        raise ApiError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred leader {partition.replicas[0]} is not in sync or not available.",
        )
    raise ApiError(
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        f"None of the replicas {list(partition.replicas)} is available.",
    )


def has_preferred_leader(partition: PartitionImage) -> bool:
    """Whether the first replica leads."""
    return partition.leader == partition.replicas[0]


def decide_preferred_leaders(
    image: MetadataImage,
    policy: TopicPolicy,
    limit: int = ELECTIONS_PER_BATCH_MAX,
    *,
    among: Collection[NodeId] | None = None,
) -> MetadataDecision[int]:
    """Return up to `limit` partitions to their preferred leader; return how many.

    Only those whose first replica is in sync and active (and in `among`): the others are left
    alone.
    """
    rules = ReplicationRules(image, policy)

    def is_due(partition: PartitionImage) -> bool:
        first = partition.replicas[0]
        if among is not None and first not in among:
            return False
        return partition.leader != first and first in partition.isr and first in rules.active

    return _elect_where(rules, is_due, Election.PREFERRED, limit)


def decide_leaderless_partitions(
    image: MetadataImage, policy: TopicPolicy, limit: int = ELECTIONS_PER_BATCH_MAX
) -> MetadataDecision[int]:
    """Elect leaders for leaderless partitions where that is possible now; return how many.

    When a broker returns, its partitions are elected without this; this finds elections that a
    changed setting has made possible (unclean.leader.election.enable).
    """
    rules = ReplicationRules(image, policy)
    return _elect_where(rules, _has_no_leader, None, limit)


def _has_no_leader(partition: PartitionImage) -> bool:
    return partition.leader == NO_LEADER


def _elect_where(
    rules: ReplicationRules,
    is_due: Callable[[PartitionImage], bool],
    election: Election | None,
    limit: int,
) -> MetadataDecision[int]:
    records: list[MetadataRecord] = []
    for topic, index, partition in partitions_of(rules.image):
        if len(records) == limit:
            break
        if is_due(partition):
            how = rules.election(topic.name) if election is None else election
            record = rules.change(topic, index, PartitionTarget(election=how))
            if record is not None:
                records.append(record)
    return MetadataDecision(records=records, response=len(records))
