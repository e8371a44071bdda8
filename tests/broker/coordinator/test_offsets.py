"""Committed offsets: who may commit, what is kept, and when it goes (KIP-211, KIP-496)."""

from uuid import UUID

import pytest

from headrace_broker.coordinator.admin import decide_delete_group, describe_group, list_groups
from headrace_broker.coordinator.decision import Caller, Ticket
from headrace_broker.coordinator.expiry import decide_topics_deleted
from headrace_broker.coordinator.offsets import decide_offset_delete, read_offsets
from headrace_broker.coordinator.transactional_offsets import decide_txn_commit
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.list_groups import ListGroupsRequest
from headrace_broker.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace_broker.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headrace_broker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace_broker.protocol.types import TimestampMs
from support.groups import GROUP, GroupSimulation, subscription

DAY_MS = 24 * 60 * 60 * 1000
WEEK_MS = 7 * DAY_MS


def error_of(answer) -> ErrorCode:
    if hasattr(answer, "error_code"):
        return answer.error_code
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def no_id(_name: str) -> UUID:
    return UUID(int=0)


def fetched(simulation: GroupSimulation, topic: str = "t", *, require_stable: bool = False):
    request = OffsetFetchRequestGroup(
        group_id=GROUP, topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    )
    answer = read_offsets(simulation.shard, request, no_id, require_stable=require_stable)
    return answer.topics[0].partitions[0]


def delete(simulation: GroupSimulation, topic: str = "t"):
    request = OffsetDeleteRequest(
        group_id=GROUP,
        topics=[
            OffsetDeleteRequestTopic(
                name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=0)]
            )
        ],
    )
    caller = Caller(ticket=Ticket(10_000), api_version=0)
    decision = decide_offset_delete(
        simulation.shard, request, caller, lambda name: name != "missing"
    )
    response = decision.replies.pop()[1]
    simulation.carry_out(decision)
    return response.topics[0].partitions[0].error_code


def test_a_commit_keeps_offset_leader_epoch_and_metadata():
    simulation = GroupSimulation()
    assert error_of(simulation.commit("tool", 42, metadata="how far")) == ErrorCode.NONE
    answer = fetched(simulation)
    assert (answer.committed_offset, answer.committed_leader_epoch) == (42, 3)
    assert answer.metadata == "how far"


def test_what_was_never_committed_is_minus_one_without_an_error():
    answer = fetched(GroupSimulation())
    assert (answer.committed_offset, answer.metadata, answer.error_code) == (-1, "", 0)


def test_a_group_that_nobody_joined_is_empty_and_has_offsets():
    simulation = GroupSimulation()
    simulation.commit("tool", 42)
    assert simulation.group.state.value == "Empty"
    listed = list_groups(simulation.shard, ListGroupsRequest(states_filter=["empty"]))
    assert [item.group_id for item in listed] == [GROUP]


def test_members_commit_and_strangers_may_not_while_there_are_members():
    simulation = GroupSimulation()
    simulation.stable("a")
    assert error_of(simulation.commit("a", 7)) == ErrorCode.NONE
    assert error_of(simulation.commit("tool", 8)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert fetched(simulation).committed_offset == 7


def test_a_member_may_commit_while_others_join_but_not_before_it_is_assigned():
    simulation = GroupSimulation()
    simulation.stable("a")
    simulation.enter("b")
    assert error_of(simulation.commit("a", 7)) == ErrorCode.NONE
    simulation.join("a")
    assert error_of(simulation.commit("a", 8)) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_transaction_may_end_in_its_generation_before_its_member_is_assigned():
    simulation = GroupSimulation()
    simulation.stable("a")
    simulation.enter("b")
    simulation.join("a")
    assert simulation.group.state.value == "CompletingRebalance"
    member = simulation.clients["a"].member_id

    def commit(generation: int) -> ErrorCode:
        partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=9)
        request = TxnOffsetCommitRequest(
            group_id=GROUP,
            generation_id=generation,
            member_id=member,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
        caller = Caller(ticket=Ticket(1), client_id="a", client_host="/::1", api_version=5)
        decision = decide_txn_commit(
            simulation.shard,
            simulation.config,
            request,
            caller,
            TimestampMs(0),
            lambda _topic, _index: ErrorCode.NONE,
        )
        assert len(decision.records) == 1
        return error_of(decision.replies[0][1])

    assert commit(simulation.group.generation) is ErrorCode.NONE
    with pytest.raises(ApiError) as caught:
        commit(simulation.group.generation - 1)
    assert caught.value.code is ErrorCode.ILLEGAL_GENERATION


def test_a_commit_is_a_sign_of_life():
    simulation = GroupSimulation()
    simulation.stable("a")
    for offset in range(5):
        simulation.advance(9_000)
        assert error_of(simulation.commit("a", offset)) == ErrorCode.NONE


def test_a_generation_in_a_group_that_is_not_there_is_refused_and_makes_no_group():
    simulation = GroupSimulation()
    simulation.client("a").generation = 3
    assert error_of(simulation.commit("a", 1)) == ErrorCode.GROUP_ID_NOT_FOUND
    assert not simulation.shard.groups


def test_long_metadata_is_refused_and_nothing_kept():
    simulation = GroupSimulation(offset_metadata_bytes_max=10)
    for metadata in ("é" * 11, "😀" * 6):
        assert error_of(simulation.commit("tool", 1, metadata=metadata)) == (
            ErrorCode.OFFSET_METADATA_TOO_LARGE
        )
    assert not simulation.shard.groups
    for metadata in ("é" * 10, "😀" * 5):
        assert error_of(simulation.commit("tool", 1, metadata=metadata)) == ErrorCode.NONE


def test_all_offsets_of_a_group_are_fetched_when_no_topics_are_named():
    simulation = GroupSimulation()
    simulation.commit("tool", 1, topic="t")
    simulation.commit("tool", 2, topic="u")
    request = OffsetFetchRequestGroup(group_id=GROUP, topics=None)
    answer = read_offsets(simulation.shard, request, no_id, require_stable=True)
    found = {topic.name: topic.partitions[0].committed_offset for topic in answer.topics}
    assert found == {"t": 1, "u": 2}


def test_an_offset_of_an_open_transaction_is_unstable_for_who_asks_for_stable_ones():
    simulation = GroupSimulation()
    simulation.commit("tool", 1)
    simulation.shard.pending_offsets[GROUP] = {("t", 0)}
    assert fetched(simulation).committed_offset == 1
    assert fetched(simulation, require_stable=True).error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT


def test_offsets_of_a_group_in_use_never_expire():
    simulation = GroupSimulation()
    simulation.stable("a", session_timeout_ms=1_800_000)
    simulation.commit("a", 7)
    for _ in range(14 * 24 * 4):
        simulation.advance(DAY_MS // 96)
        simulation.heartbeat("a")
    simulation.expire()
    assert fetched(simulation).committed_offset == 7


def test_retention_counts_from_when_the_group_became_empty():
    simulation = GroupSimulation()
    simulation.stable("a", session_timeout_ms=1_800_000)
    simulation.commit("a", 7)
    for _ in range(8 * 24 * 4):
        simulation.advance(DAY_MS // 96)
        simulation.heartbeat("a")
    simulation.leave("a")
    simulation.advance(WEEK_MS - 1)
    simulation.expire()
    assert fetched(simulation).committed_offset == 7
    simulation.restart()
    simulation.advance(1)
    simulation.expire()
    assert fetched(simulation).committed_offset == -1
    assert not simulation.shard.groups
    assert not simulation.replayed().groups


def test_a_simple_consumers_offsets_expire_by_their_commit():
    simulation = GroupSimulation()
    simulation.commit("tool", 1, topic="t")
    simulation.advance(DAY_MS)
    simulation.commit("tool", 2, topic="u")
    simulation.advance(WEEK_MS - DAY_MS)
    simulation.expire()
    assert fetched(simulation, "t").committed_offset == -1
    assert fetched(simulation, "u").committed_offset == 2


def test_an_offset_that_has_its_own_time_is_the_same_after_a_failover():
    """The version of its record that names the time has neither leader epoch nor topic id."""
    simulation = GroupSimulation()
    simulation.commit("tool", 1, retention_ms=1_000)
    assert simulation.replayed().offsets == simulation.shard.offsets


def test_an_explicit_retention_of_an_old_client_is_kept_to():
    simulation = GroupSimulation()
    simulation.commit("tool", 1, retention_ms=1_000)
    simulation.restart()
    simulation.advance(999)
    simulation.expire()
    assert fetched(simulation).committed_offset == 1
    simulation.advance(1)
    simulation.expire()
    assert fetched(simulation).committed_offset == -1


def test_a_stable_groups_offsets_of_topics_it_left_expire():
    simulation = GroupSimulation()
    simulation.commit("tool", 1, topic="left")
    simulation.commit("tool", 1, topic="t")
    simulation.stable("a", session_timeout_ms=1_800_000)
    for _ in range(8 * 24 * 4):
        simulation.advance(DAY_MS // 96)
        simulation.heartbeat("a")
    simulation.expire()
    assert fetched(simulation, "left").committed_offset == -1
    assert fetched(simulation, "t").committed_offset == 1


def test_a_deleted_topic_takes_its_offsets_along():
    simulation = GroupSimulation()
    simulation.commit("tool", 1, topic="t")
    simulation.commit("tool", 2, topic="u")
    simulation.carry_out(decide_topics_deleted(simulation.shard, {"t"}))
    assert fetched(simulation, "t").committed_offset == -1
    assert fetched(simulation, "u").committed_offset == 2


def test_a_topic_recreated_does_not_inherit_offsets():
    simulation = GroupSimulation()
    simulation.commit("tool", 1)
    simulation.shard.offsets[GROUP]["t", 0].topic_id = UUID(int=1)
    for topics in (None, [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]):
        request = OffsetFetchRequestGroup(group_id=GROUP, topics=topics)
        offsets = [
            [item.committed_offset for topic in answer.topics for item in topic.partitions]
            for topic_id in (UUID(int=1), UUID(int=2))
            for answer in [
                read_offsets(
                    simulation.shard, request, {"t": topic_id}.__getitem__, require_stable=False
                )
            ]
        ]
        assert offsets == [[1], [] if topics is None else [-1]]


def test_offsets_of_a_subscribed_topic_cannot_be_deleted():
    simulation = GroupSimulation()
    simulation.stable("a")
    simulation.commit("a", 1, topic="t")
    simulation.commit("a", 2, topic="u")
    assert delete(simulation, "t") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete(simulation, "u") == ErrorCode.NONE
    assert delete(simulation, "missing") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetched(simulation, "t").committed_offset == 1
    assert fetched(simulation, "u").committed_offset == -1


def test_offsets_of_members_that_are_no_consumers_cannot_be_deleted():
    simulation = GroupSimulation()
    simulation.stable("a", protocol_type="connect", protocols=[("default", b"\x00")])
    with pytest.raises(ApiError, match="NON_EMPTY_GROUP"):
        delete(simulation)


def test_only_an_empty_group_is_deleted_and_then_nothing_is_left():
    simulation = GroupSimulation()
    simulation.stable("a")
    simulation.commit("a", 1)
    caller = Caller(ticket=Ticket(10_000), api_version=2)
    with pytest.raises(ApiError, match="NON_EMPTY_GROUP"):
        decide_delete_group(simulation.shard, GROUP, caller)
    simulation.leave("a")
    decision = decide_delete_group(simulation.shard, GROUP, caller)
    decision.replies.clear()
    simulation.carry_out(decision)
    assert not simulation.shard.groups
    assert not simulation.shard.offsets
    assert not simulation.replayed().groups
    with pytest.raises(ApiError, match="GROUP_ID_NOT_FOUND"):
        decide_delete_group(simulation.shard, GROUP, caller)


def test_a_stable_group_is_described_with_assignments_and_a_missing_one_is_dead():
    simulation = GroupSimulation()
    simulation.stable("a", protocols=[("range", subscription("t"))])
    described = describe_group(simulation.shard, GROUP, 6)
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    assert described.members[0].member_assignment == b"work of a"
    assert described.members[0].client_host == "/127.0.0.1"
    missing = describe_group(simulation.shard, "missing", 6)
    assert (missing.group_state, missing.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
    assert describe_group(simulation.shard, "missing", 5).error_code == ErrorCode.NONE


def test_groups_are_listed_by_state_and_type():
    simulation = GroupSimulation()
    simulation.stable("a")

    def listed(**filters):
        return [
            item.group_id for item in list_groups(simulation.shard, ListGroupsRequest(**filters))
        ]

    assert listed() == [GROUP]
    assert listed(states_filter=["Stable"], types_filter=["Classic"]) == [GROUP]
    assert listed(states_filter=["Empty"]) == []
    assert listed(types_filter=["consumer"]) == []


def test_a_group_of_offsets_alone_is_gone_with_the_last_of_them():
    simulation = GroupSimulation()
    simulation.commit("tool", 1, topic="t")
    simulation.commit("tool", 2, topic="u")
    simulation.carry_out(decide_topics_deleted(simulation.shard, {"t"}))
    assert GROUP in simulation.shard.groups
    simulation.carry_out(decide_topics_deleted(simulation.shard, {"u"}))
    assert GROUP not in simulation.shard.groups
