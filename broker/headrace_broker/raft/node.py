"""`RaftNode`: one replica of the metadata quorum as a state machine without IO.

Owns the dispatch of events and each role's reaction to the passing of time. The decisions are in
the other modules of this package, the state and its invariants in `replica`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from headrace_broker.protocol.messages.add_raft_voter import AddRaftVoterRequest
from headrace_broker.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from headrace_broker.protocol.messages.describe_quorum import DescribeQuorumRequest
from headrace_broker.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest
from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.protocol.messages.fetch_snapshot import FetchSnapshotRequest
from headrace_broker.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from headrace_broker.protocol.messages.update_raft_voter import UpdateRaftVoterRequest
from headrace_broker.protocol.messages.vote import VoteRequest
from headrace_broker.protocol.schema import Message
from headrace_broker.protocol.types import LeaderEpoch, NodeId, Offset

from . import elections, fetching, following, leading, resigning, snapshots, voter_changes
from .describing import handle_describe
from .effects import Effect, LoadSnapshot
from .events import (
    Append,
    Event,
    LogFlushed,
    PeerProcessDied,
    ReceivedRequest,
    ReceivedResponse,
    RequestFailed,
    Resign,
    SnapshotCreated,
    SnapshotInstalled,
    SnapshotRejected,
    Tick,
)
from .replica import InvariantError, Replica
from .roles import Ballot, Follower, Leader, Resigned, Role, Unattached
from .types import Endpoint, LogState, QuorumState, RaftConfig, RandomSource, VotersAt

# A deadline that no clock reaches.
_NEVER_MS = 1 << 62

# A role's moves over time settle in fewer rounds than this, or never.
_ROUNDS_MAX = 10


class RaftNode:
    """One replica. Call `start` once, then `step` for every event."""

    def __init__(
        self,
        config: RaftConfig,
        rng: RandomSource,
        *,
        state: QuorumState,
        log: LogState,
        control: Sequence[VotersAt] = (),
    ) -> None:
        """Start from the durable state.

        `control`: the results of `find_control` on the latest snapshot (only the last one, with the
        offset before the snapshot's end) and on the log, ascending.
        """
        self._replica = Replica(config, rng, state=state, log=log, control=control)
        self._replica.on_leadership_lost = _settle_lost_leadership

    def start(self, now_ms: int) -> list[Effect]:
        """Start; a quorum of one elects itself at once."""
        replica = self._replica
        replica.now_ms = now_ms
        if replica.log.latest_snapshot is not None:
            replica.emit(LoadSnapshot(replica.log.latest_snapshot))
            replica.advance_high_watermark(replica.log.latest_snapshot.offset)
        _take_first_role(replica)
        replica.tell_leader()
        return self._finish()

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Process one event; `now_ms` is from a monotonic clock and never goes back."""
        self._replica.now_ms = max(self._replica.now_ms, now_ms)
        _handle(self._replica, event)
        return self._finish()

    def _finish(self) -> list[Effect]:
        replica = self._replica
        for _ in range(_ROUNDS_MAX):
            role = replica.role
            _drive(replica)
            if replica.role is role:
                break
        else:
            raise InvariantError(f"the role does not settle: {replica.role}")
        effects, replica.effects = replica.effects, []
        return effects

    @property
    def unix_time_offset_ms(self) -> int:
        """The difference of now_ms and timestamps in records and answers; set by the driver."""
        return self._replica.unix_time_offset_ms

    @unix_time_offset_ms.setter
    def unix_time_offset_ms(self, value: int) -> None:
        self._replica.unix_time_offset_ms = value

    @property
    def next_deadline_ms(self) -> int:
        """When the next Tick is due."""
        return _next_deadline_ms(self._replica)

    @property
    def role(self) -> Role:
        """This replica's role in its epoch."""
        return self._replica.role.role

    @property
    def epoch(self) -> LeaderEpoch:
        """The quorum's epoch as far as this replica knows."""
        return self._replica.epoch

    @property
    def leader_id(self) -> NodeId | None:
        """The leader of the epoch, if known."""
        return self._replica.leader_id

    @property
    def leader_endpoint(self) -> Endpoint | None:
        """The leader's address, if known."""
        return self._replica.leader_endpoint

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads."""
        return isinstance(self._replica.role, Leader)

    @property
    def is_voter(self) -> bool:
        """Whether this replica votes; an observer does not."""
        return self._replica.is_voter

    @property
    def has_caught_up(self) -> bool:
        """Whether this process has at some moment known everything that was committed by then."""
        return self._replica.has_caught_up

    @property
    def high_watermark(self) -> Offset:
        """The high watermark: records below it are committed."""
        return self._replica.high_watermark

    @property
    def end_offset(self) -> Offset:
        """The offset that the next record gets."""
        return self._replica.log.end_offset

    @property
    def voters(self) -> VotersAt:
        """The voters in force."""
        return self._replica.history.latest

    def voters_at(self, end_offset: Offset) -> VotersAt:
        """Return the control state that a snapshot at an offset must hold."""
        return self._replica.history.at(end_offset)

    def epoch_before(self, end_offset: Offset) -> LeaderEpoch:
        """Return the epoch of the record before an offset: a snapshot's there."""
        return self._replica.log.epoch_before(end_offset)


def _take_first_role(replica: Replica) -> None:
    durable, own = replica.durable, replica.key
    if durable.leader_id == own.node_id:
        # It may not lead its old epoch again: tell the others not to wait (Kafka's ResignedState).
        replica.role = Resigned(
            deadline_ms=replica.now_ms,
            successors=(),
            tell_at_ms=dict.fromkeys(replica.other_voters, replica.now_ms),
        )
        if replica.other_voters:
            replica.role.deadline_ms = replica.election_deadline_ms()
        return
    delay = replica.random_ms(replica.config.fast_election_delay_ms_max)
    is_alone = replica.is_voter and not replica.other_voters
    replica.role = Unattached(
        election_deadline_ms=replica.now_ms + (0 if is_alone else delay),
        find_leader_at_ms=replica.now_ms,
    )


def _settle_lost_leadership(replica: Replica, leader: Leader) -> None:
    fetching.refuse_parked(replica, leader)
    voter_changes.refuse_change(replica, leader)


# ---- events

_REQUESTS: dict[type[Message], Callable[[Replica, ReceivedRequest, Any], None]] = {
    VoteRequest: elections.handle_vote,
    BeginQuorumEpochRequest: elections.handle_begin_epoch,
    EndQuorumEpochRequest: elections.handle_end_epoch,
    FetchRequest: fetching.handle_fetch,
    FetchSnapshotRequest: snapshots.handle_fetch_snapshot,
    AddRaftVoterRequest: voter_changes.handle_add,
    RemoveRaftVoterRequest: voter_changes.handle_remove,
    UpdateRaftVoterRequest: voter_changes.handle_update,
    DescribeQuorumRequest: handle_describe,
}


def _handle(replica: Replica, event: Event) -> None:
    match event:
        case Tick():
            pass
        case ReceivedRequest(request=request):
            _REQUESTS[type(request)](replica, event, request)
        case ReceivedResponse(correlation_id, response):
            _handle_answer(replica, correlation_id, response)
        case RequestFailed(correlation_id):
            _handle_answer(replica, correlation_id, None)
        case Append():
            leading.handle_append(replica, event)
        case LogFlushed(ticket):
            replica.log.flushed(ticket)
        case PeerProcessDied(node_id):
            _handle_peer_died(replica, node_id)
        case SnapshotCreated(snapshot_id):
            snapshots.note_snapshot(replica, snapshot_id)
        case SnapshotInstalled():
            snapshots.handle_installed(replica, event)
        case SnapshotRejected():
            snapshots.handle_rejected(replica, event)
        case Resign():
            _handle_resign(replica)


def _handle_answer(replica: Replica, correlation_id: int, response: Any) -> None:
    """Pass an answer, or None for a failure, to the sender, if the role is still the same."""
    asked = replica.in_flight.pop(correlation_id, None)
    if asked is None:
        return
    match asked.request:
        case VoteRequest():
            elections.handle_vote_answer(replica, asked.node_id, response)
        case BeginQuorumEpochRequest():
            leading.handle_begin_answer(replica, asked.node_id, response)
        case EndQuorumEpochRequest():
            resigning.handle_end_answer(replica, asked.node_id, response)
        case FetchRequest():
            following.handle_fetch_answer(replica, response)
        case FetchSnapshotRequest():
            snapshots.handle_snapshot_answer(replica, response)
        case UpdateRaftVoterRequest() | AddRaftVoterRequest() | RemoveRaftVoterRequest():
            voter_changes.handle_change_answer(replica, response)
        case _:
            raise TypeError(f"{type(asked.request).__name__} was never sent")


def _handle_peer_died(replica: Replica, node_id: NodeId) -> None:
    replica.note_gone(node_id)
    role = replica.role
    if isinstance(role, Leader):
        role.heard_ms.pop(node_id, None)
    elif isinstance(role, Follower) and role.leader_id == node_id:
        delay = replica.random_ms(replica.config.fast_election_delay_ms_max)
        role.fetch_deadline_ms = min(role.fetch_deadline_ms, replica.now_ms + delay)


def _handle_resign(replica: Replica) -> None:
    replica.stands = False
    role = replica.role
    if isinstance(role, Leader):
        leading.resign(replica, role)
    elif isinstance(role, Ballot):
        replica.become_unattached(replica.epoch)


# ---- a role's own actions, after each event and as time passes


def _drive(replica: Replica) -> None:
    match replica.role:
        case Unattached() as role:
            _drive_unattached(replica, role)
        case Ballot() as role:
            _drive_ballot(replica, role)
        case Follower() as role:
            _drive_follower(replica, role)
        case Leader() as role:
            _drive_leader(replica, role)
        case Resigned() as role:
            resigning.tell_resignation(replica, role)
            if role.deadline_ms <= replica.now_ms:
                replica.become_unattached(replica.epoch, election_deadline_ms=replica.now_ms)


def _may_stand(replica: Replica) -> bool:
    return replica.may_vote and replica.stands and replica.installing is None


def _drive_unattached(replica: Replica, role: Unattached) -> None:
    if _may_stand(replica) and role.election_deadline_ms <= replica.now_ms:
        elections.begin_pre_vote(replica)
    elif not _may_stand(replica):
        following.find_leader(replica, role)


def _drive_ballot(replica: Replica, role: Ballot) -> None:
    if elections.has_majority(replica, role):
        if role.role is Role.PROSPECTIVE:
            elections.begin_election(replica)
        else:
            leading.become_leader(replica, role)
    elif role.deadline_ms <= replica.now_ms:
        elections.begin_pre_vote(replica)
    else:
        elections.ask_voters(replica, role)


def _drive_follower(replica: Replica, role: Follower) -> None:
    if role.fetch_deadline_ms <= replica.now_ms and replica.installing is None:
        # Others may not have noticed its death: their information must not lead back to it.
        replica.note_gone(role.leader_id)
        if _may_stand(replica):
            elections.begin_pre_vote(replica)
        else:
            replica.become_unattached(replica.epoch)
        return
    following.fetch(replica, role)
    voter_changes.describe_oneself(replica)
    voter_changes.join_voters(replica)


def _drive_leader(replica: Replica, role: Leader) -> None:
    leading.update_high_watermark(replica, role)
    deadline = leading.check_quorum_deadline_ms(replica, role)
    is_silent = deadline is not None and deadline <= replica.now_ms
    voter_changes.settle(replica, role)
    is_voted_out = not replica.is_voter and voter_changes.is_settled(replica, role)
    if is_silent or is_voted_out:
        leading.resign(replica, role)
        return
    voter_changes.describe_oneself(replica)
    fetching.answer_parked(replica, role)
    fetching.forget_silent_observers(replica, role)
    leading.announce(replica, role)


def _next_deadline_ms(replica: Replica) -> int:
    times: list[int] = []
    match replica.role:
        case Unattached() as role:
            times = [role.election_deadline_ms] if _may_stand(replica) else []
            times += [role.find_leader_at_ms] if not (times or role.is_asking) else []
        case Ballot() as role:
            times = [role.deadline_ms, *role.ask_at_ms.values()]
        case Follower() as role:
            times = [role.fetch_deadline_ms]
            times += [] if role.is_fetching else [role.fetch_at_ms]
            times += [] if role.is_updating_voter else [role.update_voter_at_ms]
        case Leader() as role:
            deadline = leading.check_quorum_deadline_ms(replica, role)
            times = [deadline] if deadline is not None else []
            times += [at for node, at in role.begin_at_ms.items() if node in replica.voters.ids]
            times += [delayed.deadline_ms for delayed in role.delayed.values()]
            times += [role.change.deadline_ms] if role.change and role.change.ticket else []
        case Resigned() as role:
            times = [role.deadline_ms, *role.tell_at_ms.values()]
    # What was due by now was done by the last step, or waits for an event.
    return min((at for at in times if at > replica.now_ms), default=_NEVER_MS)
