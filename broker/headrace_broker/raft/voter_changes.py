"""Changes of the voters, one at a time (KIP-853; Raft thesis, chapter 4).

A change is in force from its append, on the leader and on every replica that appends it. The next
change waits for its commit, and the first one of an epoch for a commit in that epoch (the
correction of Raft's single-server changes), so that any two majorities share a voter.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.add_raft_voter import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
)
from headrace_broker.protocol.messages.add_raft_voter import Listener as AddedListener
from headrace_broker.protocol.messages.remove_raft_voter import (
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)
from headrace_broker.protocol.messages.update_raft_voter import (
    CurrentLeader,
    KRaftVersionFeature,
    Listener,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from headrace_broker.protocol.types import NodeId

from .control import voters_record
from .events import ReceivedRequest
from .leading import append_control, leader_epoch_error
from .messages import check_cluster
from .replica import Replica
from .roles import Follower, Leader, VoterChange
from .types import (
    KRAFT_VERSION_DYNAMIC,
    UNKNOWN_DIRECTORY,
    Destination,
    Endpoint,
    ReplicaKey,
    Voter,
    VoterSet,
)

VoterRequest: TypeAlias = AddRaftVoterRequest | RemoveRaftVoterRequest | UpdateRaftVoterRequest

# How long Remove and Update, which have no timeout, wait for their commit.
_CHANGE_TIMEOUT_MS = 10_000


def handle_add(replica: Replica, event: ReceivedRequest, request: AddRaftVoterRequest) -> None:
    """Make a caught-up observer a voter."""
    key = ReplicaKey(NodeId(request.voter_id), request.voter_directory_id)
    leader, error, message = _may_change(replica, request.cluster_id)
    if not error and leader is not None:
        error, message = _check_addition(replica, leader, key, request.listeners)
    if error or leader is None:
        replica.reply(event.ticket, AddRaftVoterResponse(error_code=error, error_message=message))
        return
    voter = Voter(key=key, endpoints=_endpoints(request.listeners))
    done = AddRaftVoterResponse(error_message=None)
    _change(
        replica,
        leader,
        replica.voters.with_voter(voter),
        ticket=event.ticket if request.ack_when_committed else None,
        response=done,
        timeout_ms=request.timeout_ms,
    )
    if not request.ack_when_committed:
        replica.reply(event.ticket, done)


def _check_addition(
    replica: Replica, leader: Leader, key: ReplicaKey, listeners: Sequence[Any]
) -> tuple[ErrorCode, str | None]:
    if key.node_id < 0 or key.directory_id == UNKNOWN_DIRECTORY or not listeners:
        return ErrorCode.INVALID_REQUEST, "an id, a directory id and a listener are needed"
    if replica.voters.get(key.node_id) is not None:
        return ErrorCode.DUPLICATE_VOTER, f"node {key.node_id} is a voter already"
    progress = leader.progress.get(key)
    # Otherwise the quorum could not commit until it had caught up (Raft thesis, section 4.2.1).
    recent_ms = replica.now_ms - replica.config.fetch_timeout_ms * 2
    if progress is None or (progress.last_caught_up_ms or -1) < max(recent_ms, 0):
        return ErrorCode.REQUEST_TIMED_OUT, f"{key.node_id} has not caught up with the log"
    return ErrorCode.NONE, None


def handle_remove(
    replica: Replica, event: ReceivedRequest, request: RemoveRaftVoterRequest
) -> None:
    """Make a voter an observer; a leader that removes itself resigns after the commit."""
    leader, error, message = _may_change(replica, request.cluster_id)
    voter = replica.voters.get(NodeId(request.voter_id))
    if not error and (voter is None or voter.key.directory_id != request.voter_directory_id):
        error = ErrorCode.VOTER_NOT_FOUND
        message = f"no voter {request.voter_id} with directory {request.voter_directory_id}"
    elif not error and len(replica.voters) == 1:
        error, message = ErrorCode.INVALID_REQUEST, "the last voter cannot be removed"
    if error or leader is None:
        response = RemoveRaftVoterResponse(error_code=error, error_message=message)
        replica.reply(event.ticket, response)
        return
    _change(
        replica,
        leader,
        replica.voters.without(NodeId(request.voter_id)),
        ticket=event.ticket,
        response=RemoveRaftVoterResponse(error_message=None),
    )


def handle_update(
    replica: Replica, event: ReceivedRequest, request: UpdateRaftVoterRequest
) -> None:
    """Record a voter's endpoints, and its directory id if it was unknown."""
    error = leader_epoch_error(replica, request.current_leader_epoch)
    leader = replica.role if isinstance(replica.role, Leader) else None
    if not error:
        leader, error, _ = _may_change(replica, request.cluster_id)
    key = ReplicaKey(NodeId(request.voter_id), request.voter_directory_id)
    supported = request.k_raft_version_feature
    version = replica.history.latest.kraft_version
    if not error and not replica.voters.has(key):
        error = ErrorCode.VOTER_NOT_FOUND
    elif not error and (
        not request.listeners
        or key.directory_id == UNKNOWN_DIRECTORY
        or not supported.min_supported_version <= version <= supported.max_supported_version
    ):
        error = ErrorCode.INVALID_REQUEST
    response = UpdateRaftVoterResponse(error_code=error, current_leader=_current_leader(replica))
    if error or leader is None:
        replica.reply(event.ticket, response)
        return
    voter = Voter(
        key=key,
        endpoints=_endpoints(request.listeners),
        kraft_version_min=supported.min_supported_version,
        kraft_version_max=supported.max_supported_version,
    )
    if replica.voters.get(key.node_id) == voter:
        replica.reply(event.ticket, response)
    else:
        voters = replica.voters.with_voter(voter)
        _change(replica, leader, voters, ticket=event.ticket, response=response)


def _may_change(
    replica: Replica, cluster_id: str | None
) -> tuple[Leader | None, ErrorCode, str | None]:
    """Return the leader's role, or why the voters cannot change now (SingleVoterChange)."""
    error = check_cluster(replica, cluster_id)
    leader = replica.role
    if error:
        return None, error, "another cluster's id"
    if not isinstance(leader, Leader):
        return None, ErrorCode.NOT_LEADER_OR_FOLLOWER, "this replica does not lead the quorum"
    latest = replica.history.latest
    if latest.kraft_version < KRAFT_VERSION_DYNAMIC:
        message = "kraft.version 0 keeps the voters that the configuration lists"
        return None, ErrorCode.UNSUPPORTED_VERSION, message
    if is_settled(replica, leader):
        return leader, ErrorCode.NONE, None
    return None, ErrorCode.REQUEST_TIMED_OUT, "an earlier change is not committed yet: try again"


def is_settled(replica: Replica, leader: Leader) -> bool:
    """Whether this epoch has committed a record and no change of the voters is pending."""
    return (
        replica.high_watermark > leader.epoch_start_offset
        and replica.history.latest.offset < replica.high_watermark
        and leader.change is None
    )


def _change(
    replica: Replica,
    leader: Leader,
    voters: VoterSet,
    *,
    ticket: int | None,
    response: AddRaftVoterResponse | RemoveRaftVoterResponse | UpdateRaftVoterResponse,
    timeout_ms: int = _CHANGE_TIMEOUT_MS,
) -> None:
    before = replica.voters.ids
    offset = append_control(replica, [voters_record(voters)])
    for node_id in replica.other_voters:
        if node_id not in before:
            # A new voter counts as heard from now, even if it was a voter long ago.
            leader.heard_ms[node_id] = replica.now_ms
    leader.change = VoterChange(
        offset=offset,
        deadline_ms=replica.now_ms + max(timeout_ms, 0),
        ticket=ticket,
        response=response,
    )


def settle(replica: Replica, leader: Leader) -> None:
    """Answer a change that is committed or has timed out."""
    change = leader.change
    if change is None:
        return
    if replica.high_watermark > change.offset:
        leader.change = None
        if change.ticket is not None:
            replica.reply(change.ticket, change.response)
    elif change.deadline_ms <= replica.now_ms and change.ticket is not None:
        message = "not committed in time, and may be later: look who votes before you try again"
        _refuse(replica, change, ErrorCode.REQUEST_TIMED_OUT, message)
        change.ticket = None


def refuse_change(replica: Replica, leader: Leader) -> None:
    """Tell the caller of a pending change that its outcome is unknown: the leader has changed."""
    if leader.change is not None and leader.change.ticket is not None:
        message = "the leader changed before the commit: look who votes before you try again"
        _refuse(replica, leader.change, ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
    leader.change = None


def _refuse(replica: Replica, change: VoterChange, error: ErrorCode, message: str) -> None:
    answer = type(change.response)(error_code=error)
    if not isinstance(answer, UpdateRaftVoterResponse):  # which has no field for it
        answer.error_message = message
    if change.ticket is not None:
        replica.reply(change.ticket, answer)


def describe_oneself(replica: Replica) -> None:
    """Record this replica's own endpoints and directory in the voter set, if they differ."""
    own, role = replica.voters.get(replica.key.node_id), replica.role
    is_dynamic = replica.history.latest.kraft_version >= KRAFT_VERSION_DYNAMIC
    if own is None or not is_dynamic or not replica.is_voter or not replica.config.endpoints:
        return
    wanted = Voter(key=replica.key, endpoints=replica.config.endpoints)
    if own == wanted or replica.key.directory_id == UNKNOWN_DIRECTORY:
        return
    if isinstance(role, Leader) and is_settled(replica, role):
        response = UpdateRaftVoterResponse()
        _change(replica, role, replica.voters.with_voter(wanted), ticket=None, response=response)
    elif isinstance(role, Follower):
        _ask_for_update(replica, role, wanted)


def _ask_for_update(replica: Replica, follower: Follower, wanted: Voter) -> None:
    endpoint = follower.endpoint
    is_due = follower.heard_ms is not None and follower.update_voter_at_ms <= replica.now_ms
    if not is_due or follower.is_updating_voter or endpoint is None:
        return
    request = UpdateRaftVoterRequest(
        cluster_id=replica.config.cluster_id,
        current_leader_epoch=replica.epoch,
        voter_id=replica.key.node_id,
        voter_directory_id=replica.key.directory_id,
        listeners=[Listener(name=at.name, host=at.host, port=at.port) for at in wanted.endpoints],
        k_raft_version_feature=KRaftVersionFeature(
            min_supported_version=wanted.kraft_version_min,
            max_supported_version=wanted.kraft_version_max,
        ),
    )
    _ask_leader(replica, follower, endpoint, request)


def join_voters(replica: Replica) -> None:
    """Ask to become a voter, if this controller is meant to and only observes (Kafka's auto join).

    The voter entry of another disk of this node is removed first: the quorum has lost what was on
    that disk, and a voter that never returns only makes majorities harder. The leader checks
    whether this replica has caught up.
    """
    role, own = replica.role, replica.voters.get(replica.key.node_id)
    if (
        not replica.config.auto_join
        or not isinstance(role, Follower)
        or replica.is_voter
        or replica.history.latest.kraft_version < KRAFT_VERSION_DYNAMIC
        or not replica.config.endpoints
        or replica.key.directory_id == UNKNOWN_DIRECTORY
    ):
        return
    endpoint = role.endpoint
    is_due = role.heard_ms is not None and role.update_voter_at_ms <= replica.now_ms
    if not is_due or role.is_updating_voter or endpoint is None:
        return
    request: AddRaftVoterRequest | RemoveRaftVoterRequest
    if own is not None:
        request = RemoveRaftVoterRequest(
            cluster_id=replica.config.cluster_id,
            voter_id=own.key.node_id,
            voter_directory_id=own.key.directory_id,
        )
    else:
        request = AddRaftVoterRequest(
            cluster_id=replica.config.cluster_id,
            timeout_ms=_CHANGE_TIMEOUT_MS,
            voter_id=replica.key.node_id,
            voter_directory_id=replica.key.directory_id,
            listeners=[
                AddedListener(name=at.name, host=at.host, port=at.port)
                for at in replica.config.endpoints
            ],
            # It can vote as soon as it has the record, and must, to commit it (KIP-1186).
            ack_when_committed=False,
        )
    _ask_leader(replica, role, endpoint, request)


def _ask_leader(
    replica: Replica, follower: Follower, endpoint: Endpoint, request: VoterRequest
) -> None:
    follower.is_updating_voter = True
    destination = Destination(follower.leader_id, endpoint.host, endpoint.port)
    replica.send(destination, request, _CHANGE_TIMEOUT_MS)


def handle_change_answer(replica: Replica, response: Any) -> None:
    """Ask again later, unless the change is in the log."""
    role = replica.role
    if isinstance(role, Follower):
        role.is_updating_voter = False
        is_done = response is not None and not response.error_code
        wait = replica.config.fetch_timeout_ms if is_done else replica.config.election_timeout_ms
        # Several voters ask at the same time, and only one change is made at a time.
        role.update_voter_at_ms = replica.now_ms + replica.random_ms(wait)


def _endpoints(listeners: Sequence[Any]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(at.host, at.port, at.name) for at in listeners)


def _current_leader(replica: Replica) -> CurrentLeader:
    leader, endpoint = replica.leader_id, replica.leader_endpoint
    return CurrentLeader(
        leader_id=-1 if leader is None else leader,
        leader_epoch=replica.epoch,
        host=endpoint.host if endpoint else "",
        port=endpoint.port if endpoint else 0,
    )
