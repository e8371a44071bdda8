"""What a follower or an observer does: fetch, append, truncate (KIP-595)."""

from headrace_broker.protocol.batch import check_batch, iterate_batches
from headrace_broker.protocol.errors import DecodeError, ErrorCode
from headrace_broker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from headrace_broker.protocol.types import Buffer, NodeId, Offset

from . import snapshots
from .control import find_control
from .effects import AppendToLog, FlushLog, TruncateLog
from .leading import end_of
from .messages import endpoints_in, sole_partition
from .replica import InvariantError, Replica
from .roles import Download, Follower, Leader, Unattached
from .types import METADATA_TOPIC, METADATA_TOPIC_ID, Destination, OffsetAndEpoch


def fetch(replica: Replica, follower: Follower) -> None:
    """Fetch the next part of the leader's log or snapshot.

    The offset acknowledges everything below it, so it waits for this log's fsync (DurableAck).
    """
    endpoint = follower.endpoint
    is_busy = follower.is_fetching or replica.installing is not None or not replica.log.is_flushed
    if is_busy or endpoint is None or follower.fetch_at_ms > replica.now_ms:
        return
    destination = Destination(follower.leader_id, endpoint.host, endpoint.port)
    follower.is_fetching = True
    if follower.download is not None:
        replica.send(destination, snapshots.snapshot_request(replica, follower.download))
        return
    wait_ms = replica.config.fetch_wait_ms_max
    replica.send(destination, _fetch_request(replica, wait_ms), wait_ms)


def find_leader(replica: Replica, unattached: Unattached) -> None:
    """Ask any known server for the leader: its refusal names it (KIP-595, KIP-853)."""
    if unattached.is_asking or unattached.find_leader_at_ms > replica.now_ms:
        return
    known = [replica.destination_of(voter) for voter in replica.other_voters]
    servers = [found for found in known if found is not None]
    # Bootstrap servers have no id yet; Kafka numbers them downwards from -2. They are asked even if
    # voters are known: all of those may have moved while this replica was down.
    servers += [
        Destination(NodeId(-2 - place), at.host, at.port)
        for place, at in enumerate(replica.config.bootstrap_servers)
    ]
    if not servers:
        return
    unattached.is_asking = True
    place = replica.random_ms(len(servers))
    replica.send(servers[place], _fetch_request(replica, 0))


def _fetch_request(replica: Replica, wait_ms: int) -> FetchRequest:
    end = replica.log.end
    partition = FetchPartition(
        current_leader_epoch=replica.epoch,
        fetch_offset=end.offset,
        last_fetched_epoch=end.epoch,
        log_start_offset=replica.log.start.offset,
        partition_max_bytes=replica.config.fetch_bytes_max,
        replica_directory_id=replica.key.directory_id,
        high_watermark=replica.high_watermark,
    )
    topic = FetchTopic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])
    return FetchRequest(
        cluster_id=replica.config.cluster_id,
        replica_state=ReplicaState(replica_id=replica.key.node_id),
        max_wait_ms=wait_ms,
        max_bytes=replica.config.fetch_bytes_max,
        topics=[topic],
    )


def handle_fetch_answer(replica: Replica, response: FetchResponse | None) -> None:
    """Apply a fetch's answer; None: it failed, so retry after the backoff."""
    role = replica.role
    retry_ms = replica.now_ms + replica.config.retry_backoff_ms
    if isinstance(role, Unattached):
        role.is_asking = False
        role.find_leader_at_ms = retry_ms
    elif isinstance(role, Follower):
        role.is_fetching = False
        role.fetch_at_ms = retry_ms
    partition = sole_partition(response.responses) if response else None
    if response is None or response.error_code or partition is None:
        return
    current = partition.current_leader
    if replica.learn(current.leader_epoch, current.leader_id, endpoints_in(response)):
        return
    if not isinstance(role, Follower):
        return
    if partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and current.leader_id < 0:
        snapshots.note_resigned(replica, role)
    elif not partition.error_code:
        snapshots.note_leader_heard(replica, role)
        _take(replica, role, partition)


def _take(replica: Replica, follower: Follower, partition: PartitionData) -> None:
    diverging, snapshot = partition.diverging_epoch, partition.snapshot_id
    if diverging.epoch >= 0:
        if truncate(replica, end_of(diverging.end_offset, diverging.epoch)):
            follower.fetch_at_ms = replica.now_ms
        return
    if snapshot.epoch >= 0:
        wanted = end_of(snapshot.end_offset, snapshot.epoch)
        # Only a snapshot that is ahead of everything committed here may replace the log.
        if wanted.offset >= max(replica.high_watermark, replica.log.start.offset + 1):
            follower.download = Download(snapshot_id=wanted)
            follower.fetch_at_ms = replica.now_ms
        return
    try:
        append_fetched(replica, partition.records or b"")
    except DecodeError:
        return  # torn or corrupted in transit: fetch it again after the backoff
    committed = Offset(partition.high_watermark)
    replica.advance_high_watermark(min(committed, replica.log.end_offset))
    # A leader knows earlier leaders' commits once it has committed in its own epoch.
    if committed <= replica.log.end_offset and replica.log.epoch_before(committed) == replica.epoch:
        replica.has_caught_up = True
    follower.fetch_at_ms = replica.now_ms


def append_fetched(replica: Replica, records: Buffer) -> None:
    """Append the whole batches of an answer; raises DecodeError before anything is appended."""
    next_offset, last_epoch = replica.log.end_offset, replica.log.end.epoch
    headers = []
    size = 0
    for position, _ in iterate_batches(records):
        header = check_batch(records, position)
        epoch = header.partition_leader_epoch
        if header.base_offset != next_offset or not last_epoch <= epoch <= replica.epoch:
            raise DecodeError(
                f"batch at {header.base_offset} of epoch {epoch} after {next_offset}, {last_epoch}"
            )
        next_offset, last_epoch = header.next_offset, epoch
        size = position + header.size_bytes
        headers.append(header)
    if not headers:
        return
    whole = records if size == len(records) else memoryview(records)[:size]
    base_offset = replica.log.end_offset
    found = list(find_control(whole, replica.history.latest))
    for header in headers:
        replica.log.append(header.partition_leader_epoch, header.next_offset)
    replica.emit(AppendToLog(base_offset, whole))
    replica.emit(FlushLog(replica.log.request_flush()))
    replica.note_control(found)


def truncate(replica: Replica, diverging: OffsetAndEpoch) -> bool:
    """Truncate what the leader does not have, by epochs and never by high watermark (KIP-101).

    Returns whether anything was cut.
    """
    if isinstance(replica.role, Leader):
        raise InvariantError("LeaderCompleteness: a leader truncates nothing")
    target = replica.log.truncation_point(diverging)
    if target < replica.high_watermark:
        raise InvariantError(
            f"MonotonicHighWatermark: {replica.high_watermark} is committed, cut at {target}"
        )
    if target >= replica.log.end_offset:
        return False
    before = replica.voters
    replica.log.truncate(target)
    replica.history.truncate(target)
    replica.emit(TruncateLog(target))
    replica.tell_voters(before)
    return True
