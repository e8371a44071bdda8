"""Members of share groups: joining, sharing, leaving, fencing, and coordinators that take over."""

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_broker.coordinator.admin import decide_delete_group, list_groups
from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.consumer.loading import finish_loading_modern_groups
from headrace_broker.coordinator.consumer.step import ConsumerContext
from headrace_broker.coordinator.decision import Caller, Ticket, TimerKey, TimerKind
from headrace_broker.coordinator.modern.topics import TopicsView, TopicView
from headrace_broker.coordinator.protocols import decide_timer
from headrace_broker.coordinator.records import read_record, write_record
from headrace_broker.coordinator.shard import GroupShard, replay
from headrace_broker.coordinator.share.assignor import assign_simple
from headrace_broker.coordinator.share.heartbeat import (
    decide_initialized,
    decide_share_heartbeat,
)
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.list_groups import ListGroupsRequest
from headrace_broker.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from headrace_broker.protocol.types import PartitionIndex, TimestampMs

T = UUID(int=1)


class Coordinator:
    """A shard with its log, and a share coordinator that makes state at once."""

    def __init__(self, partitions=3):
        self.shard = GroupShard(partition=PartitionIndex(0))
        self.log = []
        topics = [TopicView(topic_id=T, name="t", partition_count=partitions)]
        self.context = ConsumerContext(
            config=GroupConfig(), topics=TopicsView.of(topics), now_ms=TimestampMs(0)
        )

    def carry_out(self, decision):
        for record in decision.records:
            self.log.append(write_record(record))
            replay(self.shard, record)
        for wanted in decision.initializations:
            self.carry_out(
                decide_initialized(self.shard, wanted.group_id, wanted.partitions, self.context)
            )
        return decision

    def beat(self, member, epoch=0, topics=("t",), group="g"):
        request = ShareGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            subscribed_topic_names=list(topics) if epoch == 0 else None,
        )
        caller = Caller(ticket=Ticket(1), api_version=1)
        decision = decide_share_heartbeat(self.shard, request, caller, self.context)
        return self.carry_out(decision).replies[0][1]

    def settle(self, *members):
        """Let members beat until nothing changes; return what each has."""
        epochs = {}
        for _ in range(3):
            for member in members:
                known = self.shard.share_groups["g"].members[member].epoch
                epochs[member] = self.beat(member, known).member_epoch
        group = self.shard.share_groups["g"]
        return {member: group.members[member].assigned.get(T, frozenset()) for member in members}


def test_a_member_has_its_partitions_once_their_state_is_made():
    coordinator = Coordinator()
    first = coordinator.beat("a")
    assert first.assignment.topic_partitions == []
    again = coordinator.beat("a")
    assert sorted(again.assignment.topic_partitions[0].partitions) == [0, 1, 2]
    assert coordinator.beat("a", again.member_epoch).assignment is None, "nothing new"


def test_members_spread_over_partitions_and_share_them_when_there_are_more():
    coordinator = Coordinator(2)
    for member in "abc":
        coordinator.beat(member)
    held = coordinator.settle("a", "b", "c")
    assert frozenset.union(*held.values()) == {0, 1}
    assert all(len(items) == 1 for items in held.values())


def test_what_a_member_had_goes_to_the_others_when_it_leaves_or_is_silent():
    coordinator = Coordinator()
    for member in "abc":
        coordinator.beat(member)
    coordinator.settle("a", "b", "c")
    coordinator.beat("c", -1)
    held = coordinator.settle("a", "b")
    assert frozenset.union(*held.values()) == {0, 1, 2}
    key = TimerKey(kind=TimerKind.SESSION, group_id="g", member_id="b")
    coordinator.carry_out(decide_timer(coordinator.shard, key, coordinator.context))
    assert coordinator.settle("a") == {"a": {0, 1, 2}}


@pytest.mark.parametrize(
    ("member", "epoch", "code"),
    [
        ("a", 99, ErrorCode.FENCED_MEMBER_EPOCH),
        ("a", 1, ErrorCode.FENCED_MEMBER_EPOCH),
        ("nobody", 4, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", 0, ErrorCode.INVALID_REQUEST),
        ("a", -2, ErrorCode.INVALID_REQUEST),
    ],
)
def test_who_is_not_in_the_group_s_epoch_is_refused(member, epoch, code):
    coordinator = Coordinator()
    coordinator.beat("a")
    coordinator.beat("b")
    coordinator.settle("a", "b")
    coordinator.beat("c")
    coordinator.settle("a", "b", "c")
    with pytest.raises(ApiError) as error:
        coordinator.beat(member, epoch)
    assert error.value.code is code


def test_a_group_that_is_full_takes_nobody_more():
    coordinator = Coordinator()
    for number in range(200):
        coordinator.beat(f"m{number}")
    with pytest.raises(ApiError) as error:
        coordinator.beat("one-more")
    assert error.value.code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_another_coordinator_goes_on_where_the_former_stopped():
    coordinator = Coordinator()
    for member in "ab":
        coordinator.beat(member)
    coordinator.settle("a", "b")
    other = Coordinator()
    for key, value in coordinator.log:
        replay(other.shard, read_record(key, value))
    assert other.shard.share_groups == coordinator.shard.share_groups
    timers = finish_loading_modern_groups(other.shard, lambda _: GroupConfig()).timers
    assert {timer.key.member_id for timer in timers} == {"a", "b"}


def test_administrators_see_share_groups_and_end_empty_ones():
    coordinator = Coordinator()
    coordinator.beat("a")
    listed = list_groups(coordinator.shard, ListGroupsRequest(types_filter=["Share"]))
    assert [(item.group_id, item.group_type, item.group_state) for item in listed] == [
        ("g", "share", "Stable")
    ]
    caller = Caller(ticket=Ticket(1), api_version=2)
    with pytest.raises(ApiError) as error:
        decide_delete_group(coordinator.shard, "g", caller)
    assert error.value.code is ErrorCode.NON_EMPTY_GROUP
    coordinator.beat("a", -1)
    coordinator.carry_out(decide_delete_group(coordinator.shard, "g", caller))
    assert coordinator.shard.share_groups == {}


def test_whoever_is_left_without_a_partition_shares_the_one_with_the_fewest_members():
    targets = assign_simple(dict.fromkeys("abcd", frozenset({T})), {T: frozenset({0, 1})}, {})
    assert sorted(min(target[T]) for target in targets.values()) == [0, 0, 1, 1]


members = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=2),
    st.sets(st.integers(1, 3), min_size=1).map(
        lambda numbers: frozenset(UUID(int=number) for number in numbers)
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None)
@given(st.lists(members, min_size=1, max_size=4), st.integers(1, 5))
def test_every_partition_has_a_member_and_every_member_a_partition(groups, count):
    current = {}
    for subscriptions in groups:
        wanted = frozenset().union(*subscriptions.values())
        partitions = {topic_id: frozenset(range(count)) for topic_id in wanted}
        current = assign_simple(subscriptions, partitions, current)
        assert current.keys() == subscriptions.keys()
        covered = set()
        for member, target in current.items():
            assert target, "a member without anything"
            assert target.keys() <= subscriptions[member]
            covered |= {(topic_id, index) for topic_id in target for index in target[topic_id]}
        assert covered == {(topic_id, index) for topic_id in wanted for index in range(count)}
        if len(set(subscriptions.values())) == 1:
            assert assign_simple(subscriptions, partitions, current) == current, "stable"
