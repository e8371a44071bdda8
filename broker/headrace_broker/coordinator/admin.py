"""ListGroups, DescribeGroups and DeleteGroups: what administrators read and delete."""

from typing import Final

from headrace_broker.coordinator.consumer.records import group_tombstones
from headrace_broker.coordinator.decision import Caller, GroupDecision
from headrace_broker.coordinator.group import CONSUMER_PROTOCOL_TYPE, Group
from headrace_broker.coordinator.shard import GroupShard, group_tombstone, offset_tombstone
from headrace_broker.coordinator.share.admin import check_empty, group_end
from headrace_broker.coordinator.share.group import SHARE_PROTOCOL_TYPE
from headrace_broker.coordinator.states import GroupState
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.delete_groups import DeletableGroupResult
from headrace_broker.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from headrace_broker.protocol.messages.list_groups import ListedGroup, ListGroupsRequest

CLASSIC_GROUP_TYPE: Final = "classic"
CONSUMER_GROUP_TYPE: Final = "consumer"
SHARE_GROUP_TYPE: Final = "share"
_VERSION_THAT_SAYS_GROUP_NOT_FOUND: Final = 6


def list_groups(shard: GroupShard, request: ListGroupsRequest) -> list[ListedGroup]:
    """Return the shard's groups that pass both filters; an empty filter passes all groups."""
    states = {state.lower() for state in request.states_filter}
    types = {name.lower() for name in request.types_filter}
    found = [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=CLASSIC_GROUP_TYPE,
        )
        for group in shard.groups.values()
    ]
    found += [
        ListedGroup(
            group_id=consumer_group.group_id,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            group_state=consumer_group.state.value,
            group_type=CONSUMER_GROUP_TYPE,
        )
        for consumer_group in shard.consumer_groups.values()
    ]
    found += [
        ListedGroup(
            group_id=share_group.group_id,
            protocol_type=SHARE_PROTOCOL_TYPE,
            group_state=share_group.state.value,
            group_type=SHARE_GROUP_TYPE,
        )
        for share_group in shard.share_groups.values()
    ]
    return [
        item
        for item in found
        if (not types or item.group_type in types)
        and (not states or item.group_state.lower() in states)
    ]


def describe_group(shard: GroupShard, group_id: str, api_version: int) -> DescribedGroup:
    """Describe one group; a missing group is Dead, from version 6 on with an error too."""
    group = shard.groups.get(group_id)
    if group is None:
        dead = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        if api_version >= _VERSION_THAT_SAYS_GROUP_NOT_FOUND:
            dead.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            is_other = shard.has_other_kind(group_id, shard.groups)
            what = "is not a classic group" if is_other else "not found"
            dead.error_message = f"Group {group_id} {what}."
        return dead
    is_stable = group.state is GroupState.STABLE
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        # Between two generations no protocol is chosen, so the assignments have none.
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=_described_members(group, with_data=is_stable),
    )


def _described_members(group: Group, *, with_data: bool) -> list[DescribedGroupMember]:
    return [
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata_for(group.protocol_name) if with_data else b"",
            member_assignment=member.assignment if with_data else b"",
        )
        for member in group.members.values()
    ]


def decide_delete_group(shard: GroupShard, group_id: str, caller: Caller) -> GroupDecision:
    """Delete an empty group and all its offsets; the reply is its `DeletableGroupResult`."""
    share_group = shard.share_groups.get(group_id)
    if share_group is not None:
        check_empty(share_group)
        return GroupDecision(
            records=list(group_end(share_group)),
            replies=[(caller.ticket, DeletableGroupResult(group_id=group_id))],
        )
    consumer_group = shard.consumer_groups.get(group_id)
    if consumer_group is not None:
        is_empty = not consumer_group.members
    else:
        is_empty = shard.find(group_id).state is GroupState.EMPTY
    if not is_empty:
        raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"The group {group_id} is not empty.")
    decision = GroupDecision()
    decision.records.extend(
        offset_tombstone(group_id, where) for where in sorted(shard.known_offsets_of(group_id))
    )
    if consumer_group is not None:
        decision.records.extend(group_tombstones(consumer_group))
    else:
        decision.records.append(group_tombstone(group_id))
    decision.replies.append((caller.ticket, DeletableGroupResult(group_id=group_id)))
    return decision
