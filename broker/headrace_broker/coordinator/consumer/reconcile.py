"""Moves one member from its present to its target partitions, so that no partition has two owners.

A member first revokes the partitions that are no longer its own, and stays in its epoch until it
confirms that. Then it moves to the target's epoch and gets the free partitions. Partitions that
another member still owns are withheld until that member has revoked them (KIP-848). Pure functions.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from headrace_broker.coordinator.consumer.group import NO_OWNER
from headrace_broker.coordinator.consumer.member import ConsumerMember
from headrace_broker.coordinator.consumer.states import MemberState
from headrace_broker.coordinator.modern.assignment import (
    NO_PARTITIONS,
    Partitions,
    TopicPartitionsStruct,
    overlaps,
    without_empty,
)
from headrace_broker.protocol.errors import ApiError, ErrorCode

_NONE: Final = frozenset[int]()


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A member's target, and what it must wait for."""

    epoch: int
    target: Partitions
    subscribed: frozenset[UUID]
    """Topics that it subscribes to now: the target may be older than the subscription."""
    owner_of: Callable[[UUID, int], str]
    owned: Iterable[TopicPartitionsStruct] | None
    """The partitions that the member says it owns; None if it does not say."""
    has_new_subscription: bool = False


def reconcile(member: ConsumerMember, goal: Goal) -> ConsumerMember:
    """Return the member one step further, or unchanged."""
    match member.state:
        case MemberState.STABLE:
            if member.epoch != goal.epoch:
                return _next(member, goal)
            return _drop_unsubscribed(member, goal) if goal.has_new_subscription else member
        case MemberState.UNREVOKED_PARTITIONS:
            if _still_owns(goal, member.revoking):
                return _drop_unsubscribed(member, goal) if goal.has_new_subscription else member
            return _next(member, goal)
        case MemberState.UNRELEASED_PARTITIONS:
            return _next(member, goal)
        case MemberState.UNKNOWN:
            if goal.owned is None or any(item.partitions for item in goal.owned):
                raise ApiError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The consumer group member is in a unknown state. "
                    "The member must abandon all its partitions and rejoin.",
                )
            return _next(member, goal)


def _still_owns(goal: Goal, partitions: Partitions) -> bool:
    return goal.owned is None or overlaps(goal.owned, partitions)


def _next(member: ConsumerMember, goal: Goal) -> ConsumerMember:
    assigned: dict[UUID, frozenset[int]] = {}
    revoking: dict[UUID, frozenset[int]] = {}
    added: dict[UUID, frozenset[int]] = {}
    is_waiting = False
    for topic_id in goal.target.keys() | member.assigned.keys():
        target = goal.target.get(topic_id, _NONE) if topic_id in goal.subscribed else _NONE
        held = member.assigned.get(topic_id, _NONE)
        assigned[topic_id] = held & target
        revoking[topic_id] = held - target
        wanted = target - held
        # Partitions that the member itself is about to revoke are free for it.
        free = frozenset(
            item for item in wanted if goal.owner_of(topic_id, item) in {NO_OWNER, member.member_id}
        )
        is_waiting = is_waiting or len(free) < len(wanted)
        added[topic_id] = free
    to_revoke = without_empty(revoking)
    if to_revoke and _still_owns(goal, to_revoke):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=without_empty(assigned),
            revoking=to_revoke,
        )
    return replace(
        member.at_epoch(goal.epoch),
        state=MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE,
        assigned=without_empty({key: items | added[key] for key, items in assigned.items()}),
        revoking=NO_PARTITIONS,
    )


def _drop_unsubscribed(member: ConsumerMember, goal: Goal) -> ConsumerMember:
    """Let a member revoke a topic that it no longer subscribes to, ahead of the target."""
    unwanted = member.assigned.keys() - goal.subscribed
    if not unwanted:
        return member
    assigned = {key: items for key, items in member.assigned.items() if key not in unwanted}
    revoking = dict(member.revoking)
    for topic_id in unwanted:
        revoking[topic_id] = revoking.get(topic_id, _NONE) | member.assigned[topic_id]
    if _still_owns(goal, revoking):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=assigned,
            revoking=revoking,
        )
    return replace(member, assigned=assigned)
