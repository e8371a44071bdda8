"""ListGroups, DescribeGroups and DeleteGroups: what administrators see and end."""

from typing import Final

from headrace_broker.coordinator.decision import Caller, Decision
from headrace_broker.coordinator.group import Group
from headrace_broker.coordinator.shard import GroupShard, group_tombstone, offset_tombstone
from headrace_broker.coordinator.states import GroupState
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.delete_groups import DeletableGroupResult
from headrace_broker.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from headrace_broker.protocol.messages.list_groups import ListedGroup, ListGroupsRequest

CLASSIC_GROUP_TYPE: Final = "classic"
_VERSION_THAT_SAYS_GROUP_NOT_FOUND: Final = 6


def list_groups(shard: GroupShard, request: ListGroupsRequest) -> list[ListedGroup]:
    """Return the shard's groups that pass both filters; an empty filter lets all pass."""
    states = {state.lower() for state in request.states_filter}
    types = {name.lower() for name in request.types_filter}
    if types and CLASSIC_GROUP_TYPE not in types:
        return []
    return [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=CLASSIC_GROUP_TYPE,
        )
        for group in shard.groups.values()
        if not states or group.state.value.lower() in states
    ]


def describe_group(shard: GroupShard, group_id: str, api_version: int) -> DescribedGroup:
    """Describe one group; one that is not there is Dead, from version 6 on with an error too."""
    group = shard.groups.get(group_id)
    if group is None:
        dead = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        if api_version >= _VERSION_THAT_SAYS_GROUP_NOT_FOUND:
            dead.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            dead.error_message = f"Group {group_id} not found."
        return dead
    is_stable = group.state is GroupState.STABLE
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        # Between two generations there is no protocol that the assignments belong to.
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


def decide_delete_group(shard: GroupShard, group_id: str, caller: Caller) -> Decision:
    """End an empty group and all its offsets; the reply is its `DeletableGroupResult`."""
    group = shard.find(group_id)
    if group.state is not GroupState.EMPTY:
        raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"The group {group_id} is not empty.")
    decision = Decision()
    decision.records.extend(
        offset_tombstone(group_id, where) for where in shard.offsets_of(group_id)
    )
    decision.records.append(group_tombstone(group_id))
    decision.replies.append((caller.ticket, DeletableGroupResult(group_id=group_id)))
    return decision
