"""`Replica`: the state of one replica, its invariants, and the moves between roles.

The other modules of this package decide; this one has their shared state. State changes in place,
effects are collected in order. The invariants have the names of Kafka's own Raft simulation; a
violation raises `InvariantError`, which must end the process:

    MonotonicEpoch          the epoch never goes back, and is durable before it is said
    SingleLeader            an epoch has one leader: no other is taken over once one is known,
                            and an epoch in which this replica led or voted for itself is
                            never led again after it stepped down
    SingleVote              a replica votes once in an epoch; the vote is durable before it is said
    MonotonicHighWatermark  the high watermark never goes back; no committed record is truncated
    LeaderCompleteness      a leader's log holds all that is committed: it never truncates its log,
                            never loads a snapshot, and commits by counting only once a record of
                            its own epoch is on a majority (Raft section 5.4.2)
    DurableAck              a fetch tells an offset, and a leader counts itself, only after fsync
    SingleVoterChange       the next change of voters waits for the last one's commit
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace_broker.protocol.schema import Message
from headrace_broker.protocol.types import LeaderEpoch, NodeId, Offset

from .control import NOT_IN_LOG, VoterHistory
from .effects import (
    Effect,
    HighWatermarkAdvanced,
    LeaderChanged,
    LostLeadership,
    PersistQuorumState,
    Reply,
    Send,
    VotersChanged,
)
from .log_index import LogIndex
from .roles import LEGAL_MOVES, Follower, Leader, Role, RoleState, Unattached
from .types import (
    Destination,
    Endpoint,
    LogState,
    OffsetAndEpoch,
    QuorumState,
    RaftConfig,
    RandomSource,
    ReplicaKey,
    VotersAt,
    VoterSet,
)


class InvariantError(Exception):
    """The replica met a state that Raft rules out: continuing could lose committed records."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request that was sent and is not answered yet."""

    node_id: NodeId
    request: Message


class Replica:
    """One replica's state; see the module."""

    unix_time_offset_ms = 0

    def __init__(
        self,
        config: RaftConfig,
        rng: RandomSource,
        *,
        state: QuorumState,
        log: LogState,
        control: Sequence[VotersAt],
    ) -> None:
        self.config = config
        self.rng = rng
        self.log = LogIndex(log)
        configured = VotersAt(
            offset=NOT_IN_LOG, voters=config.voters, kraft_version=config.kraft_version
        )
        self.history = VoterHistory(configured, control)
        # A log that is ahead of its quorum-state was written by a leader of its last epoch.
        if state.epoch < self.log.end.epoch:
            state = QuorumState(epoch=self.log.end.epoch)
        self.durable = state
        self.high_watermark = self.log.start.offset
        self.has_caught_up = False
        """Whether this process has at some moment known everything that was committed by then."""
        self.now_ms = 0
        self.role: RoleState = Unattached(election_deadline_ms=0, find_leader_at_ms=0)
        self.stands = True
        """Whether it may stand for election; a graceful stop ends that."""
        self.installing: OffsetAndEpoch | None = None
        """The snapshot that the driver is installing right now in place of the log."""
        self.elections_lost = 0
        self.gone_until_ms: dict[NodeId, int] = {}
        """Peers whose process died or that resigned, and until when nobody's word counts that one
        of them leads."""
        self.in_flight: dict[int, InFlight] = {}
        self.effects: list[Effect] = []
        self._last_correlation_id = 0
        self._announced: tuple[LeaderEpoch, NodeId | None, Endpoint | None] | None = None
        # What to settle when a role ends: the leader's waiting callers.
        self.on_leadership_lost: Callable[[Replica, Leader], None] = lambda _replica, _leader: None

    # ---- who is who

    @property
    def key(self) -> ReplicaKey:
        """This replica."""
        return self.config.key

    @property
    def epoch(self) -> LeaderEpoch:
        """The quorum's latest known epoch."""
        return self.durable.epoch

    @property
    def voters(self) -> VoterSet:
        """The voters in force: the log's latest, committed or not."""
        return self.history.latest.voters

    @property
    def is_voter(self) -> bool:
        """Whether this replica has a vote by its own log."""
        return self.voters.has(self.key)

    @property
    def may_vote(self) -> bool:
        """Whether it is a voter, or its removal may not be committed.

        Until then the other voters may need it to elect a leader (Raft thesis, section 4.2.2).
        """
        return any(said.voters.has(self.key) for said in self.history.since(self.high_watermark))

    @property
    def other_voters(self) -> tuple[NodeId, ...]:
        """Ids of the other voters."""
        return tuple(voter for voter in self.voters.ids if voter != self.key.node_id)

    @property
    def leader_id(self) -> NodeId | None:
        """The epoch's leader, if known and not known to have left."""
        if isinstance(self.role, Leader):
            return self.key.node_id
        return self.role.leader_id if isinstance(self.role, Follower) else None

    @property
    def leader_endpoint(self) -> Endpoint | None:
        """The address of the epoch's leader."""
        if isinstance(self.role, Follower):
            return self.role.endpoint
        if isinstance(self.role, Leader):
            return next(iter(self.config.endpoints), None) or self.endpoint_of(self.key.node_id)
        return None

    def endpoint_of(self, node_id: NodeId) -> Endpoint | None:
        """Return a voter's endpoint."""
        voter = self.voters.get(node_id)
        return next(iter(voter.endpoints), None) if voter else None

    def destination_of(self, node_id: NodeId) -> Destination | None:
        """Return the destination of requests to a voter, or None if its endpoint is unknown."""
        endpoint = self.endpoint_of(node_id)
        return Destination(node_id, endpoint.host, endpoint.port) if endpoint else None

    # ---- random numbers and time

    def random_ms(self, bound_ms: int) -> int:
        """Return a random time below a bound."""
        return int(self.rng.random() * bound_ms)

    def election_deadline_ms(self) -> int:
        """Return when an election that begins now times out (Raft section 5.2: random)."""
        timeout = self.config.election_timeout_ms
        return self.now_ms + timeout + self.random_ms(timeout)

    def note_gone(self, node_id: NodeId) -> None:
        """Remember that a peer no longer leads, because its process died or it resigned."""
        self.gone_until_ms[node_id] = self.now_ms + self.config.fetch_timeout_ms

    def is_gone(self, node_id: NodeId) -> bool:
        """Whether a peer died or resigned recently and has not announced itself since."""
        return self.gone_until_ms.get(node_id, -1) > self.now_ms

    # ---- effects

    def emit(self, effect: Effect) -> None:
        """Add an effect to this step's."""
        self.effects.append(effect)

    def reply(self, ticket: int, response: Message) -> None:
        """Answer a request."""
        self.emit(Reply(ticket, response))

    def send(self, destination: Destination, request: Message, wait_ms: int = 0) -> None:
        """Send a request; its answer is matched with `in_flight` as long as the role lasts."""
        self._last_correlation_id += 1
        self.in_flight[self._last_correlation_id] = InFlight(destination.node_id, request)
        timeout_ms = self.config.request_timeout_ms + wait_ms
        self.emit(Send(self._last_correlation_id, destination, request, timeout_ms))

    def persist(self, state: QuorumState) -> None:
        """Make epoch, leader and vote durable before any later effect (MonotonicEpoch)."""
        known = self.durable
        if state.epoch < known.epoch:
            raise InvariantError(f"MonotonicEpoch: from {known.epoch} to {state.epoch}")
        if state.epoch == known.epoch and known.voted not in (None, state.voted):
            raise InvariantError(f"SingleVote: {known.voted} then {state.voted}")
        if state != known:
            self.durable = state
            self.emit(PersistQuorumState(state))

    # ---- moves

    def enter(self, role: RoleState) -> None:
        """Take a role, if the table allows it; requests of the previous role are dropped."""
        left = self.role
        if role.role not in LEGAL_MOVES[left.role]:
            raise InvariantError(f"{left.role} may not become {role.role}")
        self.role = role
        self.in_flight.clear()
        if isinstance(left, Leader):
            if role.role is not Role.RESIGNED and left.epoch == self.epoch:
                raise InvariantError(f"SingleLeader: stepped down in epoch {left.epoch}")
            self.emit(LostLeadership(left.epoch))
            self.on_leadership_lost(self, left)
        self.tell_leader()

    def tell_leader(self) -> None:
        """Report the leader, if it has changed."""
        known = (self.epoch, self.leader_id, self.leader_endpoint)
        if known != self._announced:
            self._announced = known
            self.emit(LeaderChanged(*known))

    def become_unattached(
        self,
        epoch: LeaderEpoch,
        *,
        vote: ReplicaKey | None = None,
        election_deadline_ms: int | None = None,
    ) -> None:
        """Drop the leader; an epoch's vote is kept, and a new one is durable before it is sent."""
        voted = self.durable.voted if epoch == self.epoch else None
        leader = self.durable.leader_id if epoch == self.epoch else None
        self.persist(QuorumState(epoch=epoch, leader_id=leader, voted=voted or vote))
        if election_deadline_ms is None:
            election_deadline_ms = self.election_deadline_ms()
        self.enter(
            Unattached(election_deadline_ms=election_deadline_ms, find_leader_at_ms=self.now_ms)
        )

    def become_follower(
        self, epoch: LeaderEpoch, leader_id: NodeId, endpoint: Endpoint | None
    ) -> None:
        """Follow an epoch's leader, announced by a peer or by itself (SingleLeader)."""
        known = self.durable.leader_id if epoch == self.epoch else None
        if leader_id == self.key.node_id or known not in (None, leader_id):
            raise InvariantError(f"SingleLeader: {leader_id} in epoch {epoch}, led by {known}")
        voted = self.durable.voted if epoch == self.epoch else None
        self.persist(QuorumState(epoch=epoch, leader_id=leader_id, voted=voted))
        self.elections_lost = 0
        timeout = self.config.fetch_timeout_ms
        self.enter(
            Follower(
                leader_id=leader_id,
                endpoint=endpoint or self.endpoint_of(leader_id),
                fetch_deadline_ms=self.now_ms + timeout + self.random_ms(timeout // 4),
                fetch_at_ms=self.now_ms,
            )
        )

    def learn(
        self, epoch: int, leader_id: int, endpoints: Mapping[NodeId, Endpoint] | None = None
    ) -> bool:
        """Apply epoch and leader in a peer's answer; return whether the role changed.

        A leader that died or resigned is ignored until it announces itself.
        """
        leader = NodeId(leader_id) if leader_id >= 0 else None
        usable = leader is not None and leader != self.key.node_id and not self.is_gone(leader)
        if epoch > self.epoch or (epoch == self.epoch and usable and self.leader_id is None):
            if isinstance(self.role, Leader) and epoch == self.epoch:
                raise InvariantError(f"SingleLeader: {leader} in epoch {epoch}, led by this one")
            if usable and leader is not None and not self._contradicts(LeaderEpoch(epoch), leader):
                endpoint = (endpoints or {}).get(leader)
                self.become_follower(LeaderEpoch(epoch), leader, endpoint)
                return True
            if epoch > self.epoch:
                self.become_unattached(LeaderEpoch(epoch))
                return True
        return False

    def _contradicts(self, epoch: LeaderEpoch, leader: NodeId) -> bool:
        return epoch == self.epoch and self.durable.leader_id not in (None, leader)

    # ---- commits and voters

    def advance_high_watermark(self, offset: Offset) -> bool:
        """Commit the records below an offset; return whether it moved (MonotonicHighWatermark)."""
        if offset <= self.high_watermark:
            return False
        if offset > self.log.end_offset:
            raise InvariantError(f"committed {offset} beyond the log's end {self.log.end_offset}")
        self.high_watermark = offset
        self.emit(HighWatermarkAdvanced(offset))
        return True

    def note_control(self, found: Sequence[VotersAt]) -> None:
        """Make the voters those in the appended records, from now on (Raft thesis, section 4.1)."""
        before = self.voters
        for change in found:
            self.history.add(change)
        self.tell_voters(before)

    def tell_voters(self, before: VoterSet) -> None:
        """Report the voters, if they have changed."""
        if self.voters != before:
            self.emit(VotersChanged(self.voters))
