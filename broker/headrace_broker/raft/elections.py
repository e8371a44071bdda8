"""Elections: pre-votes, votes, and peers' word on leaders (Raft 5.2, 5.4.1, KIP-595, 996)."""

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from headrace_broker.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest
from headrace_broker.protocol.messages.vote import (
    VoteRequest,
    VoteRequestPartitionData,
    VoteRequestTopicData,
    VoteResponse,
)
from headrace_broker.protocol.types import LeaderEpoch, NodeId, Offset

from .events import ReceivedRequest
from .messages import (
    begin_response,
    check_addressee,
    check_cluster,
    end_response,
    endpoints_in,
    sole_partition,
    vote_response,
)
from .replica import Replica
from .roles import Ballot, Follower, Resigned, Role, Unattached
from .types import METADATA_TOPIC, Endpoint, OffsetAndEpoch, QuorumState, ReplicaKey

# The back-off after the first lost election; it doubles with each further one.
_BACKOFF_MS_MIN = 50


def begin_pre_vote(replica: Replica) -> None:
    """Ask the voters whether they would vote for this replica, without a new epoch (KIP-996)."""
    _open_ballot(replica, Role.PROSPECTIVE)


def begin_election(replica: Replica) -> None:
    """Vote for this replica in a new epoch and ask the others; the vote is durable first."""
    epoch = LeaderEpoch(replica.epoch + 1)
    replica.persist(QuorumState(epoch=epoch, voted=replica.key))
    _open_ballot(replica, Role.CANDIDATE)


def _open_ballot(replica: Replica, role: Role) -> None:
    replica.enter(
        Ballot(
            role=role,
            deadline_ms=replica.election_deadline_ms(),
            granted={replica.key.node_id} if replica.is_voter else set(),
            ask_at_ms=dict.fromkeys(replica.other_voters, replica.now_ms),
        )
    )


def has_majority(replica: Replica, ballot: Ballot) -> bool:
    """Whether a majority of the voters granted."""
    return len(ballot.granted.intersection(replica.voters.ids)) >= replica.voters.majority


def ask_voters(replica: Replica, ballot: Ballot) -> None:
    """Send Vote to the voters whose turn it is."""
    due = [node for node, at in ballot.ask_at_ms.items() if at <= replica.now_ms]
    for node_id in due:
        destination = replica.destination_of(node_id)
        voter = replica.voters.get(node_id)
        del ballot.ask_at_ms[node_id]
        if destination is None or voter is None:
            continue
        end = replica.log.end
        partition = VoteRequestPartitionData(
            replica_epoch=replica.epoch,
            replica_id=replica.key.node_id,
            replica_directory_id=replica.key.directory_id,
            voter_directory_id=voter.key.directory_id,
            last_offset_epoch=end.epoch,
            last_offset=end.offset,
            pre_vote=ballot.role is Role.PROSPECTIVE,
        )
        topic = VoteRequestTopicData(topic_name=METADATA_TOPIC, partitions=[partition])
        request = VoteRequest(
            cluster_id=replica.config.cluster_id, voter_id=node_id, topics=[topic]
        )
        replica.send(destination, request)


def handle_vote(replica: Replica, event: ReceivedRequest, request: VoteRequest) -> None:
    """Grant or refuse a vote or a pre-vote; a granted vote is durable before it is sent."""
    partition = sole_partition(request.topics)
    error = check_cluster(replica, request.cluster_id)
    if not error and (partition is None or not _is_sound(partition)):
        error = ErrorCode.INVALID_REQUEST
    if error or partition is None:
        replica.reply(event.ticket, vote_response(replica, event.api_version, error))
        return
    error = check_addressee(replica, request.voter_id, partition.voter_directory_id)
    if not error and partition.replica_epoch < replica.epoch:
        error = ErrorCode.FENCED_LEADER_EPOCH
    granted = False
    if not error:
        candidate = ReplicaKey(NodeId(partition.replica_id), partition.replica_directory_id)
        end = OffsetAndEpoch(
            Offset(partition.last_offset), LeaderEpoch(partition.last_offset_epoch)
        )
        granted = _decide_vote(replica, partition, candidate, end)
    response = vote_response(replica, event.api_version, error, granted=granted)
    replica.reply(event.ticket, response)


def _decide_vote(
    replica: Replica,
    partition: VoteRequestPartitionData,
    candidate: ReplicaKey,
    end: OffsetAndEpoch,
) -> bool:
    epoch = LeaderEpoch(partition.replica_epoch)
    if epoch > replica.epoch:
        # A new epoch and the vote in it are one write.
        is_vote = not partition.pre_vote and is_up_to_date(end, replica.log.end)
        replica.become_unattached(epoch, vote=candidate if is_vote else None)
    granted = may_grant(replica, candidate, end, is_pre_vote=partition.pre_vote)
    if granted and not partition.pre_vote and replica.durable.voted is None:
        replica.become_unattached(epoch, vote=candidate)
    return granted


def _is_sound(partition: VoteRequestPartitionData) -> bool:
    # A candidate's epoch is new, so its log cannot have it yet; a prospective's may.
    epoch_max = partition.replica_epoch - (0 if partition.pre_vote else 1)
    return (
        partition.replica_id >= 0
        and partition.last_offset >= 0
        and 0 <= partition.last_offset_epoch <= epoch_max
    )


def may_grant(
    replica: Replica, candidate: ReplicaKey, end: OffsetAndEpoch, *, is_pre_vote: bool
) -> bool:
    """Whether this replica, already in the candidate's epoch, votes for it (SingleVote)."""
    role = replica.role
    if not is_up_to_date(end, replica.log.end):
        # A vote is repeated on request: the first answer may have been lost.
        return not is_pre_vote and replica.durable.voted == candidate
    if is_pre_vote:
        return role.role is not Role.LEADER and not _heard_from_leader(replica)
    if role.role in (Role.LEADER, Role.FOLLOWER, Role.RESIGNED, Role.CANDIDATE):
        return False
    if replica.durable.voted is not None:
        return replica.durable.voted == candidate
    return replica.durable.leader_id is None


def is_up_to_date(candidate: OffsetAndEpoch, own: OffsetAndEpoch) -> bool:
    """Whether a candidate's log is at least as complete: last epoch, then length (Raft 5.4.1)."""
    return (candidate.epoch, candidate.offset) >= (own.epoch, own.offset)


def _heard_from_leader(replica: Replica) -> bool:
    """Whether a follower's leader answered recently: then it refuses pre-votes (KIP-996)."""
    role = replica.role
    if not isinstance(role, Follower) or role.heard_ms is None or replica.is_gone(role.leader_id):
        return False
    return replica.now_ms - role.heard_ms < replica.config.fetch_timeout_ms


def handle_vote_answer(replica: Replica, voter: NodeId, response: VoteResponse | None) -> None:
    """Count a vote; None: the request failed, so ask again."""
    ballot = replica.role
    if not isinstance(ballot, Ballot):
        return
    retry_ms = replica.now_ms + replica.config.retry_backoff_ms
    partition = sole_partition(response.topics) if response else None
    if response is None or response.error_code or partition is None:
        ballot.ask_at_ms[voter] = retry_ms
        ballot.silent.add(voter)
        _give_up_if_lost(replica, ballot)
        return
    ballot.silent.discard(voter)
    # A replica that grants a pre-vote may still follow a leader that no longer answers.
    is_news = partition.leader_epoch > replica.epoch or not partition.vote_granted
    endpoints = endpoints_in(response)
    if is_news and replica.learn(partition.leader_epoch, partition.leader_id, endpoints):
        return
    if partition.error_code:
        ballot.ask_at_ms[voter] = retry_ms
    elif partition.vote_granted:
        ballot.granted.add(voter)
        ballot.rejected.discard(voter)
    elif ballot.role is Role.PROSPECTIVE:
        # The voter may not have noticed yet that the leader died.
        ballot.ask_at_ms[voter] = retry_ms + replica.random_ms(replica.config.retry_backoff_ms)
    else:
        ballot.rejected.add(voter)
        _give_up_if_lost(replica, ballot)


def _give_up_if_lost(replica: Replica, ballot: Ballot) -> None:
    # An unreachable voter may return in time; but between two candidates and a dead third one,
    # finding out would take the whole election timeout.
    lost = ballot.rejected | ballot.silent if ballot.rejected else ballot.rejected
    can_win = len(replica.voters) - len(lost) >= replica.voters.majority
    if ballot.is_lost or can_win:
        return
    # A random backoff that doubles: split votes end soon, repeated ones too (Raft section 5.2).
    ballot.is_lost = True
    bound = min(
        _BACKOFF_MS_MIN << min(replica.elections_lost, 10), replica.config.election_backoff_ms_max
    )
    replica.elections_lost += 1
    ballot.deadline_ms = replica.now_ms + replica.random_ms(bound)


def handle_begin_epoch(
    replica: Replica, event: ReceivedRequest, request: BeginQuorumEpochRequest
) -> None:
    """Follow a leader that announces itself."""
    partition = sole_partition(request.topics)
    error = check_cluster(replica, request.cluster_id)
    if partition is None or partition.leader_id in (-1, replica.key.node_id):
        error = error or ErrorCode.INVALID_REQUEST
    elif partition.leader_epoch < replica.epoch:
        error = error or ErrorCode.FENCED_LEADER_EPOCH
    elif not error:
        error = check_addressee(replica, request.voter_id, partition.voter_directory_id)
        known = replica.durable.leader_id if partition.leader_epoch == replica.epoch else None
        if known not in (None, partition.leader_id):
            error = ErrorCode.INVALID_REQUEST  # SingleLeader: the sender is wrong
    if not error and partition is not None:
        leader = NodeId(partition.leader_id)
        replica.gone_until_ms.pop(leader, None)
        listener = next(iter(request.leader_endpoints), None)
        endpoint = Endpoint(listener.host, listener.port, listener.name) if listener else None
        if replica.leader_id != leader or partition.leader_epoch > replica.epoch:
            replica.become_follower(LeaderEpoch(partition.leader_epoch), leader, endpoint)
        elif isinstance(replica.role, Follower) and endpoint is not None:
            replica.role.endpoint = endpoint
            replica.tell_leader()
    replica.reply(event.ticket, begin_response(replica, event.api_version, error))


def handle_end_epoch(
    replica: Replica, event: ReceivedRequest, request: EndQuorumEpochRequest
) -> None:
    """Stand for election without waiting for the fetch timeout, those furthest ahead first."""
    partition = sole_partition(request.topics)
    error = check_cluster(replica, request.cluster_id)
    if partition is None or partition.leader_id in (-1, replica.key.node_id):
        error = error or ErrorCode.INVALID_REQUEST
    elif partition.leader_epoch < replica.epoch:
        error = error or ErrorCode.FENCED_LEADER_EPOCH
    elif not error and not isinstance(replica.role, Ballot | Resigned):
        candidates = [NodeId(info.candidate_id) for info in partition.preferred_candidates]
        candidates = candidates or [NodeId(node) for node in partition.preferred_successors]
        epoch = LeaderEpoch(partition.leader_epoch)
        if epoch > replica.epoch or isinstance(replica.role, Follower | Unattached):
            replica.note_gone(NodeId(partition.leader_id))
            deadline = replica.now_ms + _succession_delay_ms(replica, candidates)
            replica.become_unattached(epoch, election_deadline_ms=deadline)
    replica.reply(event.ticket, end_response(replica, event.api_version, error))


def _succession_delay_ms(replica: Replica, candidates: list[NodeId]) -> int:
    unit = replica.config.fast_election_delay_ms_max
    if replica.key.node_id not in candidates:
        return replica.config.election_timeout_ms + replica.random_ms(unit)
    place = candidates.index(replica.key.node_id)
    return 2 * unit * place + replica.random_ms(unit) if place else 0
