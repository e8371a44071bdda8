"""A leader: appends, answers fetches, commits, and steps down when it has no majority.

KIP-595: replication is by fetches. A fetch reports up to where its replica is durable, from which
the leader computes the high watermark.
"""

from collections.abc import Sequence

from headrace_broker.protocol.batch import parse_batch_header, patch_offset_and_epoch
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochRequestPartitionData,
    BeginQuorumEpochRequestTopicData,
    BeginQuorumEpochResponse,
    LeaderEndpoint,
)
from headrace_broker.protocol.types import LeaderEpoch, NodeId, Offset

from .control import (
    NOT_IN_LOG,
    ControlRecord,
    build_control_batch,
    find_control,
    kraft_version_record,
    leader_change,
    voters_record,
)
from .effects import AppendRefused, AppendToLog, BecameLeader, FlushLog
from .events import Append
from .messages import endpoints_in, sole_partition
from .replica import InvariantError, Replica
from .roles import Ballot, Leader, Progress, Resigned, Role
from .types import (
    KRAFT_VERSION_DYNAMIC,
    METADATA_TOPIC,
    OffsetAndEpoch,
    QuorumState,
    ReplicaKey,
    Voter,
)

# Kafka's LeaderState.CHECK_QUORUM_TIMEOUT_FACTOR: followers give up first.
_CHECK_QUORUM_PERCENT = 150


def become_leader(replica: Replica, ballot: Ballot) -> None:
    """Begin the won epoch with its LeaderChangeMessage (KIP-595)."""
    if ballot.role is not Role.CANDIDATE or replica.installing is not None:
        raise InvariantError(f"LeaderCompleteness: {ballot.role} cannot lead")
    state = replica.durable
    replica.persist(
        QuorumState(epoch=state.epoch, leader_id=replica.key.node_id, voted=state.voted)
    )
    now = replica.now_ms
    start = replica.log.end_offset
    leader = Leader(
        epoch=state.epoch,
        epoch_start_offset=start,
        heard_ms=dict.fromkeys(replica.other_voters, now),
        begin_at_ms=dict.fromkeys(replica.other_voters, now),
    )
    replica.elections_lost = 0
    replica.enter(leader)
    replica.emit(BecameLeader(state.epoch, start))
    records = [leader_change(replica.key.node_id, replica.voters, ballot.granted)]
    latest = replica.history.latest
    if latest.offset == NOT_IN_LOG and latest.kraft_version >= KRAFT_VERSION_DYNAMIC:
        # The first leader writes the voters to the log; from then on the log has them (KIP-853).
        voters = latest.voters
        if replica.config.endpoints:
            voters = voters.with_voter(Voter(key=replica.key, endpoints=replica.config.endpoints))
        records += [kraft_version_record(latest.kraft_version), voters_record(voters)]
    append_control(replica, records)


def append_control(replica: Replica, records: Sequence[ControlRecord]) -> Offset:
    """Append control records as one batch; return the last one's offset."""
    timestamp = replica.now_ms + replica.unix_time_offset_ms
    append_batches(replica, [build_control_batch(records, timestamp_ms=timestamp)])
    return Offset(replica.log.end_offset - 1)


def append_batches(replica: Replica, batches: Sequence[bytearray]) -> None:
    """Set the batches' offsets and epoch, and append them; request one fsync."""
    base_offset = replica.log.end_offset
    for batch in batches:
        patch_offset_and_epoch(batch, replica.log.end_offset, replica.epoch)
        next_offset = parse_batch_header(batch).next_offset
        replica.log.append(replica.epoch, next_offset)
    records = batches[0] if len(batches) == 1 else b"".join(batches)
    replica.emit(AppendToLog(base_offset, records))
    replica.emit(FlushLog(replica.log.request_flush()))
    replica.note_control(list(find_control(records, replica.history.latest)))


def handle_append(replica: Replica, event: Append) -> None:
    """Append the active controller's decisions, if they are of this epoch."""
    role = replica.role
    if not isinstance(role, Leader) or event.epoch != role.epoch:
        replica.emit(AppendRefused(event.epoch))
    elif event.batches:
        append_batches(replica, event.batches)


def progress_of(leader: Leader, key: ReplicaKey) -> Progress | None:
    """Return a voter's progress; if its directory is unknown, the latest of its id."""
    exact = leader.progress.get(key)
    if exact is not None:
        return exact
    matching = [found for other, found in leader.progress.items() if key.matches(other)]
    return max(matching, key=lambda found: found.last_fetch_ms or 0, default=None)


def update_high_watermark(replica: Replica, leader: Leader) -> bool:
    """Commit what a majority of the voters has durably (LeaderCompleteness, DurableAck).

    Counting commits only beyond a record of the leader's own epoch, which commits everything before
    it as well (Raft section 5.4.2, figure 8).
    """
    ends = []
    for voter in replica.voters:
        if voter.key.matches(replica.key):
            ends.append(replica.log.flushed_end)
        else:
            progress = progress_of(leader, voter.key)
            ends.append(progress.end_offset if progress else Offset(-1))
    ends.sort(reverse=True)
    candidate = ends[replica.voters.majority - 1]
    if candidate <= leader.epoch_start_offset:
        return False
    replica.has_caught_up = True
    return replica.advance_high_watermark(candidate)


def note_fetch(replica: Replica, leader: Leader, key: ReplicaKey, end: Offset) -> None:
    """Record a replica's progress, from a fetch whose offset and epoch were checked."""
    progress = leader.progress.setdefault(key, Progress())
    leader_end = replica.log.end_offset
    if end >= leader_end:
        progress.last_caught_up_ms = replica.now_ms
    elif end >= progress.leader_end_offset >= 0 and progress.last_fetch_ms is not None:
        progress.last_caught_up_ms = max(progress.last_caught_up_ms or 0, progress.last_fetch_ms)
    progress.end_offset = end
    progress.leader_end_offset = leader_end
    note_heard(replica, leader, key)


def note_heard(replica: Replica, leader: Leader, key: ReplicaKey) -> None:
    """Record that a replica asked for the log or a snapshot: it follows."""
    progress = leader.progress.setdefault(key, Progress())
    progress.last_fetch_ms = replica.now_ms
    replica.gone_until_ms.pop(key.node_id, None)
    if replica.voters.has(key):
        leader.heard_ms[key.node_id] = replica.now_ms
        # A voter whose fetch waits here has no other one to send.
        wait_ms = replica.config.fetch_wait_ms_max + replica.config.fetch_timeout_ms // 2
        leader.begin_at_ms[key.node_id] = replica.now_ms + wait_ms


def check_quorum_deadline_ms(replica: Replica, leader: Leader) -> int | None:
    """Return when the contact to a majority will have timed out; None: none is needed.

    A voter whose process died counts as never heard from.
    """
    needed = replica.voters.majority - (1 if replica.is_voter else 0)
    if needed <= 0:
        return None
    timeout = replica.config.fetch_timeout_ms * _CHECK_QUORUM_PERCENT // 100
    heard = sorted(
        (leader.heard_ms.get(voter, replica.now_ms - timeout) for voter in replica.other_voters),
        reverse=True,
    )
    return heard[needed - 1] + timeout


def resign(replica: Replica, leader: Leader) -> None:
    """Stop leading and tell the voters, those furthest ahead first (EndQuorumEpoch)."""
    ends = []
    for voter in replica.voters:
        progress = progress_of(leader, voter.key)
        if voter.key.node_id != replica.key.node_id:
            ends.append((-(progress.end_offset if progress else -1), voter.key))
    replica.enter(
        Resigned(
            deadline_ms=replica.election_deadline_ms(),
            successors=tuple(key for _, key in sorted(ends)),
            tell_at_ms=dict.fromkeys(replica.other_voters, replica.now_ms),
        )
    )


def announce(replica: Replica, leader: Leader) -> None:
    """Tell voters that do not fetch that the epoch has begun (BeginQuorumEpoch)."""
    for node_id in replica.other_voters:
        if leader.begin_at_ms.setdefault(node_id, replica.now_ms) > replica.now_ms:
            continue
        leader.begin_at_ms[node_id] = replica.now_ms + replica.config.fetch_timeout_ms // 2
        destination, voter = replica.destination_of(node_id), replica.voters.get(node_id)
        if destination is None or voter is None:
            continue
        partition = BeginQuorumEpochRequestPartitionData(
            voter_directory_id=voter.key.directory_id,
            leader_id=replica.key.node_id,
            leader_epoch=leader.epoch,
        )
        topic = BeginQuorumEpochRequestTopicData(topic_name=METADATA_TOPIC, partitions=[partition])
        endpoint = replica.leader_endpoint
        listeners = [
            LeaderEndpoint(name=at.name, host=at.host, port=at.port) for at in [endpoint] if at
        ]
        replica.send(
            destination,
            BeginQuorumEpochRequest(
                cluster_id=replica.config.cluster_id,
                voter_id=node_id,
                topics=[topic],
                leader_endpoints=listeners,
            ),
        )


def handle_begin_answer(
    replica: Replica, voter: NodeId, response: BeginQuorumEpochResponse | None
) -> None:
    """Handle the answer: learn of a later epoch, or retry soon after a failure."""
    leader = replica.role
    if not isinstance(leader, Leader):
        return
    partition = sole_partition(response.topics) if response else None
    if response is None or partition is None:
        # Not at once, so as not to keep connecting to a voter that is down.
        leader.begin_at_ms[voter] = replica.now_ms + replica.config.fetch_timeout_ms // 10
    elif partition.leader_epoch > leader.epoch:
        replica.learn(partition.leader_epoch, partition.leader_id, endpoints_in(response))


def leader_epoch_error(replica: Replica, epoch: int) -> ErrorCode:
    """Refuse a fetch that is not for this leader in this epoch (KIP-320)."""
    if 0 <= epoch < replica.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > replica.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    if not isinstance(replica.role, Leader):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.NONE


def end_of(offset: int, epoch: int) -> OffsetAndEpoch:
    """Return a fetcher's end as the log compares it."""
    return OffsetAndEpoch(Offset(offset), LeaderEpoch(epoch))
