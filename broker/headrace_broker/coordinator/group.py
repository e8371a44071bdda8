"""A classic consumer group in memory: its members, and the progress of a rebalance.

Owns the bookkeeping that needs no decision: votes, leadership, who still has to join or sync. State
that survives a restart is in `persisted`, which only `replay` sets.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from headrace_broker.coordinator.decision import Ticket
from headrace_broker.coordinator.states import GroupState, check_transition
from headrace_broker.coordinator.subscription import subscribed_topics
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.records.group_metadata import (
    GroupMetadataValue,
    MemberMetadata,
)
from headrace_broker.protocol.types import Generation, TimestampMs

CONSUMER_PROTOCOL_TYPE = "consumer"
NO_MEMBER_ID = ""

_CHARACTER_BYTES_MAX = 4  # of UTF-8
_RECORD_OVERHEAD_BYTES = 128  # lengths, numbers and the client's address

Protocols = tuple[tuple[str, bytes], ...]
"""What a member supports, in its order of preference: (assignor's name, metadata)."""


@dataclass(slots=True, kw_only=True)
class Member:
    """One member; it awaits an answer while `join_ticket` or `sync_ticket` is set."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False  # never got a join response, so it cannot heartbeat yet
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None

    @property
    def is_static(self) -> bool:
        """Static members keep their place while they restart (KIP-345)."""
        return self.group_instance_id is not None

    def metadata_for(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata under the chosen protocol, empty when it has none."""
        return next((data for name, data in self.protocols if name == protocol_name), b"")


@dataclass(slots=True, kw_only=True)
class Group:
    """A group of the classic protocol. `members` keeps the order in which they joined."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    state_since_ms: TimestampMs | None = None
    generation: Generation = Generation(0)  # noqa: RUF009  a NewType call returns the int itself
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # instance id -> member id
    pending_members: set[str] = field(default_factory=set)  # got their id, not joined (KIP-394)
    awaiting_sync: set[str] = field(default_factory=set)  # joined this generation, not synced
    initial_delay_left_ms: int | None = None  # only while a group that was empty collects members
    has_new_member: bool = False  # one came during the initial delay, so it is extended once more
    persisted: GroupMetadataValue | None = None

    def transition(self, state: GroupState, now_ms: TimestampMs) -> None:
        """Move along an edge of the table; raise when there is none."""
        check_transition(self.state, state)
        self.state = state
        self.state_since_ms = now_ms

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that any member needs to finish its work before it rejoins."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def joined_count(self) -> int:
        """How many members have joined and wait for the end of the join phase."""
        return sum(member.join_ticket is not None for member in self.members.values())

    @property
    def has_everyone_joined(self) -> bool:
        """Whether the join phase can end before its time."""
        return not self.pending_members and self.joined_count == len(self.members)

    @property
    def is_unused(self) -> bool:
        """Whether it has no members, and none about to join."""
        return self.state is GroupState.EMPTY and not self.members and not self.pending_members

    @property
    def uses_consumer_protocol(self) -> bool:
        """Whether members are consumers, whose metadata names their topics."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics of all members; None when that cannot be known."""
        if not self.uses_consumer_protocol:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            found = subscribed_topics(member.metadata_for(self.protocol_name))
            if found is None:
                return None
            topics |= found
        return frozenset(topics)

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member that supports `names` leaves at least one protocol common to all."""
        offered = set(names)
        if not protocol_type or not offered:
            return False
        if not self.members:
            return True
        return protocol_type == self.protocol_type and bool(offered & self.common_protocols())

    def common_protocols(self) -> set[str]:
        """Return the protocols that every member supports."""
        spoken = [{name for name, _ in member.protocols} for member in self.members.values()]
        return set.intersection(*spoken) if spoken else set()

    def select_protocol(self) -> str:
        """Each member votes for its first common protocol; most votes win, ties by name."""
        common = self.common_protocols()
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next((name for name, _ in member.protocols if name in common), None)
            if choice is None:
                raise ApiError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol is common to all"
                )
            votes[choice] = votes.get(choice, 0) + 1
        return min(votes, key=lambda name: (-votes[name], name))

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member; the first one of an empty group sets the protocol type and leads."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self.pending_members.discard(member.member_id)
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """Remove a member; leadership passes to one who has joined, else to any."""
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        if member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        self.awaiting_sync.discard(member_id)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        return member

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader has joined this round; return False if no member has."""
        leader = self.members.get(self.leader_id or NO_MEMBER_ID)
        if leader is not None and leader.join_ticket is not None:
            return True
        joined = (item.member_id for item in self.members.values() if item.join_ticket is not None)
        found = next(joined, None)
        if found is not None:
            self.leader_id = found
        return found is not None

    def replace_static_member(self, instance_id: str, member_id: str) -> Member:
        """Give a static member's place to its new incarnation, which has a new member id."""
        old_id = self.static_members[instance_id]
        old = self.members[old_id]
        new = replace(old, member_id=member_id, join_ticket=None, sync_ticket=None)
        # Rebuilt, so that the new incarnation keeps the old one's place in the order.
        self.members = {
            new.member_id if key == old_id else key: new if key == old_id else member
            for key, member in self.members.items()
        }
        self.static_members[instance_id] = member_id
        if old_id in self.awaiting_sync:
            self.awaiting_sync.remove(old_id)
            self.awaiting_sync.add(member_id)
        if self.leader_id == old_id:
            self.leader_id = member_id
        return new

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """Return the member; raise UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID for a replaced one."""
        if instance_id is not None:
            current = self.static_members.get(instance_id)
            if current is None:
                raise ApiError(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"no member has instance id {instance_id}"
                )
            if current != member_id:
                raise ApiError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"another member took over instance id {instance_id}",
                )
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is not a member of the group"
            )
        return member

    def check_generation(self, generation: int) -> None:
        """Raise ILLEGAL_GENERATION unless the caller knows the current one."""
        if generation != self.generation:
            raise ApiError(
                ErrorCode.ILLEGAL_GENERATION,
                f"generation {generation} is not the group's, which is {self.generation}",
            )

    def record_bytes_max(self, assignments: Mapping[str, bytes]) -> int:
        """Return an upper bound for the size of the group's record with these assignments."""
        texts = (self.group_id, self.protocol_type or "", self.protocol_name or "")
        size = _RECORD_OVERHEAD_BYTES + _CHARACTER_BYTES_MAX * sum(map(len, texts))
        for member in self.members.values():
            texts = (member.member_id, member.group_instance_id or "", member.client_id)
            size += _RECORD_OVERHEAD_BYTES + _CHARACTER_BYTES_MAX * sum(map(len, texts))
            size += len(member.metadata_for(self.protocol_name))
            size += len(assignments.get(member.member_id, b""))
        return size

    def to_value(self) -> GroupMetadataValue:
        """Return the value of the group's record: it has only the chosen protocol's metadata."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp=-1 if self.state_since_ms is None else self.state_since_ms,
            members=[
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata_for(self.protocol_name),
                    assignment=member.assignment,
                )
                for member in self.members.values()
            ],
        )

    @classmethod
    def from_value(cls, group_id: str, value: GroupMetadataValue) -> Self:
        """Rebuild a group after a failover: Stable when it has members, else Empty."""
        members = {
            item.member_id: _member_from(item, value.protocol or "") for item in value.members
        }
        since = value.current_state_timestamp
        return cls(
            group_id=group_id,
            state=GroupState.STABLE if members else GroupState.EMPTY,
            state_since_ms=TimestampMs(since) if since >= 0 else None,
            generation=Generation(value.generation),
            protocol_type=value.protocol_type or None,
            protocol_name=value.protocol if members else None,
            leader_id=value.leader if members else None,
            members=members,
            static_members={
                item.group_instance_id: item.member_id
                for item in members.values()
                if item.group_instance_id is not None
            },
            persisted=value,
        )


def _member_from(item: MemberMetadata, protocol_name: str) -> Member:
    return Member(
        member_id=item.member_id,
        group_instance_id=item.group_instance_id,
        client_id=item.client_id,
        client_host=item.client_host,
        session_timeout_ms=item.session_timeout,
        # Version 0 had no rebalance timeout: the session timeout served as both.
        rebalance_timeout_ms=(
            item.session_timeout if item.rebalance_timeout < 0 else item.rebalance_timeout
        ),
        protocols=((protocol_name, bytes(item.subscription)),),
        assignment=bytes(item.assignment),
    )
