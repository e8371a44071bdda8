"""How a leader answers Fetch: at once, or once there is something to send (KIP-595, KIP-1166)."""

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    SnapshotId,
)
from headrace_broker.protocol.types import NodeId, Offset

from .effects import ReplyWithRecords
from .events import ReceivedRequest
from .leading import end_of, leader_epoch_error, note_fetch, note_heard, update_high_watermark
from .log_index import Diverging, NeedsSnapshot
from .messages import check_cluster, fetch_response, sole_partition
from .replica import Replica
from .roles import DelayedFetch, Leader
from .types import ReplicaKey

# Fetch v12 brought the epochs that KRaft needs (KIP-595).
_FETCH_VERSION_MIN = 12
# The limit of waiting fetches; a further one is answered at once, so memory is bounded.
_DELAYED_MAX = 10_000
# How many replicas' progress is remembered, besides the voters'.
_OBSERVERS_MAX = 10_000
# Kafka's LeaderState.OBSERVER_SESSION_TIMEOUT_MS.
_OBSERVER_SESSION_MS = 300_000


def handle_fetch(replica: Replica, event: ReceivedRequest, request: FetchRequest) -> None:
    """Count the fetcher's offset, and answer with records, a divergence, or a snapshot's id."""
    partition = sole_partition(request.topics)
    error = check_cluster(replica, request.cluster_id)
    if event.api_version < _FETCH_VERSION_MIN:
        error = ErrorCode.UNSUPPORTED_VERSION
    elif not error and (partition is None or partition.fetch_offset < 0):
        error = ErrorCode.INVALID_REQUEST
    elif not error and partition is not None:
        error = leader_epoch_error(replica, partition.current_leader_epoch)
    leader = replica.role
    if error or partition is None or not isinstance(leader, Leader):
        replica.reply(event.ticket, fetch_response(replica, event.api_version, error))
        return
    key = _fetcher(request, partition)
    verdict = replica.log.check(end_of(partition.fetch_offset, partition.last_fetched_epoch))
    if key is not None and has_room(leader, key):
        if verdict is None:
            note_fetch(replica, leader, key, Offset(partition.fetch_offset))
            update_high_watermark(replica, leader)
        else:
            note_heard(replica, leader, key)
    delayed = DelayedFetch(
        ticket=event.ticket,
        request=request,
        api_version=event.api_version,
        deadline_ms=replica.now_ms
        + min(max(request.max_wait_ms, 0), replica.config.fetch_wait_ms_max),
    )
    is_full = len(leader.delayed) >= _DELAYED_MAX
    if verdict is not None or is_full or _is_due(replica, delayed, partition):
        _answer(replica, delayed, verdict)
        return
    place = key if key is not None else event.ticket
    superseded = leader.delayed.pop(place, None)
    leader.delayed[place] = delayed
    if superseded is not None:
        _answer(replica, superseded, None)


def _fetcher(request: FetchRequest, partition: FetchPartition) -> ReplicaKey | None:
    """Return which replica fetches; None: a client that only reads."""
    node_id = max(request.replica_state.replica_id, request.replica_id)
    return ReplicaKey(NodeId(node_id), partition.replica_directory_id) if node_id >= 0 else None


def has_room(leader: Leader, key: ReplicaKey) -> bool:
    """Whether a replica's progress is, or can be, remembered."""
    return key in leader.progress or len(leader.progress) < _OBSERVERS_MAX


def _is_due(replica: Replica, delayed: DelayedFetch, partition: FetchPartition) -> bool:
    """Whether to answer a fetch: for records, a high watermark (KIP-1166), or its timeout."""
    return (
        replica.log.end_offset > partition.fetch_offset
        or replica.high_watermark > partition.high_watermark
        or delayed.deadline_ms <= replica.now_ms
    )


def answer_parked(replica: Replica, leader: Leader) -> None:
    """Answer the waiting fetches that have something to send now."""
    for place, delayed in list(leader.delayed.items()):
        partition = delayed.request.topics[0].partitions[0]
        if _is_due(replica, delayed, partition):
            del leader.delayed[place]
            # The log may have been trimmed while the fetch waited.
            end = end_of(partition.fetch_offset, partition.last_fetched_epoch)
            _answer(replica, delayed, replica.log.check(end))


def refuse_parked(replica: Replica, leader: Leader) -> None:
    """Answer waiting fetches that this replica no longer leads."""
    for delayed in leader.delayed.values():
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        replica.reply(delayed.ticket, fetch_response(replica, delayed.api_version, error))
    leader.delayed.clear()


def _answer(
    replica: Replica, delayed: DelayedFetch, verdict: Diverging | NeedsSnapshot | None
) -> None:
    response = fetch_response(replica, delayed.api_version)
    answer = response.responses[0].partitions[0]
    partition = delayed.request.topics[0].partitions[0]
    if isinstance(verdict, Diverging):
        end = verdict.end
        answer.diverging_epoch = EpochEndOffset(epoch=end.epoch, end_offset=end.offset)
    elif isinstance(verdict, NeedsSnapshot):
        found = verdict.snapshot_id
        answer.snapshot_id = SnapshotId(end_offset=found.offset, epoch=found.epoch)
    elif replica.log.end_offset > partition.fetch_offset:
        size = min(delayed.request.max_bytes, partition.partition_max_bytes)
        replica.emit(
            ReplyWithRecords(delayed.ticket, response, Offset(partition.fetch_offset), size)
        )
        return
    replica.reply(delayed.ticket, response)


def forget_silent_observers(replica: Replica, leader: Leader) -> None:
    """Drop the progress of replicas that stopped fetching and are not voters."""
    oldest = replica.now_ms - _OBSERVER_SESSION_MS
    for key, progress in list(leader.progress.items()):
        if (progress.last_fetch_ms or 0) < oldest and not replica.voters.has(key):
            del leader.progress[key]
