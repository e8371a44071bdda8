"""Converts a classic group into a consumer group and back while members stay (KIP-848).

The classic protocol's generation becomes the epoch, and vice versa. Either conversion is one batch:
the tombstones of the old group and the records of the new one.
"""

from collections.abc import Collection, Mapping
from typing import Final
from uuid import UUID

from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.consumer.embedded import (
    EmbeddedSubscription,
    encode_assignment,
    read_assignment,
    read_subscription,
)
from headrace_broker.coordinator.consumer.group import ConsumerGroup
from headrace_broker.coordinator.consumer.member import (
    ClassicFace,
    ConsumerMember,
    common_classic_protocols,
)
from headrace_broker.coordinator.consumer.records import creation_records, group_tombstones
from headrace_broker.coordinator.consumer.step import ConsumerStep
from headrace_broker.coordinator.decision import CancelTimer, Ticket, TimerKey, TimerKind
from headrace_broker.coordinator.group import CONSUMER_PROTOCOL_TYPE, Group, Member
from headrace_broker.coordinator.modern.assignment import Partitions, without_empty
from headrace_broker.coordinator.modern.topics import TopicsView
from headrace_broker.coordinator.rebalance import GroupStep, answer_parked, prepare_rebalance
from headrace_broker.coordinator.records import ConsumerGroupRecord
from headrace_broker.coordinator.shard import group_record, group_tombstone
from headrace_broker.coordinator.states import GroupState
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import Generation

# librdkafka's sticky assignor returns what members sent, so nothing is lost with it. An unknown
# assignor may keep data there that its members rely on (Kafka refuses both).
_KNOWN_ASSIGNORS: Final = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
_GROUP_TIMERS: Final = (TimerKind.JOIN, TimerKind.SYNC)


def upgrade(step: ConsumerStep, classic: Group) -> None:
    """Convert a classic group into the step's group; raise GROUP_ID_NOT_FOUND if impossible."""
    if classic.persisted is not None:
        step.decision.records.append(group_tombstone(classic.group_id))
    if not classic.members:
        return
    _check_upgrade(classic, step.context.config)
    converted = _to_consumer_group(classic, step.context.topics)
    # Members that wait in the classic rebalance join again, now into this group.
    rebalance = GroupStep(
        shard=step.shard,
        group=classic,
        config=step.context.config,
        now_ms=step.context.now_ms,
        decision=step.decision,
    )
    for member in classic.members.values():
        answer_parked(rebalance, member, ErrorCode.REBALANCE_IN_PROGRESS)
    step.decision.timers.extend(
        CancelTimer(key=TimerKey(kind=kind, group_id=classic.group_id)) for kind in _GROUP_TIMERS
    )
    step.group, step.is_draft = converted, True
    step.emit(creation_records(converted))
    for item in converted.members.values():
        step.extend_session(item)


def _check_upgrade(classic: Group, config: GroupConfig) -> None:
    reason = ""
    if not config.consumer.migration_policy.may_upgrade:
        reason = "online upgrade is disabled"
    elif not classic.uses_consumer_protocol:
        reason = "the group does not use the consumer embedded protocol"
    elif len(classic.members) > config.consumer.size_max:
        reason = "the group size exceeds the consumer group maximum size"
    if reason:
        raise ApiError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {classic.group_id} to consumer group because {reason}.",
        )


def _to_consumer_group(classic: Group, topics: TopicsView) -> ConsumerGroup:
    group = ConsumerGroup(
        group_id=classic.group_id, epoch=classic.generation, target_epoch=classic.generation
    )
    found = [(member, _subscription_of(classic, member)) for member in classic.members.values()]
    # If two members claim a partition, the one with the later generation owns it.
    found.sort(key=lambda each: each[1].generation, reverse=True)
    for member, subscription in found:
        assigned = _assigned_to(classic, member, subscription, topics)
        # A leader's assignment is not checked: a partition given to two members is the first one's.
        assigned = without_empty(
            {
                topic_id: {item for item in items if not group.owner_of(topic_id, item)}
                for topic_id, items in assigned.items()
            }
        )
        group.set_member(
            ConsumerMember(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                rack_id=subscription.rack_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                topic_names=subscription.topics,
                classic=ClassicFace(
                    session_timeout_ms=member.session_timeout_ms, protocols=member.protocols
                ),
                epoch=classic.generation,
                previous_epoch=classic.generation,
                assigned=assigned,
            )
        )
        group.set_target(member.member_id, assigned)
    group.metadata_hash = topics.metadata_hash(group.subscribed_topics())
    return group


def _subscription_of(classic: Group, member: Member) -> EmbeddedSubscription:
    data = member.metadata_for(classic.protocol_name)
    if not data and member.protocols:
        data = member.protocols[0][1]  # its first rebalance is still in progress
    subscription = read_subscription(data)
    if subscription is None:
        raise _malformed(classic)
    return subscription


def _assigned_to(
    classic: Group, member: Member, subscription: EmbeddedSubscription, topics: TopicsView
) -> Partitions:
    if not member.assignment:
        # Between join and sync it may still read the partitions that it claims to own (KIP-429).
        return _by_id(subscription.owned, topics)
    assignment = read_assignment(member.assignment)
    if assignment is None:
        raise _malformed(classic)
    if assignment.user_data and classic.protocol_name not in _KNOWN_ASSIGNORS:
        raise ApiError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {classic.group_id} to consumer group because an "
            "unsupported custom assignor is in use. Please refer to the documentation or switch "
            "to a default assignor before re-attempting the upgrade.",
        )
    return _by_id(assignment.partitions, topics)


def _by_id(partitions: Mapping[str, frozenset[int]], topics: TopicsView) -> Partitions:
    found: dict[UUID, frozenset[int]] = {}
    for name, items in partitions.items():
        topic = topics.by_name.get(name)
        if topic is not None and items:
            found[topic.topic_id] = items
    return found


def _malformed(classic: Group) -> ApiError:
    return ApiError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {classic.group_id} to consumer group because the embedded "
        "consumer protocol is malformed.",
    )


def may_downgrade(group: ConsumerGroup, gone: Collection[str], config: GroupConfig) -> bool:
    """Whether a group must become a classic one when these members leave."""
    left = [item for key, item in group.members.items() if key not in gone]
    return (
        bool(left)
        and all(item.classic is not None for item in left)
        and config.consumer.migration_policy.may_downgrade
        and len(left) <= config.group_size_max
        and bool(common_classic_protocols(left))
    )


def downgrade(
    step: ConsumerStep, gone: Collection[str], joining: tuple[str, Ticket] | None = None
) -> None:
    """Convert the group to a classic one with the remaining members, and let them rebalance.

    `joining` is a member whose JoinGroup caused this: it has already joined that rebalance.
    """
    group, shard, records = step.group, step.shard, step.decision.records
    # Whoever replays a record of a consumer group begins one, and the classic group would be gone.
    records[:] = [
        item for item in records if not isinstance(item, ConsumerGroupRecord) or item.value is None
    ]
    # The group contains what the step decided: these are the tombstones of everything in it.
    step.emit(group_tombstones(group))
    classic = _to_classic_group(group, gone, step.context.topics)
    classic.state_since_ms = step.context.now_ms
    record = group_record(classic)
    step.decision.records.append(record)
    classic.persisted = record.value
    shard.consumer_groups.pop(group.group_id, None)
    shard.groups[group.group_id] = classic
    rebalance = GroupStep(
        shard=shard,
        group=classic,
        config=step.context.config,
        now_ms=step.context.now_ms,
        decision=step.decision,
    )
    for member in classic.members.values():
        step.cancel_timers(member.member_id, *TimerKind)
        rebalance.extend_session(member.member_id, member.session_timeout_ms)
    if joining is not None:
        classic.members[joining[0]].join_ticket = joining[1]
    prepare_rebalance(rebalance, "the last member of the consumer protocol is gone")


def _to_classic_group(group: ConsumerGroup, gone: Collection[str], topics: TopicsView) -> Group:
    left = [item for key, item in group.members.items() if key not in gone]
    members = {item.member_id: _to_classic_member(item, topics) for item in left}
    classic = Group(
        group_id=group.group_id,
        state=GroupState.STABLE,
        generation=Generation(group.epoch),
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        leader_id=next(iter(members)),
        members=members,
        static_members={
            item.group_instance_id: key
            for key, item in members.items()
            if item.group_instance_id is not None
        },
    )
    classic.protocol_name = classic.select_protocol()
    return classic


def _to_classic_member(member: ConsumerMember, topics: TopicsView) -> Member:
    face = member.classic
    if face is None:
        raise ValueError(f"{member.member_id} does not speak the classic protocol")
    return Member(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=face.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        protocols=face.protocols,
        assignment=encode_assignment(member.assigned, topics, like=face.protocols[0][1]),
    )
