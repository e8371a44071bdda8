"""Planted bugs of classic groups: who is waited for, and for how long; who assigns, and to whom."""

from headrace_broker.coordinator import join, membership, rebalance, timers
from headrace_broker.coordinator.consumer import loading
from simulation.mutants.edited import edited
from simulation.mutants.mutant import does, rules_with
from simulation.workloads.workload import FORGETTING_SINCE

_has_group = does("group")

_has_static_members = does("static")

_has_consumer_group = does("modern")


_rule = rules_with(nodes=3, needs=_has_group, since=FORGETTING_SINCE, seeds_max=100)

REBALANCE_MUTANTS = (
    _rule(
        "a member leaves and the others go on without its share",
        membership,
        "decide_leave",
        edited("if len(group.members) < count_before:", "if False:"),
    ),
    _rule(
        "a session ends and the others go on without the member",
        timers,
        "_session_expired",
        edited(
            'rebalance_after_removal(step, f"the session of {member_id} ended")',
            "pass",
        ),
    ),
    _rule(
        "who never asks for its assignment is waited for",
        rebalance,
        "complete_join",
        edited("step.set_timer(TimerKind.SYNC, group.rebalance_timeout_ms)", "pass"),
    ),
    _rule(
        "who does not join again is waited for",
        rebalance,
        "prepare_rebalance",
        edited(
            "        step.set_timer(TimerKind.JOIN, group.rebalance_timeout_ms)", "        pass"
        ),
    ),
    _rule(
        "who does not join again stays a member",
        rebalance,
        "complete_join",
        edited("for member in absent:", "for member in ():"),
    ),
    _rule(
        "no session begins with a generation",
        rebalance,
        "complete_join",
        edited("step.extend_session(member.member_id, member.session_timeout_ms)", "pass"),
    ),
    _rule(
        "a heartbeat does not extend the session",
        membership,
        "decide_heartbeat",
        edited("step.extend_session(member.member_id, member.session_timeout_ms)", "pass"),
    ),
    _rule(
        "who has its id alone is waited for",
        join,
        "_join_unknown",
        edited("step.extend_session(member_id, request.session_timeout_ms)", "pass"),
    ),
    _rule(
        "a new member that disappears stays",
        join,
        "_add_member",
        edited(
            "step.extend_session(member.member_id, step.config.new_member_join_timeout_ms)",
            "pass",
        ),
    ),
    _rule(
        "an empty group's generation is not kept",
        rebalance,
        "complete_join",
        edited("step.decision.records.append(group_record(group))", "pass"),
    ),
    _rule(
        "an assignment is not kept",
        membership,
        "_assign",
        edited("step.decision.records.append(group_record(group))", "pass"),
    ),
    _rule(
        "anybody assigns",
        membership,
        "decide_sync",
        edited("is_leader = member.member_id == group.leader_id", "is_leader = True"),
    ),
    _rule(
        "a static member's new place is not kept",
        join,
        "_replace_static_member",
        edited("step.decision.records.append(group_record(group))", "pass"),
        needs=_has_static_members,
    ),
    _rule(
        "nobody waits for a revocation after a coordinator's end",
        loading,
        "finish_loading_modern_groups",
        edited("if member.state is MemberState.UNREVOKED_PARTITIONS:", "if False:"),
        needs=_has_consumer_group,
    ),
)
