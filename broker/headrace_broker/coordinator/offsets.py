"""OffsetCommit, OffsetFetch and OffsetDelete: one committed offset per group and partition."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.consumer.fencing import (
    check_commit,
    check_fetch,
    check_transactional_commit,
)
from headrace_broker.coordinator.consumer.group import ConsumerGroup
from headrace_broker.coordinator.decision import Caller, GroupDecision, SetTimer
from headrace_broker.coordinator.group import NO_MEMBER_ID, Group
from headrace_broker.coordinator.records import NO_EXPIRY, OffsetRecord
from headrace_broker.coordinator.shard import (
    GroupShard,
    TopicPartition,
    offset_tombstone,
    session_key,
)
from headrace_broker.coordinator.states import GroupState
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace_broker.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from headrace_broker.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from headrace_broker.protocol.messages.records.coordinator import OffsetCommitKey, OffsetCommitValue
from headrace_broker.protocol.types import NO_LEADER_EPOCH, NO_OFFSET, TimestampMs

_VERSION_THAT_SAYS_GROUP_NOT_FOUND: Final = 9
_RECORD_OVERHEAD_BYTES: Final = 1024  # the names of group and topic, and the numbers


PartitionCheck = Callable[[OffsetCommitRequestTopic, int], ErrorCode]
"""Whether the cluster has the topic and partition; offsets for others are refused."""


def decide_commit(
    shard: GroupShard,
    config: GroupConfig,
    request: OffsetCommitRequest,
    caller: Caller,
    now_ms: TimestampMs,
    check_partition: PartitionCheck,
) -> GroupDecision:
    """Commit offsets, each by itself: a refused one does not affect the others."""
    decision = GroupDecision()
    consumer_group = shard.consumer_groups.get(request.group_id)
    if consumer_group is not None:
        _check_consumer_commit(consumer_group, request, caller)
    else:
        _check_classic_commit(shard, request, caller, decision)
    expire_ms = NO_EXPIRY if request.retention_time_ms < 0 else now_ms + request.retention_time_ms
    response = OffsetCommitResponse()
    for topic in request.topics:
        results = []
        for partition in topic.partitions:
            error = check_partition(topic, partition.partition_index)
            if error is ErrorCode.NONE:
                error = _check_metadata(config, partition)
            if error is ErrorCode.NONE:
                decision.records.append(
                    _offset_record(request.group_id, topic, partition, now_ms, expire_ms)
                )
            results.append(
                OffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=error
                )
            )
        response.topics.append(
            OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=results)
        )
    group = shard.groups.get(request.group_id)
    if group is not None and not decision.records:
        shard.forget_if_unused(group)
    decision.replies.append((caller.ticket, response))
    return decision


def _check_consumer_commit(
    group: ConsumerGroup, request: OffsetCommitRequest, caller: Caller
) -> None:
    epoch = request.generation_id_or_member_epoch
    if caller.is_transactional:
        check_transactional_commit(group, request.member_id, epoch, request.group_instance_id)
    else:
        check_commit(group, request.member_id, epoch, caller.api_version)


def _check_classic_commit(
    shard: GroupShard, request: OffsetCommitRequest, caller: Caller, decision: GroupDecision
) -> None:
    group = _group_that_commits(shard, request, caller)
    try:
        _check_commit(group, request, is_transactional=caller.is_transactional)
    except ApiError:
        shard.forget_if_unused(group)
        raise
    member = group.members.get(request.member_id)
    if member is not None:
        # A commit counts as a heartbeat.
        key = session_key(group.group_id, member.member_id)
        decision.timers.append(SetTimer(key=key, delay_ms=member.session_timeout_ms))


def _group_that_commits(shard: GroupShard, request: OffsetCommitRequest, caller: Caller) -> Group:
    shard.check_no_share_group(request.group_id)  # in any version: it has no offsets
    if request.group_id not in shard.groups and request.generation_id_or_member_epoch >= 0:
        code = (
            ErrorCode.GROUP_ID_NOT_FOUND
            if caller.api_version >= _VERSION_THAT_SAYS_GROUP_NOT_FOUND
            and not caller.is_transactional
            else ErrorCode.ILLEGAL_GENERATION
        )
        raise ApiError(code, f"Group {request.group_id} not found.")
    # A commit creates the group: simple consumers and administrators never join one.
    return shard.find_or_create(request.group_id, has_room=caller.room_for_a_group)


def _check_commit(group: Group, request: OffsetCommitRequest, *, is_transactional: bool) -> None:
    generation = request.generation_id_or_member_epoch
    if generation < 0 and group.state is GroupState.EMPTY:
        return
    if (
        generation >= 0
        or request.member_id != NO_MEMBER_ID
        or request.group_instance_id is not None
    ):
        group.check_member(request.member_id, request.group_instance_id)
        group.check_generation(generation)
    elif is_transactional:
        return  # before KIP-447 producers did not know their consumers' members
    else:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, "the group has members: only they may commit")
    if group.state is GroupState.COMPLETING_REBALANCE and not is_transactional:
        # The member knows the generation but has no assignment in it yet.
        raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS, "the group is rebalancing: join again")


def _check_metadata(config: GroupConfig, partition: OffsetCommitRequestPartition) -> ErrorCode:
    metadata = partition.committed_metadata or ""
    # The setting's name says bytes, but Kafka counts characters, as Java does: two bytes of UTF-16.
    if len(metadata.encode("utf-16-le")) // 2 > config.offset_metadata_bytes_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    if len(metadata.encode()) > config.record_bytes_max - _RECORD_OVERHEAD_BYTES:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return ErrorCode.NONE


def _offset_record(
    group_id: str,
    topic: OffsetCommitRequestTopic,
    partition: OffsetCommitRequestPartition,
    now_ms: TimestampMs,
    expire_ms: int,
) -> OffsetRecord:
    value = OffsetCommitValue(
        offset=partition.committed_offset,
        metadata=partition.committed_metadata or "",
        commit_timestamp=now_ms,
        expire_timestamp=expire_ms,
    )
    if expire_ms == NO_EXPIRY:
        # The version of the record that names a time has neither: as after a failover.
        value.leader_epoch, value.topic_id = partition.committed_leader_epoch, topic.topic_id
    return OffsetRecord(
        key=OffsetCommitKey(group=group_id, topic=topic.name, partition=partition.partition_index),
        value=value,
    )


def read_offsets(
    shard: GroupShard,
    request: OffsetFetchRequestGroup,
    topic_id_of: Callable[[str], UUID],
    *,
    require_stable: bool,
) -> OffsetFetchResponseGroup:
    """Return the group's offsets, for the given topics or for all (`topics` is null).

    Without a committed offset the answer is -1 and no error: the client applies its reset policy.
    Topics are given by name; `topic_id_of` returns a name's present id (zero: none), so that a
    recreated topic does not inherit offsets of the former one. Raises ApiError for a member of a
    consumer group that has another epoch.
    """
    consumer_group = shard.consumer_groups.get(request.group_id)
    if consumer_group is not None:
        check_fetch(consumer_group, request.member_id, request.member_epoch)
    unstable = shard.pending_offsets.get(request.group_id, set()) if require_stable else set()
    offsets = shard.offsets_of(request.group_id)

    def current(where: TopicPartition) -> OffsetCommitValue | None:
        value = offsets.get(where)
        if value is None or _is_of_a_former_topic(value, topic_id_of(where[0])):
            return None
        return value

    asked: Iterable[tuple[str, Sequence[int]]]
    if request.topics is None:
        found: dict[str, list[int]] = {}
        for where in sorted(offsets):
            if current(where) is not None:
                found.setdefault(where[0], []).append(where[1])
        asked = found.items()
    else:
        asked = [(topic.name, topic.partition_indexes) for topic in request.topics]
    return OffsetFetchResponseGroup(
        group_id=request.group_id,
        topics=[
            OffsetFetchResponseTopics(
                name=name,
                topic_id=topic_id_of(name),
                partitions=[
                    _unstable(index)
                    if (name, index) in unstable
                    else _read(index, current((name, index)))
                    for index in partitions
                ],
            )
            for name, partitions in asked
        ],
    )


def _is_of_a_former_topic(value: OffsetCommitValue, topic_id: UUID) -> bool:
    return bool(value.topic_id.int and topic_id.int and value.topic_id != topic_id)


def _read(index: int, value: OffsetCommitValue | None) -> OffsetFetchResponsePartitions:
    if value is None:
        return OffsetFetchResponsePartitions(
            partition_index=index,
            committed_offset=NO_OFFSET,
            committed_leader_epoch=NO_LEADER_EPOCH,
            metadata="",
        )
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )


def _unstable(index: int) -> OffsetFetchResponsePartitions:
    answer = _read(index, None)
    answer.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
    return answer


def decide_offset_delete(
    shard: GroupShard,
    request: OffsetDeleteRequest,
    caller: Caller,
    has_topic: Callable[[str], bool],
) -> GroupDecision:
    """Delete committed offsets of topics without subscribers in the group (KIP-496)."""
    subscribed = _topics_in_use(shard, request.group_id)
    decision = GroupDecision()
    response = OffsetDeleteResponse()
    known = shard.known_offsets_of(request.group_id)
    for topic in request.topics:
        error = ErrorCode.NONE
        if topic.name in subscribed:
            error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        elif not has_topic(topic.name):
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            decision.records.extend(
                offset_tombstone(request.group_id, (topic.name, item.partition_index))
                for item in topic.partitions
                if (topic.name, item.partition_index) in known
            )
        response.topics.append(
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=item.partition_index, error_code=error
                    )
                    for item in topic.partitions
                ],
            )
        )
    decision.replies.append((caller.ticket, response))
    return decision


def _topics_in_use(shard: GroupShard, group_id: str) -> frozenset[str]:
    consumer_group = shard.consumer_groups.get(group_id)
    if consumer_group is not None:
        return consumer_group.subscribed_topics()
    group = shard.find(group_id)
    if group.state is GroupState.EMPTY:
        return frozenset()
    topics = group.subscribed_topics()
    if topics is None:
        raise ApiError(ErrorCode.NON_EMPTY_GROUP, "the group has members of an unknown protocol")
    return topics


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """One committed offset as metrics and tools see it."""

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: TimestampMs


def committed_offsets(shard: GroupShard) -> list[CommittedOffset]:
    """Return every committed offset of the shard."""
    return [
        CommittedOffset(
            group_id=group_id,
            topic=topic,
            partition=partition,
            offset=value.offset,
            leader_epoch=value.leader_epoch,
            metadata=value.metadata,
            commit_timestamp_ms=TimestampMs(value.commit_timestamp),
        )
        for group_id, offsets in shard.offsets.items()
        for (topic, partition), value in offsets.items()
    ]
