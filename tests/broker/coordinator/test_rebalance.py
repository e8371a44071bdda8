"""Transcripts of the classic protocol: what clients ask, what is answered, what is kept."""

from inspect import cleandoc

from headrace_broker.protocol.errors import ErrorCode
from support.groups import GroupSimulation, subscription


def said(simulation: GroupSimulation) -> str:
    return "\n".join(" ".join(line.split()) for line in simulation.lines)


def test_two_members_join_are_assigned_and_one_leaves():
    simulation = GroupSimulation(initial_rebalance_delay_ms=3_000)
    simulation.enter("a")
    simulation.enter("b")
    simulation.advance(6_000)
    simulation.sync("b")
    simulation.sync("a", {"a": b"0 1", "b": b"2"})
    simulation.leave("b")
    simulation.heartbeat("a")
    simulation.join("a")
    simulation.sync("a", {"a": b"0 1 2"})
    assert said(simulation) == cleandoc("""
        0 ms a join
        a ← MEMBER_ID_REQUIRED a-1
        0 ms a join
        0 ms b join
        b ← MEMBER_ID_REQUIRED b-3
        0 ms b join
        3000 ms join timer
        6000 ms join timer
        a ← generation 1 range, leads a-1 b-3
        b ← generation 1 range
        6000 ms b sync
        6000 ms a sync
        log group g generation 1: a-1 b-3
        a ← assigned '0 1'
        b ← assigned '2'
        6000 ms b leave
        b ← NONE
        6000 ms a heartbeat
        a ← REBALANCE_IN_PROGRESS
        6000 ms a join
        a ← generation 2 range, leads a-1
        6000 ms a sync
        log group g generation 2: a-1
        a ← assigned '0 1 2'
    """)


def test_each_rebalance_says_why():
    simulation = GroupSimulation()
    simulation.stable("a", "b")
    simulation.leave("b")
    simulation.join("a")
    simulation.sync("a", {"a": b"0"})
    simulation.advance(10_000)
    assert simulation.reasons == [
        "0 a-1 joined: no reason given",
        "1 b-3 joined: no reason given",
        "2 b-3 left: no reason given",
        "3 the session of a-1 ended",
    ]


def test_a_reason_is_finite():
    simulation = GroupSimulation()
    simulation.enter("a" * 10_000)
    assert [len(reason) for reason in simulation.reasons] == [2 + 255]


def test_the_last_member_that_leaves_makes_the_group_empty():
    simulation = GroupSimulation()
    simulation.stable("a")
    simulation.leave("a")
    assert simulation.group.state.value == "Empty"
    assert simulation.lines[-2].split() == ["log", "group", "g", "generation", "2:", "nobody"]


def test_a_silent_member_is_dropped_and_its_work_given_to_the_others():
    simulation = GroupSimulation()
    simulation.stable("a", "b")
    simulation.lines.clear()
    for _ in range(4):
        simulation.advance(3_000)
        simulation.heartbeat("a")
    simulation.join("a")
    assert said(simulation) == cleandoc("""
        3000 ms a heartbeat
        a ← NONE
        6000 ms a heartbeat
        a ← NONE
        9000 ms a heartbeat
        a ← NONE
        10000 ms session timer of b-3
        12000 ms a heartbeat
        a ← REBALANCE_IN_PROGRESS
        12000 ms a join
        a ← generation 3 range, leads a-1
    """)


def test_a_member_that_does_not_rejoin_in_time_is_dropped():
    simulation = GroupSimulation()
    simulation.stable("a", "b", session_timeout_ms=300_000, rebalance_timeout_ms=20_000)
    assert simulation.enter("c", rebalance_timeout_ms=20_000) is None
    simulation.join("a", rebalance_timeout_ms=20_000)
    simulation.advance(19_999)
    assert simulation.group.state.value == "PreparingRebalance"
    simulation.advance(1)
    assert simulation.client("a").members == ["a-1", simulation.client("c").member_id]
    assert simulation.heartbeat("b").error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_joins_but_never_syncs_is_dropped():
    simulation = GroupSimulation()
    simulation.stable("a", rebalance_timeout_ms=20_000, session_timeout_ms=300_000)
    simulation.enter("b", rebalance_timeout_ms=20_000, session_timeout_ms=300_000)
    simulation.join("a", rebalance_timeout_ms=20_000, session_timeout_ms=300_000)
    simulation.sync("a", {"a": b"all"})
    assert simulation.group.state.value == "Stable"
    simulation.advance(20_000)
    assert list(simulation.group.members) == ["a-1"]
    assert simulation.heartbeat("a").error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_leader_that_dies_before_it_assigns_is_replaced():
    simulation = GroupSimulation()
    simulation.enter("a", rebalance_timeout_ms=20_000)
    simulation.enter("b", rebalance_timeout_ms=20_000)
    simulation.join("a", rebalance_timeout_ms=20_000)
    assert simulation.client("a").members == ["a-1", "b-3"]
    assert simulation.sync("b") is None
    simulation.advance(10_000)
    assert "b ← REBALANCE_IN_PROGRESS" in said(simulation)
    answer = simulation.join("b")
    assert answer.leader == answer.member_id == "b-3"


def test_a_member_that_asks_again_frees_its_first_request():
    simulation = GroupSimulation(initial_rebalance_delay_ms=3_000)
    simulation.enter("a")
    assert simulation.join("a") is None
    assert simulation.lines[-1].split() == ["a", "←", "REBALANCE_IN_PROGRESS"]
    simulation.advance(6_000)
    assert simulation.client("a").generation == 1


def test_the_initial_delay_is_extended_by_newcomers_up_to_the_rebalance_timeout():
    simulation = GroupSimulation(initial_rebalance_delay_ms=3_000)
    for number in range(20):
        simulation.enter(f"m{number}", rebalance_timeout_ms=10_000)
        simulation.advance(2_000)
        if simulation.client("m0").generation == 1:
            break
    assert 9_000 <= simulation.now_ms <= 10_000


def test_a_pending_member_that_never_joins_holds_the_others_up_only_for_its_session():
    simulation = GroupSimulation()
    simulation.stable("a", session_timeout_ms=300_000)
    simulation.join("late", session_timeout_ms=6_000)
    simulation.enter("b")
    assert simulation.join("a", session_timeout_ms=300_000) is None
    simulation.advance(6_000)
    assert simulation.client("a").generation == 2
    assert not simulation.group.pending_members


def test_a_group_that_only_had_a_pending_member_is_forgotten():
    simulation = GroupSimulation()
    simulation.join("a")
    simulation.advance(10_000)
    assert not simulation.shard.groups
    assert not simulation.log


def test_clients_before_version_4_join_in_one_step():
    simulation = GroupSimulation()
    assert simulation.join("a", version=3).generation_id == 1


def test_a_leader_that_joins_again_wants_a_rebalance_and_a_follower_does_not():
    simulation = GroupSimulation()
    simulation.stable("a", "b")
    generation = simulation.group.generation
    assert simulation.join("b").generation_id == generation
    assert simulation.group.state.value == "Stable"
    assert simulation.join("a") is None
    assert simulation.group.state.value == "PreparingRebalance"


def test_a_member_that_joins_again_may_want_more_time_for_a_rebalance():
    simulation = GroupSimulation()
    simulation.stable("a", "b")
    other = (("range", subscription("u")),)
    simulation.join("b", protocols=other, rebalance_timeout_ms=90_000)
    assert simulation.group.rebalance_timeout_ms == 90_000


def test_a_leader_that_has_joined_goes_on_leading_whoever_came_before_it():
    simulation = GroupSimulation()
    simulation.stable("a", "b")
    group = simulation.group
    leader = next(name for name in group.members if name.startswith("b"))
    for number, member in enumerate(group.members.values()):
        member.join_ticket = number
    group.leader_id = leader
    assert group.elect_joined_leader()
    assert group.leader_id == leader


def test_a_member_whose_subscription_changed_starts_a_rebalance():
    simulation = GroupSimulation()
    simulation.stable("a", "b")
    assert simulation.join("b", protocols=[("range", subscription("t", "u"))]) is None


def test_the_protocol_is_the_one_most_members_prefer_of_those_all_speak():
    simulation = GroupSimulation(initial_rebalance_delay_ms=1_000)
    data = subscription("t")
    simulation.enter("a", protocols=[("sticky", data), ("range", data), ("robin", data)])
    simulation.enter("b", protocols=[("range", data), ("robin", data)])
    simulation.enter("c", protocols=[("robin", data), ("range", data)])
    simulation.advance(4_000)
    assert simulation.group.protocol_name == "range"


def test_a_member_that_shares_no_protocol_is_refused():
    simulation = GroupSimulation()
    simulation.stable("a")
    answer = simulation.join("b", protocols=[("robin", b"")])
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    answer = simulation.join("b", protocol_type="connect")
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_session_timeouts_outside_the_bounds_are_refused():
    simulation = GroupSimulation()
    for timeout_ms in (5_999, 1_800_001, -1, 0):
        answer = simulation.join("a", session_timeout_ms=timeout_ms)
        assert answer.error_code == ErrorCode.INVALID_SESSION_TIMEOUT


def test_a_full_group_refuses_newcomers_and_keeps_its_members():
    simulation = GroupSimulation(group_size_max=2)
    simulation.stable("a", "b")
    assert simulation.enter("c").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert simulation.join("a") is None
    assert simulation.join("b").error_code == ErrorCode.NONE


def test_pending_members_are_limited():
    simulation = GroupSimulation(pending_members_max=3)
    answers = [simulation.join(f"m{number}").error_code for number in range(4)]
    assert answers == [ErrorCode.MEMBER_ID_REQUIRED] * 3 + [ErrorCode.GROUP_MAX_SIZE_REACHED]


def test_the_metadata_of_a_large_application_is_taken():
    simulation = GroupSimulation(initial_rebalance_delay_ms=0)
    protocols = [(name, bytes(800_000)) for name in ("a", "b", "c", "d", "e")]
    simulation.join("a")  # gets its id
    assert simulation.join("a", protocols=protocols).error_code == ErrorCode.NONE


def test_member_metadata_is_limited():
    simulation = GroupSimulation(member_metadata_bytes_max=1_000)
    answer = simulation.join("a", protocols=[("range", bytes(600)), ("robin", bytes(600))])
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert not simulation.shard.groups


def test_stale_generations_and_unknown_members_are_answered_so():
    simulation = GroupSimulation()
    simulation.stable("a")
    simulation.client("a").generation += 1
    assert simulation.heartbeat("a").error_code == ErrorCode.ILLEGAL_GENERATION
    assert simulation.sync("a").error_code == ErrorCode.ILLEGAL_GENERATION
    assert simulation.commit("a", 1).error_code == ErrorCode.ILLEGAL_GENERATION
    simulation.client("a").member_id = "nobody"
    assert simulation.heartbeat("a").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert simulation.join("a").error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_believes_in_another_protocol_is_answered_so():
    simulation = GroupSimulation()
    simulation.stable("a")
    answer = simulation.sync("a", protocol_type="consumer", protocol_name="robin")
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert simulation.sync("a", protocol_type="consumer", protocol_name="range").error_code == 0


def test_after_a_restart_members_go_on_where_they_were():
    simulation = GroupSimulation()
    simulation.stable("a", "b")
    simulation.restart()
    assert simulation.heartbeat("a").error_code == ErrorCode.NONE
    assert simulation.sync("b").assignment == b"work of b"
    simulation.advance(9_000)
    simulation.heartbeat("a")
    simulation.advance(2_000)
    assert list(simulation.group.members) == ["a-1"]


def test_an_assignment_that_no_record_can_hold_is_refused_and_harms_only_its_group():
    simulation = GroupSimulation(record_bytes_max=1_000)
    simulation.enter("a")
    answer = simulation.sync("a", {"a": bytes(1_000)})
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert not simulation.log
    assert simulation.sync("a", {"a": b"less"}).error_code == ErrorCode.NONE
