"""Static members keep their place over a restart (KIP-345, KIP-814)."""

from headrace_broker.coordinator.states import GroupState
from headrace_broker.protocol.errors import ErrorCode
from support.groups import Client, GroupSimulation, subscription


def stable_static() -> GroupSimulation:
    simulation = GroupSimulation()
    simulation.client("a").instance_id = "i-a"
    simulation.client("b").instance_id = "i-b"
    simulation.stable("a", "b")
    return simulation


def test_a_static_member_joins_in_one_step():
    simulation = GroupSimulation()
    answer = simulation.join("a", instance_id="i-a")
    assert answer.error_code == ErrorCode.NONE
    assert answer.member_id.startswith("i-a-")


def test_a_restarted_static_member_gets_its_assignment_back_without_a_rebalance():
    simulation = stable_static()
    generation = simulation.group.generation
    follower = simulation.client("b")
    simulation.clients["b"] = Client(instance_id="i-b")
    answer = simulation.join("b")
    assert answer.error_code == ErrorCode.NONE
    assert answer.generation_id == generation
    assert answer.member_id != follower.member_id
    assert simulation.sync("b").assignment == b"work of b"
    assert simulation.heartbeat("a").error_code == ErrorCode.NONE


def test_the_former_incarnation_is_fenced():
    simulation = stable_static()
    simulation.clients["old b"] = simulation.client("b")
    simulation.clients["b"] = Client(instance_id="i-b")
    simulation.join("b")
    assert simulation.heartbeat("old b").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert simulation.commit("old b", 5).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert simulation.join("old b").error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_restarted_static_leader_has_to_keep_the_assignment():
    simulation = stable_static()
    simulation.clients["a"] = Client(instance_id="i-a")
    answer = simulation.join("a")
    assert answer.leader == answer.member_id
    assert answer.skip_assignment
    assert len(answer.members) == 2


def test_an_older_client_that_led_hears_that_its_former_self_leads():
    simulation = stable_static()
    former = simulation.client("a").member_id
    simulation.clients["a"] = Client(instance_id="i-a")
    answer = simulation.join("a", version=8)
    assert answer.leader == former != answer.member_id
    assert answer.members == []
    assert not answer.skip_assignment


def test_a_restarted_static_member_with_another_subscription_starts_a_rebalance():
    simulation = stable_static()
    simulation.clients["b"] = Client(instance_id="i-b")
    assert simulation.join("b", protocols=[("range", subscription("other"))]) is None
    assert simulation.group.state.value == "PreparingRebalance"


def test_a_restarted_static_member_that_falls_silent_loses_its_place():
    simulation = stable_static()
    simulation.clients["b"] = Client(instance_id="i-b")
    simulation.join("b")
    assert len(simulation.group.members) == 2
    simulation.advance(10_000)
    assert not simulation.group.members


def test_the_replacement_survives_a_failover():
    simulation = stable_static()
    simulation.clients["b"] = Client(instance_id="i-b")
    simulation.join("b")
    simulation.restart()
    assert simulation.heartbeat("b").error_code == ErrorCode.NONE


def test_an_administrator_removes_a_static_member_by_instance_id():
    simulation = stable_static()
    answer = simulation.leave("b", by_instance_id=True)
    assert [item.error_code for item in answer.members] == [ErrorCode.NONE]
    assert simulation.heartbeat("a").error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_that_is_away_keeps_its_place_through_a_rebalance():
    simulation = GroupSimulation()
    simulation.client("b").instance_id = "i-b"
    simulation.stable("a", "b", session_timeout_ms=300_000, rebalance_timeout_ms=20_000)
    simulation.enter("c", session_timeout_ms=300_000, rebalance_timeout_ms=20_000)
    simulation.join("a", session_timeout_ms=300_000, rebalance_timeout_ms=20_000)
    simulation.advance(20_000)
    assert simulation.client("b").member_id in simulation.client("a").members


def test_a_static_member_that_comes_back_before_the_leader_assigned_has_all_join_again():
    """The leader knows the former member id, and would assign to nobody."""
    simulation = stable_static()
    simulation.enter("c")
    for name in "ab":
        simulation.join(name)
    assert simulation.group.state is GroupState.COMPLETING_REBALANCE
    simulation.clients["b"] = Client(instance_id="i-b")
    assert simulation.join("b") is None
    assert simulation.group.state is GroupState.PREPARING_REBALANCE
    for name in "ac":
        simulation.join(name)
    assert simulation.group.state is GroupState.COMPLETING_REBALANCE
    (leader,) = (each for each in "abc" if simulation.client(each).members)
    assert simulation.client("b").member_id in simulation.client(leader).members


def test_members_that_wait_are_fenced_when_their_instance_id_is_taken_over():
    simulation = GroupSimulation(initial_rebalance_delay_ms=3_000)
    assert simulation.join("a", instance_id="i") is None
    simulation.join("b", instance_id="i")
    assert simulation.lines[-1].split() == ["a", "←", "FENCED_INSTANCE_ID"]
    simulation.advance(6_000)
    assert len(simulation.group.members) == 1
