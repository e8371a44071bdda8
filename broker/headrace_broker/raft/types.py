"""Values of the quorum: its replicas, its durable state, and its configuration.

Owns values only; all but `RaftConfig`'s defaults are Kafka's terms. Nothing here changes in place.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from headrace_broker.protocol.types import LeaderEpoch, NodeId, Offset

# KRaft's one partition. Its topic id is reserved (KIP-595).
METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_TOPIC_ID: Final = UUID(int=1)
METADATA_PARTITION: Final = 0

# An unknown directory id: it matches any, as in kraft.version 0 (KIP-853).
UNKNOWN_DIRECTORY: Final = UUID(int=0)

# From this kraft.version on the voters are in the log and may change (KIP-853).
KRAFT_VERSION_DYNAMIC: Final = 1


class RandomSource(Protocol):
    """Randomness that the caller passes in, such as `random.Random`."""

    def random(self) -> float:
        """Return a float in [0, 1)."""
        ...


class OffsetAndEpoch(NamedTuple):
    """An end offset and the epoch of the record before it: identifies a log prefix or a snapshot.

    The empty log is (0, 0), as in Kafka's Vote and Fetch requests.
    """

    offset: Offset
    epoch: LeaderEpoch


FIRST_OFFSET: Final = Offset(0)
FIRST_EPOCH: Final = LeaderEpoch(0)
EMPTY_LOG: Final = OffsetAndEpoch(FIRST_OFFSET, FIRST_EPOCH)


class ReplicaKey(NamedTuple):
    """A replica of the quorum: a node with one particular disk (KIP-853)."""

    node_id: NodeId
    directory_id: UUID = UNKNOWN_DIRECTORY

    def matches(self, other: "ReplicaKey") -> bool:
        """Whether both may be the same replica; an unknown directory matches any."""
        return self.node_id == other.node_id and (
            self.directory_id == other.directory_id
            or UNKNOWN_DIRECTORY in (self.directory_id, other.directory_id)
        )


class Endpoint(NamedTuple):
    """The address of a controller listener."""

    host: str
    port: int
    name: str = "CONTROLLER"


class Destination(NamedTuple):
    """The destination of a request. A bootstrap server's id is unknown: below -1, as in Kafka."""

    node_id: NodeId
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """One voter, as VotersRecord lists it."""

    key: ReplicaKey
    endpoints: tuple[Endpoint, ...] = ()
    kraft_version_min: int = 0
    kraft_version_max: int = KRAFT_VERSION_DYNAMIC


class VoterSet:
    """The voters by id; never changed, only replaced."""

    __slots__ = ("_by_id",)

    def __init__(self, voters: Sequence[Voter] = ()) -> None:
        self._by_id: Mapping[NodeId, Voter] = {
            voter.key.node_id: voter
            for voter in sorted(voters, key=lambda voter: voter.key.node_id)
        }

    def __iter__(self) -> Iterator[Voter]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._by_id == other._by_id

    def __hash__(self) -> int:
        return hash(tuple(self._by_id.values()))

    def __repr__(self) -> str:
        return f"VoterSet({list(self._by_id.values())})"

    @property
    def ids(self) -> tuple[NodeId, ...]:
        """Node ids, ascending."""
        return tuple(self._by_id)

    @property
    def majority(self) -> int:
        """How many voters decide."""
        return len(self._by_id) // 2 + 1

    def get(self, node_id: NodeId) -> Voter | None:
        """Return the voter with this id."""
        return self._by_id.get(node_id)

    def has(self, key: ReplicaKey) -> bool:
        """Whether this replica, with this directory, is a voter."""
        voter = self._by_id.get(key.node_id)
        return voter is not None and voter.key.matches(key)

    def with_voter(self, voter: Voter) -> "VoterSet":
        """Return the set with a voter added; it replaces the one with the same id."""
        return VoterSet([*self.without(voter.key.node_id), voter])

    def without(self, node_id: NodeId) -> "VoterSet":
        """Return the set without a voter."""
        return VoterSet([voter for voter in self if voter.key.node_id != node_id])


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumState:
    """The durable contents of the file `quorum-state` (QuorumStateData)."""

    epoch: LeaderEpoch = FIRST_EPOCH
    leader_id: NodeId | None = None
    voted: ReplicaKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """The log and its snapshots when the node is made; all of it is durable by then.

    `epochs`: (epoch, first offset) ascending, as in the leader-epoch checkpoint, at or above
    `start_offset`. `snapshots`: ids ascending. `start_offset` is a snapshot's end or 0. If a crash
    left the log shorter than its latest snapshot, it begins again at that snapshot's end before
    this is made (Kafka's truncateToLatestSnapshot).
    """

    start_offset: Offset = FIRST_OFFSET
    end_offset: Offset = FIRST_OFFSET
    epochs: tuple[tuple[LeaderEpoch, Offset], ...] = ()
    snapshots: tuple[OffsetAndEpoch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VotersAt:
    """The quorum's control state from the record at `offset` on; -1: from the configuration."""

    offset: Offset
    voters: VoterSet
    kraft_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """This replica's identity, its initially known peers, and the quorum's timing.

    `voters`: controller.quorum.voters; used until the log or a snapshot says otherwise. With
    `kraft_version` 1 the first leader writes them into the log, from where they may change; each
    voter then tells its directory id by UpdateRaftVoter. `bootstrap_servers`:
    controller.quorum.bootstrap.servers, asked for the leader when no voter is known.
    """

    key: ReplicaKey
    cluster_id: str | None = None
    voters: VoterSet = field(default_factory=VoterSet)
    kraft_version: int = KRAFT_VERSION_DYNAMIC
    bootstrap_servers: tuple[Endpoint, ...] = ()
    # This replica's own controller listeners; empty if it can never lead.
    endpoints: tuple[Endpoint, ...] = ()
    # controller.quorum.election.timeout.ms: after this time without a leader the election begins
    # again. The actual wait is random between this and twice this.
    election_timeout_ms: int = 500
    # controller.quorum.fetch.timeout.ms: a follower that has not heard from its leader for this
    # long asks for a pre-vote; a leader that has not heard from a majority for 1.5 times as long
    # resigns.
    fetch_timeout_ms: int = 1000
    # controller.quorum.election.backoff.max.ms: the longest backoff after a lost election.
    election_backoff_ms_max: int = 500
    # controller.quorum.request.timeout.ms
    request_timeout_ms: int = 1000
    # controller.quorum.retry.backoff.ms: between retries of a failed or refused request.
    retry_backoff_ms: int = 20
    # A voter whose leader's process died, or that just started, waits a random part of this.
    fast_election_delay_ms_max: int = 40
    # controller.quorum.auto.join.enable: a controller that is only an observer asks to become a
    # voter, and first removes the voter entry of its former disk.
    auto_join: bool = False
    # How long a leader delays a fetch that finds nothing new, and the bytes a fetch asks for.
    fetch_wait_ms_max: int = 500
    fetch_bytes_max: int = 8 * 1024 * 1024
    # controller.quorum.fetch.snapshot.max.bytes
    snapshot_part_bytes_max: int = 4 * 1024 * 1024
