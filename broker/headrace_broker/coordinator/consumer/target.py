"""Computes the target assignment of a consumer group with the assignor that its members prefer."""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from headrace_broker.coordinator.config import ConsumerGroupConfig
from headrace_broker.coordinator.consumer.group import ConsumerGroup
from headrace_broker.coordinator.consumer.member import ConsumerMember, Subscription
from headrace_broker.coordinator.modern.assignment import Partitions
from headrace_broker.coordinator.modern.assignor import AssignmentSpec, Assignor
from headrace_broker.coordinator.modern.range import assign_range
from headrace_broker.coordinator.modern.topics import TopicsView
from headrace_broker.coordinator.modern.uniform import assign_uniform

ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}


def preferred_assignor(group: ConsumerGroup, config: ConsumerGroupConfig) -> str:
    """Return the assignor that most members ask for; the broker's first if none asks."""
    votes = {name: count for name, count in group.assignors.items() if name in config.assignors}
    if not votes:
        return config.assignors[0]
    return min(votes, key=lambda name: (-votes[name], config.assignors.index(name)))


def compute_targets(
    group: ConsumerGroup, updated: ConsumerMember, topics: TopicsView, config: ConsumerGroupConfig
) -> dict[str, Partitions]:
    """Return the new target of every member whose target changes.

    `updated` is a member as it will be: new, or with a changed subscription.
    """
    members = list(group.members)
    if updated.member_id not in group.members:
        members.append(updated.member_id)
    ids_of: dict[Subscription, frozenset[UUID]] = {
        item: topics.ids_of(group.names_of(item))
        for item in {*group.subscriptions, updated.subscription}
    }
    subscriptions: Mapping[str, frozenset[UUID]] | frozenset[UUID]
    if len(set(ids_of.values())) == 1:
        subscriptions = next(iter(ids_of.values()))
    else:
        subscriptions = {
            key: ids_of[updated.subscription if key == updated.member_id else item.subscription]
            for key, item in (group.members | {updated.member_id: updated}).items()
        }
    wanted = {topic_id: topics.by_id[topic_id] for ids in ids_of.values() for topic_id in ids}
    racks = {}
    if any(topic.racks for topic in wanted.values()):
        racks = {key: item.rack_id for key, item in group.members.items() if item.rack_id}
        if updated.rack_id:
            racks[updated.member_id] = updated.rack_id
    spec = AssignmentSpec(
        members=members,
        subscriptions=subscriptions,
        topics=wanted,
        current=group.targets,
        sizes=group.target_sizes,
        owners=group.target_owners,
        racks=racks,
        instance_ids={member_id: key for key, member_id in group.static_members.items()},
    )
    return ASSIGNORS[preferred_assignor(group, config)](spec)
