"""Snapshots: made here, served by a leader, fetched behind the log's start (KIP-630)."""

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotRequestPartitionSnapshot,
    FetchSnapshotRequestSnapshotId,
    FetchSnapshotRequestTopicSnapshot,
    FetchSnapshotResponse,
    FetchSnapshotResponseSnapshotId,
)
from headrace_broker.protocol.types import NodeId

from .effects import (
    InstallSnapshot,
    LoadSnapshot,
    ReplyWithSnapshotPart,
    TrimLog,
    WriteSnapshotPart,
)
from .events import ReceivedRequest, SnapshotInstalled, SnapshotRejected
from .fetching import has_room
from .leading import end_of, leader_epoch_error, note_heard
from .messages import check_cluster, endpoints_in, snapshot_response, sole_partition
from .replica import InvariantError, Replica
from .roles import Download, Follower, Leader
from .types import METADATA_TOPIC, OffsetAndEpoch, ReplicaKey


def note_snapshot(replica: Replica, snapshot_id: OffsetAndEpoch) -> None:
    """Register a snapshot that was made here; let the log begin at the previous one.

    The previous one stays, so that a replica that lags a little needs only the log.
    """
    log, offset = replica.log, snapshot_id.offset
    latest = log.latest_snapshot
    if latest is not None and latest.offset >= offset:
        return  # another one replaced it while it was made
    if not log.start.offset < offset <= replica.high_watermark:
        raise InvariantError(f"a snapshot {snapshot_id} of {log.start} to {replica.high_watermark}")
    if log.epoch_before(offset) != snapshot_id.epoch:
        raise InvariantError(f"{snapshot_id} was written by epoch {log.epoch_before(offset)}")
    log.snapshots.append(snapshot_id)
    if latest is not None and latest.offset > log.start.offset:
        log.trim(latest)
        replica.history.trim(latest.offset)
        replica.emit(TrimLog(latest))


def handle_fetch_snapshot(
    replica: Replica, event: ReceivedRequest, request: FetchSnapshotRequest
) -> None:
    """Answer with a part of a snapshot; the driver reads it and checks the position."""
    partition = sole_partition(request.topics)
    error = check_cluster(replica, request.cluster_id)
    if not error and partition is None:
        error = ErrorCode.INVALID_REQUEST
    elif not error and partition is not None:
        error = leader_epoch_error(replica, partition.current_leader_epoch)
    leader = replica.role
    if error or partition is None or not isinstance(leader, Leader):
        replica.reply(event.ticket, snapshot_response(replica, event.api_version, error))
        return
    wanted = end_of(partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
    if request.replica_id >= 0:
        key = ReplicaKey(NodeId(request.replica_id), partition.replica_directory_id)
        if has_room(leader, key):
            note_heard(replica, leader, key)
    if wanted not in replica.log.snapshots:
        response = snapshot_response(replica, event.api_version, ErrorCode.SNAPSHOT_NOT_FOUND)
        replica.reply(event.ticket, response)
        return
    response = snapshot_response(replica, event.api_version)
    answer = response.topics[0].partitions[0]
    answer.snapshot_id = FetchSnapshotResponseSnapshotId(
        end_offset=wanted.offset, epoch=wanted.epoch
    )
    answer.position = partition.position
    size = max(min(request.max_bytes, replica.config.snapshot_part_bytes_max), 1)
    replica.emit(ReplyWithSnapshotPart(event.ticket, response, wanted, partition.position, size))


def note_resigned(replica: Replica, follower: Follower) -> None:
    """Look for a new leader at once: the present one answered that it no longer leads."""
    replica.note_gone(follower.leader_id)
    delay = replica.random_ms(replica.config.fast_election_delay_ms_max)
    follower.fetch_deadline_ms = min(follower.fetch_deadline_ms, replica.now_ms + delay)


def note_leader_heard(replica: Replica, follower: Follower) -> None:
    """Record a successful answer of the leader: the fetch timeout starts over."""
    follower.heard_ms = replica.now_ms
    replica.gone_until_ms.pop(follower.leader_id, None)
    timeout = replica.config.fetch_timeout_ms
    follower.fetch_deadline_ms = replica.now_ms + timeout + replica.random_ms(timeout // 4)


def snapshot_request(replica: Replica, download: Download) -> FetchSnapshotRequest:
    """Return the request for a snapshot's next part."""
    wanted = download.snapshot_id
    partition = FetchSnapshotRequestPartitionSnapshot(
        current_leader_epoch=replica.epoch,
        snapshot_id=FetchSnapshotRequestSnapshotId(end_offset=wanted.offset, epoch=wanted.epoch),
        position=download.position,
        replica_directory_id=replica.key.directory_id,
    )
    return FetchSnapshotRequest(
        cluster_id=replica.config.cluster_id,
        replica_id=replica.key.node_id,
        max_bytes=replica.config.snapshot_part_bytes_max,
        topics=[FetchSnapshotRequestTopicSnapshot(name=METADATA_TOPIC, partitions=[partition])],
    )


def handle_snapshot_answer(replica: Replica, response: FetchSnapshotResponse | None) -> None:
    """Store a part of the leader's snapshot; after the last part it replaces the log."""
    follower = replica.role
    if not isinstance(follower, Follower):
        return
    follower.is_fetching = False
    follower.fetch_at_ms = replica.now_ms + replica.config.retry_backoff_ms
    partition = sole_partition(response.topics) if response else None
    if response is None or response.error_code or partition is None:
        return
    current = partition.current_leader
    if replica.learn(current.leader_epoch, current.leader_id, endpoints_in(response)):
        return
    download = follower.download
    if partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and current.leader_id < 0:
        note_resigned(replica, follower)
        return
    if partition.error_code or download is None:
        follower.download = None  # the leader no longer has it: its log tells what to do
        return
    wanted, data = download.snapshot_id, partition.unaligned_records
    is_expected = partition.position == download.position and (
        end_of(partition.snapshot_id.end_offset, partition.snapshot_id.epoch) == wanted
    )
    if not is_expected or not data or download.position + len(data) > partition.size:
        follower.download = None
        return
    note_leader_heard(replica, follower)
    follower.fetch_at_ms = replica.now_ms
    replica.emit(WriteSnapshotPart(wanted, download.position, data))
    download.position += len(data)
    if download.position == partition.size:
        follower.download = None
        replica.installing = wanted
        replica.emit(InstallSnapshot(wanted))


def handle_installed(replica: Replica, event: SnapshotInstalled) -> None:
    """Continue from a snapshot that replaced the log."""
    if isinstance(replica.role, Leader) or replica.installing != event.snapshot_id:
        raise InvariantError(f"LeaderCompleteness: {event.snapshot_id} was not asked for")
    replica.installing = None
    before = replica.voters
    replica.log.restart(event.snapshot_id)
    if event.control is not None:
        replica.history.restart(event.control)
    replica.emit(LoadSnapshot(event.snapshot_id))
    replica.advance_high_watermark(event.snapshot_id.offset)
    replica.tell_voters(before)
    _resume(replica)


def handle_rejected(replica: Replica, event: SnapshotRejected) -> None:
    """Fetch a snapshot again that was not whole."""
    if replica.installing == event.snapshot_id:
        replica.installing = None
        _resume(replica)


def _resume(replica: Replica) -> None:
    if isinstance(replica.role, Follower):
        timeout = replica.config.fetch_timeout_ms
        replica.role.fetch_deadline_ms = replica.now_ms + timeout
        replica.role.fetch_at_ms = replica.now_ms
