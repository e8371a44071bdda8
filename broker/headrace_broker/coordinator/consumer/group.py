"""A consumer group: the state that its records add up to, and the indexes over it.

Only `replay.py` changes a group. The indexes (who owns a partition, whose target contains it, how
many members have the same subscription) are updated by the functions that set the indexed values,
so they always agree.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar
from uuid import UUID

from headrace_broker.coordinator.consumer.member import ConsumerMember, Subscription
from headrace_broker.coordinator.consumer.states import ConsumerGroupState
from headrace_broker.coordinator.modern.assignment import NO_PARTITIONS, Partitions, size
from headrace_broker.coordinator.modern.regex import ResolvedRegex
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import TimestampMs

NO_OWNER = ""
_NOTHING: Final = frozenset[int]()
_KeyT = TypeVar("_KeyT")


@dataclass(slots=True, kw_only=True)
class ConsumerGroup:
    """A group of the consumer protocol; any code may read it, only replay changes it."""

    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    target_epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    regexes: dict[str, ResolvedRegex] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # instance id -> member id
    target_sizes: dict[str, int] = field(default_factory=dict)
    target_owners: dict[UUID, dict[int, str]] = field(default_factory=dict)
    owners: dict[UUID, dict[int, str]] = field(default_factory=dict)  # assigned or being revoked
    subscriptions: Counter[Subscription] = field(default_factory=Counter)
    assignors: Counter[str] = field(default_factory=Counter)
    native_count: int = 0  # members that speak the consumer protocol
    empty_since_ms: TimestampMs | None = None
    """In memory only: offset retention counts from here (KIP-211); a failover restarts it."""
    _subscribed: frozenset[str] | None = None

    @property
    def state(self) -> ConsumerGroupState:
        """Return the state that follows from the records."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(item.is_reconciled(self.target_epoch) for item in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def set_member(self, member: ConsumerMember) -> None:
        """Add or replace a member."""
        old = self.members.get(member.member_id)
        if old is not None:
            self._unindex(old)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.subscriptions[member.subscription] += 1
        if member.server_assignor is not None:
            self.assignors[member.server_assignor] += 1
        self.native_count += member.classic is None
        before = NO_PARTITIONS if old is None else old.held()
        _reindex(self.owners, before, member.held(), member.member_id)
        if old is None or old.subscription != member.subscription:
            self._subscribed = None

    def remove_member(self, member_id: str) -> None:
        """Remove a member and its target."""
        self.set_target(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._unindex(member)
        _reindex(self.owners, member.held(), NO_PARTITIONS, member_id)
        if self.static_members.get(member.instance_id or "") == member_id:
            del self.static_members[member.instance_id or ""]
        self._subscribed = None

    def _unindex(self, member: ConsumerMember) -> None:
        _decrease(self.subscriptions, member.subscription)
        if member.server_assignor is not None:
            _decrease(self.assignors, member.server_assignor)
        self.native_count -= member.classic is None

    def set_target(self, member_id: str, target: Partitions | None) -> None:
        """Set a member's target; None removes it."""
        before = self.targets.get(member_id, NO_PARTITIONS)
        _reindex(self.target_owners, before, target or NO_PARTITIONS, member_id)
        if target is None:
            self.targets.pop(member_id, None)
            self.target_sizes.pop(member_id, None)
        else:
            self.targets[member_id] = target
            self.target_sizes[member_id] = size(target)

    def set_regex(self, pattern: str, resolved: ResolvedRegex | None) -> None:
        """Set the topics that a regular expression matches; None removes it."""
        if resolved is None:
            self.regexes.pop(pattern, None)
        else:
            self.regexes[pattern] = resolved
        self._subscribed = None

    def target_of(self, member_id: str) -> Partitions:
        """Return a member's target."""
        return self.targets.get(member_id, NO_PARTITIONS)

    def owner_of(self, topic_id: UUID, partition: int) -> str:
        """Return the member that owns a partition or is revoking it; empty: none."""
        return self.owners.get(topic_id, {}).get(partition, NO_OWNER)

    def subscribed_topics(self) -> frozenset[str]:
        """Return the topics of all subscriptions, by name or by a resolved expression."""
        if self._subscribed is None:
            self._subscribed = self.names_of_all(self.subscriptions)
        return self._subscribed

    def names_of_all(self, subscriptions: Iterable[Subscription]) -> frozenset[str]:
        """Return the union of the topics in the subscriptions."""
        return frozenset().union(*(self.names_of(item) for item in subscriptions))

    def names_of(self, subscription: Subscription) -> frozenset[str]:
        """Return the topics of one subscription; an unresolved expression matches none yet."""
        names, pattern = subscription
        resolved = self.regexes.get(pattern) if pattern else None
        if resolved is None:
            return frozenset(names)
        return resolved.topics.union(names) if names else resolved.topics

    def patterns(self) -> frozenset[str]:
        """Return the regular expressions that members subscribe to."""
        return frozenset(pattern for _, pattern in self.subscriptions if pattern)

    def check_member(self, member_id: str) -> ConsumerMember:
        """Return the member; raise UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return member

    def check_static_member(self, instance_id: str, member_id: str) -> ConsumerMember:
        """Return the member; raise UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID for a replaced one."""
        current = self.static_members.get(instance_id)
        if current is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if current != member_id:
            raise ApiError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by "
                f"member {current}.",
            )
        return self.members[current]

    def copy(self) -> Self:
        """Return a draft for a decision that builds on its own records."""
        return type(self)(
            group_id=self.group_id,
            epoch=self.epoch,
            metadata_hash=self.metadata_hash,
            target_epoch=self.target_epoch,
            members=dict(self.members),
            targets=dict(self.targets),
            regexes=dict(self.regexes),
            static_members=dict(self.static_members),
            target_sizes=dict(self.target_sizes),
            target_owners={key: dict(value) for key, value in self.target_owners.items()},
            owners={key: dict(value) for key, value in self.owners.items()},
            subscriptions=Counter(self.subscriptions),
            assignors=Counter(self.assignors),
            native_count=self.native_count,
            empty_since_ms=self.empty_since_ms,
        )


def _decrease(counter: Counter[_KeyT], key: _KeyT) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]


def _reindex(
    owners: dict[UUID, dict[int, str]], before: Partitions, after: Partitions, member_id: str
) -> None:
    """Update the index with what a member lost and gained."""
    for topic_id, items in before.items():
        held = owners.get(topic_id)
        if held is None:
            continue
        for item in items - after.get(topic_id, _NOTHING):
            if held.get(item) == member_id:
                del held[item]
        if not held:
            del owners[topic_id]
    for topic_id, items in after.items():
        added = items - before.get(topic_id, _NOTHING)
        if added:
            owners.setdefault(topic_id, {}).update(dict.fromkeys(added, member_id))
