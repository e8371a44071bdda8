"""Offsets that a transaction commits with its records (KIP-98, KIP-447): pending until its marker.

Owns the pending offsets, and which of two commits for a partition wins: the later one in the log,
whether a marker or a plain commit made it readable. This holds live and in replay (KAFKA-5247).
"""

from collections.abc import Sequence
from dataclasses import replace

from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.decision import Caller, GroupDecision
from headrace_broker.coordinator.offsets import PartitionCheck, decide_commit
from headrace_broker.coordinator.pending_offsets import PendingOffset
from headrace_broker.coordinator.records import CoordinatorRecord, OffsetRecord
from headrace_broker.coordinator.shard import GroupShard, replay
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from headrace_broker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from headrace_broker.protocol.types import TimestampMs

_COMMITS_OF_ANY_MEMBER = 9
"""The version of OffsetCommit from which members of consumer groups may commit."""
_AS_ILLEGAL_GENERATION = frozenset(
    {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.FENCED_MEMBER_EPOCH}
)


def decide_txn_commit(
    shard: GroupShard,
    config: GroupConfig,
    request: TxnOffsetCommitRequest,
    caller: Caller,
    now_ms: TimestampMs,
    check_partition: PartitionCheck,
) -> GroupDecision:
    """Decide a transaction's offsets: member and generation are checked as for a plain commit.

    `replay_transactional` must apply the records. Raises ILLEGAL_GENERATION for a caller that is
    not in the group's present generation, GROUP_ID_NOT_FOUND in a share group.
    """
    shard.check_no_share_group(request.group_id)  # as in Kafka, such a group has no offsets
    plain = OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=item.partition_index,
                        committed_offset=item.committed_offset,
                        committed_leader_epoch=item.committed_leader_epoch,
                        committed_metadata=item.committed_metadata,
                    )
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
    try:
        decision = decide_commit(
            shard,
            config,
            plain,
            replace(caller, is_transactional=True, api_version=_COMMITS_OF_ANY_MEMBER),
            now_ms,
            check_partition,
        )
    except ApiError as error:
        if error.code in _AS_ILLEGAL_GENERATION:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION, error.message) from error
        raise
    return GroupDecision(
        records=decision.records,
        timers=decision.timers,
        replies=[(ticket, _answer(response)) for ticket, response in decision.replies],
    )


def _answer(response: OffsetCommitResponse) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=item.partition_index, error_code=item.error_code
                    )
                    for item in topic.partitions
                ],
            )
            for topic in response.topics
        ]
    )


def replay_transactional(
    shard: GroupShard, producer_id: int, record: CoordinatorRecord, *, is_written: bool = True
) -> PendingOffset | None:
    """Apply a record of a transactional batch: it waits for its producer's marker.

    One that is not in the log yet is `is_written=False`, until `written` or `forget_transactional`.
    """
    if not isinstance(record, OffsetRecord) or record.value is None:
        return None
    where = (record.key.topic, record.key.partition)
    shard.ensure_group(record.key.group)
    shard.pending_offsets.setdefault(record.key.group, set()).add(where)
    return shard.transactional.note(producer_id, record, is_written=is_written)


def forget_transactional(
    shard: GroupShard, producer_id: int, noted: Sequence[PendingOffset | None]
) -> None:
    """Undo `replay_transactional`: the log refused the append."""
    shard.transactional.forget(producer_id, noted)
    _update_groups(shard, {each.record.key.group for each in noted if each is not None})


def replay_marker(shard: GroupShard, producer_id: int, *, commits: bool) -> None:
    """Apply a marker: pending offsets become readable, or are dropped."""
    ended = shard.transactional.end(producer_id)
    for pending in ended:
        if commits and not pending.is_overwritten:
            replay(shard, pending.record, pending.order)
    _update_groups(shard, {pending.record.key.group for pending in ended})


def _update_groups(shard: GroupShard, group_ids: set[str]) -> None:
    for group_id in group_ids:
        left = shard.transactional.pending_of(group_id)
        if left:
            shard.pending_offsets[group_id] = left
            continue
        shard.pending_offsets.pop(group_id, None)
        group = shard.groups.get(group_id)
        if group is not None:
            shard.forget_if_unused(group)
