"""The roles of a replica, what each remembers, and which may follow which.

    UNATTACHED   knows no leader of its epoch; may have voted
    PROSPECTIVE  asks whether it would be elected, without a new epoch (pre-vote, KIP-996)
    CANDIDATE    asks to be elected in a new epoch, for which it voted for itself
    FOLLOWER     fetches from the epoch's leader
    LEADER       takes appends and answers fetches
    RESIGNED     led its epoch, and may not vote or lead in it again

As in Kafka, an observer is not a role: it is an unattached or following replica that is not among
the voters in its log, and a record makes it a voter.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, unique
from types import MappingProxyType
from typing import Final, TypeAlias

from headrace_broker.protocol.messages.add_raft_voter import AddRaftVoterResponse
from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.protocol.messages.remove_raft_voter import RemoveRaftVoterResponse
from headrace_broker.protocol.messages.update_raft_voter import UpdateRaftVoterResponse
from headrace_broker.protocol.types import NO_OFFSET, LeaderEpoch, NodeId, Offset

from .types import Endpoint, OffsetAndEpoch, ReplicaKey


@unique
class Role(StrEnum):
    """A replica's role in its epoch."""

    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    FOLLOWER = "follower"
    LEADER = "leader"
    RESIGNED = "resigned"


# The one table of legal moves; Replica.enter raises on any other. A move to the present role is
# listed if it starts that role again.
LEGAL_MOVES: Final[Mapping[Role, frozenset[Role]]] = MappingProxyType(
    {
        # a higher epoch or a vote; the election timeout; the leader made itself known
        Role.UNATTACHED: frozenset({Role.UNATTACHED, Role.PROSPECTIVE, Role.FOLLOWER}),
        # a higher epoch or a vote; the timeout; a majority would vote; a leader exists
        Role.PROSPECTIVE: frozenset(
            {Role.UNATTACHED, Role.PROSPECTIVE, Role.CANDIDATE, Role.FOLLOWER}
        ),
        # a higher epoch; the election is lost; won; won by another
        Role.CANDIDATE: frozenset({Role.UNATTACHED, Role.PROSPECTIVE, Role.LEADER, Role.FOLLOWER}),
        # a higher epoch or the leader resigned; the fetch timeout; a leader of a higher epoch
        Role.FOLLOWER: frozenset({Role.UNATTACHED, Role.PROSPECTIVE, Role.FOLLOWER}),
        # a higher epoch; a leader of a higher epoch; a stop, or no majority is heard from
        Role.LEADER: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.RESIGNED}),
        # a higher epoch, or time passed; a leader of a higher epoch
        Role.RESIGNED: frozenset({Role.UNATTACHED, Role.FOLLOWER}),
    }
)


@dataclass(slots=True, kw_only=True)
class Unattached:
    """Waits for a leader to announce itself, or for the election timeout."""

    election_deadline_ms: int
    # Observers ask known servers in turn.
    find_leader_at_ms: int
    is_asking: bool = False

    role = Role.UNATTACHED


@dataclass(slots=True, kw_only=True)
class Ballot:
    """A round of pre-votes or of votes, counted by voter."""

    role: Role
    deadline_ms: int
    granted: set[NodeId] = field(default_factory=set)
    rejected: set[NodeId] = field(default_factory=set)
    # Voters that did not answer the latest request.
    silent: set[NodeId] = field(default_factory=set)
    # When to ask a voter next; absent while an answer is pending or was final.
    ask_at_ms: dict[NodeId, int] = field(default_factory=dict)
    # The election is lost: the deadline is that of the backoff.
    is_lost: bool = False


@dataclass(slots=True, kw_only=True)
class Download:
    """A leader's snapshot that is being fetched."""

    snapshot_id: OffsetAndEpoch
    position: int = 0


@dataclass(slots=True, kw_only=True)
class Follower:
    """Fetches from the leader, or its snapshot."""

    leader_id: NodeId
    endpoint: Endpoint | None
    # After this time without a successful fetch: stand for election, or look for another leader.
    fetch_deadline_ms: int
    fetch_at_ms: int
    is_fetching: bool = False
    # When the leader last answered successfully; None: not yet in this epoch.
    heard_ms: int | None = None
    download: Download | None = None
    update_voter_at_ms: int = 0
    is_updating_voter: bool = False

    role = Role.FOLLOWER


@dataclass(slots=True, kw_only=True)
class Progress:
    """Up to where a replica has reported to its leader that it has fetched durably."""

    end_offset: Offset = NO_OFFSET
    last_fetch_ms: int | None = None
    last_caught_up_ms: int | None = None
    # The leader's end at the last fetch: a replica that reaches it was caught up then.
    leader_end_offset: Offset = NO_OFFSET


@dataclass(slots=True, kw_only=True)
class DelayedFetch:
    """A fetch whose answer waits until there is something to send."""

    ticket: int
    request: FetchRequest
    api_version: int
    deadline_ms: int


@dataclass(slots=True, kw_only=True)
class VoterChange:
    """The one pending change of the voters; `ticket` is None if no caller waits."""

    offset: Offset
    deadline_ms: int
    ticket: int | None
    response: AddRaftVoterResponse | RemoveRaftVoterResponse | UpdateRaftVoterResponse


@dataclass(slots=True, kw_only=True)
class Leader:
    """Leads; counts only what it received in its own epoch."""

    epoch: LeaderEpoch
    epoch_start_offset: Offset
    progress: dict[ReplicaKey, Progress] = field(default_factory=dict)
    # When a voter was last heard from; without processes that died.
    heard_ms: dict[NodeId, int] = field(default_factory=dict)
    # When to tell a voter next that the epoch has begun.
    begin_at_ms: dict[NodeId, int] = field(default_factory=dict)
    delayed: dict[ReplicaKey | int, DelayedFetch] = field(default_factory=dict)
    change: VoterChange | None = None

    role = Role.LEADER


@dataclass(slots=True, kw_only=True)
class Resigned:
    """Tells the others that its epoch is over, those with the longest logs first."""

    deadline_ms: int
    successors: tuple[ReplicaKey, ...]
    # The voters to tell, and when.
    tell_at_ms: dict[NodeId, int]

    role = Role.RESIGNED


RoleState: TypeAlias = Unattached | Ballot | Follower | Leader | Resigned
