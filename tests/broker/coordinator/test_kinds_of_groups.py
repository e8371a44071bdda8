"""What each kind of group is to a request that is meant for another kind."""

import pytest

from headrace_broker.coordinator.admin import describe_group
from headrace_broker.coordinator.config import ConsumerGroupConfig
from headrace_broker.coordinator.consumer.describe import describe_consumer_group
from headrace_broker.coordinator.consumer.group import ConsumerGroup
from headrace_broker.coordinator.group import Group
from headrace_broker.coordinator.modern.topics import TopicsView
from headrace_broker.coordinator.protocols import decide_join
from headrace_broker.coordinator.shard import GroupShard
from headrace_broker.coordinator.share.admin import describe_share_group
from headrace_broker.coordinator.share.group import ShareGroup
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace_broker.protocol.types import PartitionIndex
from support.consumer_groups import GROUP, ConsumerSimulation
from support.groups import subscription

KINDS = ("classic", "consumer", "share")


@pytest.fixture
def shard():
    shard = GroupShard(partition=PartitionIndex(0))
    shard.groups["classic"] = Group(group_id="classic")
    shard.consumer_groups["consumer"] = ConsumerGroup(group_id="consumer")
    shard.share_groups["share"] = ShareGroup(group_id="share")
    return shard


def describe(shard, kind, group_id):
    topics = TopicsView(by_id={}, by_name={})
    match kind:
        case "classic":
            return describe_group(shard, group_id, 6)
        case "consumer":
            return describe_consumer_group(shard, group_id, ConsumerGroupConfig(), topics)
        case _:
            return describe_share_group(shard, group_id, topics)


@pytest.mark.parametrize("asked", KINDS)
@pytest.mark.parametrize("kind", [*KINDS, "missing"])
def test_each_way_to_describe_tells_another_kind_from_none(shard, asked, kind):
    described = describe(shard, asked, kind)
    if kind == asked:
        assert described.error_code == ErrorCode.NONE
        return
    what = "not found" if kind == "missing" else f"is not a {asked} group"
    assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert described.error_message == f"Group {kind} {what}."


@pytest.fixture
def share_group():
    """A group of that kind where the other kinds' requests are expected."""
    simulation = ConsumerSimulation()
    simulation.shard.share_groups[GROUP] = ShareGroup(group_id=GROUP)
    return simulation


def test_a_share_group_has_no_offsets(share_group):
    assert share_group.commit("simple", 5, epoch=-1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert not share_group.shard.groups


def test_a_share_group_takes_no_classic_member(share_group):
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("t"))],
    )
    with pytest.raises(ApiError) as caught:
        decide_join(share_group.shard, request, share_group.caller("a"), share_group.context)
    assert caught.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert not share_group.shard.groups
