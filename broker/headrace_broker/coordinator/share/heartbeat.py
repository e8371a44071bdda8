"""ShareGroupHeartbeat: join, keep and leave a share group (KIP-932).

A partition is assigned once the share coordinator has created its state. Until then the decision
requests that (`InitializeShareState`), and `decide_initialized` continues when it is done.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from headrace_broker.coordinator.consumer.step import ConsumerContext
from headrace_broker.coordinator.decision import (
    Caller,
    CancelTimer,
    GroupDecision,
    InitializeShareState,
    SetTimer,
    TimerKey,
    TimerKind,
)
from headrace_broker.coordinator.modern.assignment import Partitions, to_structs
from headrace_broker.coordinator.shard import GroupShard, session_key
from headrace_broker.coordinator.share.assignor import assign_simple
from headrace_broker.coordinator.share.group import (
    ShareGroup,
    names_of_all,
    replay_share,
)
from headrace_broker.coordinator.share.member import JOIN_EPOCH, LEAVE_EPOCH, ShareMember
from headrace_broker.coordinator.share.records import (
    ShareGroupRecord,
    epoch_record,
    member_tombstones,
    state_record,
    target_epoch_record,
    target_record,
)
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)


@dataclass(slots=True, kw_only=True)
class _Step:
    """The group of a decision, as the records decided so far leave it."""

    group: ShareGroup
    context: ConsumerContext
    decision: GroupDecision = field(default_factory=GroupDecision)

    def emit(self, records: Iterable[ShareGroupRecord]) -> None:
        for record in records:
            self.decision.records.append(record)
            replay_share(self.group, record)


def decide_share_heartbeat(
    shard: GroupShard,
    request: ShareGroupHeartbeatRequest,
    caller: Caller,
    context: ConsumerContext,
) -> GroupDecision:
    """Decide on one heartbeat. Raises ApiError."""
    _check_request(request, context)
    known = shard.share_groups.get(request.group_id)
    if request.member_epoch == LEAVE_EPOCH:
        return _leave(shard, request, caller, context)
    is_join = request.member_epoch == JOIN_EPOCH
    if known is None:
        if shard.has_other_kind(request.group_id, shard.share_groups) or not is_join:
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a share group."
            )
        if not caller.room_for_a_group:
            raise ApiError(ErrorCode.POLICY_VIOLATION, "headrace.max.groups is reached")
    group = ShareGroup(group_id=request.group_id) if known is None else known.copy()
    step = _Step(group=group, context=context)
    before = _find_member(group, request, context, is_join=is_join)
    names = request.subscribed_topic_names
    after = replace(
        before,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        topic_names=before.topic_names if names is None else tuple(sorted(set(names))),
        client_id=caller.client_id,
        client_host=caller.client_host,
    )
    if after != group.members.get(after.member_id):
        step.emit([after.metadata_record(group.group_id)])
    _update_epoch(step, has_new_subscription=before.topic_names != after.topic_names)
    _update_targets(step)
    reconciled = after.at(group.target_epoch, group.target_of(after.member_id))
    if reconciled != after or before.member_id not in (known.members if known else {}):
        step.emit([reconciled.assignment_record(group.group_id)])
    _want_state(step)
    timeout_ms = context.config.share.session_timeout_ms
    key = session_key(group.group_id, after.member_id)
    step.decision.timers.append(SetTimer(key=key, delay_ms=timeout_ms))
    is_news = is_join or names is not None or reconciled.assigned != before.assigned
    answer = ShareGroupHeartbeatResponse(
        member_id=after.member_id,
        member_epoch=reconciled.epoch,
        heartbeat_interval_ms=context.config.share.heartbeat_interval_ms,
        assignment=Assignment(topic_partitions=to_structs(TopicPartitions, reconciled.assigned))
        if is_news
        else None,
    )
    step.decision.replies.append((caller.ticket, answer))
    return step.decision


def _check_request(request: ShareGroupHeartbeatRequest, context: ConsumerContext) -> None:
    def demand(condition: object, message: str) -> None:
        if not condition:
            raise ApiError(ErrorCode.INVALID_REQUEST, message)

    demand(request.member_id.strip(), "MemberId can't be empty.")
    demand(request.group_id.strip(), "GroupId can't be empty.")
    demand(request.rack_id is None or request.rack_id.strip(), "RackId can't be empty.")
    demand(request.member_epoch >= LEAVE_EPOCH, "MemberEpoch is invalid.")
    if request.member_epoch == JOIN_EPOCH:
        demand(
            request.subscribed_topic_names,
            "SubscribedTopicNames must be set in first request.",
        )
    names_max = context.config.share.topic_names_max
    demand(
        len(request.subscribed_topic_names or ()) <= names_max,
        f"A member subscribes to at most {names_max} topics.",
    )


def _find_member(
    group: ShareGroup,
    request: ShareGroupHeartbeatRequest,
    context: ConsumerContext,
    *,
    is_join: bool,
) -> ShareMember:
    """Return the requesting member, blank for one that joins. Raises if it is fenced."""
    member = group.members.get(request.member_id)
    if member is None and is_join:
        size_max = context.config.share.size_max
        if len(group.members) >= size_max:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The share group has reached its maximum capacity of {size_max} members.",
            )
        return ShareMember(member_id=request.member_id)
    member = group.check_member(request.member_id)
    # The response with its new epoch may have been lost.
    if request.member_epoch not in {JOIN_EPOCH, member.epoch, member.previous_epoch}:
        which = "greater" if request.member_epoch > member.epoch else "smaller"
        raise ApiError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The share group member has a {which} member epoch ({request.member_epoch}) than the "
            f"one known by the group coordinator ({member.epoch}). The member must abandon all "
            "its partitions and rejoin.",
        )
    return member


def _leave(
    shard: GroupShard,
    request: ShareGroupHeartbeatRequest,
    caller: Caller,
    context: ConsumerContext,
) -> GroupDecision:
    group = shard.share_groups.get(request.group_id)
    if group is None:
        raise ApiError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a share group."
        )
    member = group.check_member(request.member_id)
    decision = _remove(group, member, context)
    answer = ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE_EPOCH)
    decision.replies.append((caller.ticket, answer))
    return decision


def decide_share_timer(shard: GroupShard, key: TimerKey, context: ConsumerContext) -> GroupDecision:
    """Fence a member whose session expired."""
    group = shard.share_groups.get(key.group_id)
    member = None if group is None else group.members.get(key.member_id)
    if group is None or member is None or key.kind is not TimerKind.SESSION:
        return GroupDecision()
    return _remove(group, member, context)


def _remove(group: ShareGroup, member: ShareMember, context: ConsumerContext) -> GroupDecision:
    left = [item for key, item in group.members.items() if key != member.member_id]
    metadata_hash = context.topics.metadata_hash(names_of_all(left))
    return GroupDecision(
        records=[
            *member_tombstones(group.group_id, member.member_id),
            epoch_record(group.group_id, group.epoch + 1, metadata_hash),
        ],
        timers=[CancelTimer(key=session_key(group.group_id, member.member_id))],
    )


def _update_epoch(step: _Step, *, has_new_subscription: bool) -> None:
    """Bump the group's epoch when the subscriptions or the topics changed."""
    group = step.group
    metadata_hash = step.context.topics.metadata_hash(group.subscribed_topics())
    if has_new_subscription or group.epoch == 0 or metadata_hash != group.metadata_hash:
        step.emit([epoch_record(group.group_id, group.epoch + 1, metadata_hash)])


def _update_targets(step: _Step) -> None:
    group, topics = step.group, step.context.topics
    if group.epoch <= group.target_epoch:
        return
    subscriptions = {
        key: topics.ids_of(member.topic_names) for key, member in group.members.items()
    }
    wanted = frozenset[UUID]().union(*subscriptions.values())
    partitions: Partitions = {
        topic_id: items for topic_id, (_, items) in group.initialized.items() if topic_id in wanted
    }
    targets = assign_simple(subscriptions, partitions, group.targets)
    changed = [
        target_record(group.group_id, key, target)
        for key, target in targets.items()
        if key not in group.targets or group.targets[key] != target
    ]
    step.emit(changed)
    step.emit([target_epoch_record(group.group_id, group.epoch)])


def _want_state(step: _Step) -> None:
    """Request the state of subscribed partitions that have none."""
    group, topics = step.group, step.context.topics
    missing: dict[UUID, tuple[str, frozenset[int]]] = {}
    for topic_id in topics.ids_of(group.subscribed_topics()):
        topic = topics.by_id[topic_id]
        _, made = group.initialized.get(topic_id, ("", frozenset[int]()))
        left = frozenset(range(topic.partition_count)) - made
        if left:
            missing[topic_id] = (topic.name, left)
    if not missing:
        return
    if missing != group.initializing:
        step.emit([state_record(group.group_id, missing, group.initialized, group.deleting)])
    step.decision.initializations.append(
        InitializeShareState(
            group_id=group.group_id,
            state_epoch=group.epoch,
            partitions={topic_id: items for topic_id, (_, items) in missing.items()},
        )
    )


def decide_initialized(
    shard: GroupShard, group_id: str, made: Mapping[UUID, frozenset[int]], context: ConsumerContext
) -> GroupDecision:
    """Record partitions whose state was created; bump the epoch so that they are assigned."""
    known = shard.share_groups.get(group_id)
    if known is None or not made:
        return GroupDecision()
    step = _Step(group=known.copy(), context=context)
    group = step.group
    initializing, initialized = dict(group.initializing), dict(group.initialized)
    for topic_id, items in made.items():
        topic = context.topics.by_id.get(topic_id)
        name, left = initializing.pop(topic_id, (topic.name if topic else "", frozenset[int]()))
        if left - items:
            initializing[topic_id] = (name, left - items)
        _, had = initialized.get(topic_id, (name, frozenset[int]()))
        initialized[topic_id] = (name, had | items)
    step.emit([state_record(group_id, initializing, initialized, group.deleting)])
    if group.members:
        step.emit([epoch_record(group_id, group.epoch + 1, group.metadata_hash)])
    return step.decision
