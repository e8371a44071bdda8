"""Members that speak the classic protocol in a consumer group, which may become a classic one."""

from dataclasses import replace
from typing import Any

import pytest

from headrace_broker.coordinator import protocols
from headrace_broker.coordinator.admin import describe_group
from headrace_broker.coordinator.consumer.embedded import read_assignment
from headrace_broker.coordinator.states import GroupState
from headrace_broker.protocol.codec import encode_bytes
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.heartbeat import HeartbeatRequest
from headrace_broker.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from headrace_broker.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace_broker.protocol.messages.records.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
)
from headrace_broker.protocol.messages.records.consumer_protocol_subscription import (
    TopicPartition as OwnedPartition,
)
from headrace_broker.protocol.messages.sync_group import SyncGroupRequest
from support.consumer_groups import GROUP, ConsumerSimulation
from support.groups import subscription


def join_request(*assignors: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[
            JoinGroupRequestProtocol(name=name, metadata=subscription("t")) for name in assignors
        ],
    )


def classic_join(simulation: ConsumerSimulation, name: str, *assignors: str, **fields: Any) -> Any:
    """Join as an old client does, which is given its id at once; None: the answer has to wait."""
    caller = simulation.caller(name, version=3)
    request = join_request(*(assignors or ("range",)))
    for key, value in fields.items():
        setattr(request, key, value)
    simulation.carry_out(
        protocols.decide_join(simulation.shard, request, caller, simulation.context)
    )
    return simulation.answers.get(caller.ticket)


def sync(simulation: ConsumerSimulation, joined: Any) -> Any:
    caller = simulation.caller("", version=5)
    request = SyncGroupRequest(
        group_id=GROUP, generation_id=joined.generation_id, member_id=joined.member_id
    )
    simulation.carry_out(
        protocols.decide_sync(simulation.shard, request, caller, simulation.context)
    )
    return simulation.answers[caller.ticket]


def test_a_classic_member_joins_a_consumer_group_that_has_members_and_gets_its_share() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    joined = classic_join(simulation, "old", "range", "sticky")
    assert joined.error_code == ErrorCode.NONE
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    assert joined.generation_id == simulation.group.epoch == 2
    assert set(simulation.group.members) == {"m-a", joined.member_id}
    simulation.heartbeat("a")
    simulation.heartbeat("a")
    again = classic_join(simulation, "old", "range", "sticky", member_id=joined.member_id)
    member = simulation.group.members[joined.member_id]
    assert [len(items) for items in member.assigned.values()] == [3]
    answer = sync(simulation, again)
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    found = read_assignment(answer.assignment)
    assert found is not None
    assert [len(items) for items in found.partitions.values()] == [3]


def heartbeat(simulation: ConsumerSimulation, joined: Any) -> int:
    caller = simulation.caller("", version=4)
    request = HeartbeatRequest(
        group_id=GROUP, generation_id=joined.generation_id, member_id=joined.member_id
    )
    simulation.carry_out(
        protocols.decide_heartbeat(simulation.shard, request, caller, simulation.context)
    )
    code: int = simulation.answers[caller.ticket].error_code
    return code


def test_a_classic_member_is_told_to_join_again_when_the_group_has_changed() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a", topics=["other"])  # which nobody has to wait for
    joined = classic_join(simulation, "old")
    assert heartbeat(simulation, joined) == ErrorCode.NONE
    simulation.join("b")
    assert heartbeat(simulation, joined) == ErrorCode.REBALANCE_IN_PROGRESS
    with pytest.raises(ApiError) as caught:
        heartbeat(simulation, replace(joined, generation_id=joined.generation_id - 1))
    assert caught.value.code is ErrorCode.ILLEGAL_GENERATION
    again = classic_join(simulation, "old", member_id=joined.member_id)
    assert again.generation_id == simulation.group.epoch > joined.generation_id


def test_a_classic_member_that_beats_and_never_asks_for_its_share_is_fenced() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a", topics=["other"])
    joined = classic_join(simulation, "old")
    for _ in range(2):
        simulation.advance(29_000)
        assert heartbeat(simulation, joined) == ErrorCode.NONE
        simulation.heartbeat("a")
    assert joined.member_id in simulation.group.members
    simulation.advance(2_000)
    assert set(simulation.group.members) == {"m-a"}


def test_a_classic_member_that_beats_and_does_not_join_again_is_fenced() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a", topics=["other"])
    joined = classic_join(simulation, "old")
    sync(simulation, joined)
    simulation.join("b")
    for _ in range(2):
        assert heartbeat(simulation, joined) == ErrorCode.REBALANCE_IN_PROGRESS
        simulation.advance(29_000)
        for name in "ab":
            simulation.heartbeat(name)
    assert joined.member_id in simulation.group.members
    simulation.advance(2_000)
    assert set(simulation.group.members) == {"m-a", "m-b"}


def test_who_is_named_twice_leaves_once() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    one, two = (classic_join(simulation, name) for name in ("one", "two"))
    identities = [
        MemberIdentity(member_id=name) for name in (one.member_id, one.member_id, "nobody")
    ]
    caller = simulation.caller("admin", version=5)
    request = LeaveGroupRequest(group_id=GROUP, members=identities)
    simulation.carry_out(
        protocols.decide_leave(simulation.shard, request, caller, simulation.context)
    )
    assert [each.error_code for each in simulation.answers[caller.ticket].members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert set(simulation.group.members) == {"m-a", two.member_id}


def test_a_static_member_may_come_back_with_the_classic_protocol_as_the_last_of_all() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a", instance_id="i")
    other = classic_join(simulation, "one")
    assert classic_join(simulation, "two", group_instance_id="i") is None, "it waits for the others"
    assert not simulation.shard.consumer_groups
    group = simulation.shard.groups[GROUP]
    assert group.state is GroupState.PREPARING_REBALANCE
    assert set(group.members) == {other.member_id, group.static_members["i"]}
    again = classic_join(simulation, "one", member_id=other.member_id)
    assert again.error_code == ErrorCode.NONE
    assert again.generation_id > other.generation_id
    (waited,) = [
        each
        for each in simulation.answers.values()
        if getattr(each, "member_id", "") == group.static_members["i"]
    ]
    assert (waited.error_code, waited.generation_id) == (ErrorCode.NONE, again.generation_id)
    simulation.restart()
    loaded = simulation.shard.groups[GROUP]
    assert loaded.static_members == group.static_members


def test_what_a_classic_member_subscribes_to_is_read_from_its_first_protocol() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    request = join_request("range", "strange")
    request.protocols[1].metadata = b"of an assignor that has a format of its own"
    caller = simulation.caller("old", version=3)
    simulation.carry_out(
        protocols.decide_join(simulation.shard, request, caller, simulation.context)
    )
    joined = simulation.answers[caller.ticket]
    assert simulation.group.members[joined.member_id].topic_names == ("t",)


def test_a_classic_member_says_its_rack_and_what_it_still_owns() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    joined = classic_join(simulation, "old")
    said = ConsumerProtocolSubscription(
        topics=["t"],
        owned_partitions=[OwnedPartition(topic=name, partitions=[0]) for name in ("t", "deleted")],
        rack_id="r1",
    )
    metadata = (3).to_bytes(2, "big") + encode_bytes(said, 3)
    protocol = JoinGroupRequestProtocol(name="range", metadata=metadata)
    classic_join(simulation, "old", member_id=joined.member_id, protocols=[protocol])
    member = simulation.group.members[joined.member_id]
    assert member.rack_id == "r1"


def test_a_classic_member_whose_protocols_no_other_one_has_is_refused() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    classic_join(simulation, "old", "range")
    with pytest.raises(ApiError) as caught:
        classic_join(simulation, "other", "sticky")
    assert caught.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_consumer_group_without_members_becomes_a_classic_one() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    simulation.leave("a")
    classic_join(simulation, "old")
    assert GROUP not in simulation.shard.consumer_groups
    assert list(simulation.shard.groups) == [GROUP]


def test_a_group_whose_last_native_member_leaves_goes_on_with_a_protocol_that_all_have() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    first = classic_join(simulation, "one", "sticky", "range")
    second = classic_join(simulation, "two", "range")
    simulation.leave("a")
    assert not simulation.shard.consumer_groups
    group = simulation.shard.groups[GROUP]
    assert group.state is GroupState.PREPARING_REBALANCE
    assert set(group.members) == {first.member_id, second.member_id}
    # A coordinator that loads the group before they have joined again knows their subscriptions.
    simulation.restart()
    loaded = describe_group(simulation.shard, GROUP, 6)
    assert (loaded.group_state, loaded.protocol_data) == ("Stable", "range")
    assert [bytes(each.member_metadata) for each in loaded.members] == [subscription("t")] * 2


@pytest.mark.parametrize("size_max", [1, 2])
def test_a_classic_member_of_a_full_group_may_change_its_protocol(size_max: int) -> None:
    simulation = ConsumerSimulation(size_max=size_max)
    classic_join(simulation, "one")
    classic_join(simulation, "two")
    ids = list(simulation.shard.groups[GROUP].members)
    assert len(ids) == 2
    answer = simulation.join("one", member_id=ids[0])
    if size_max < len(ids):
        assert answer is ErrorCode.GROUP_ID_NOT_FOUND, "the group is too large for this protocol"
    else:
        assert answer.error_code == ErrorCode.NONE
        assert set(simulation.group.members) == set(ids)
