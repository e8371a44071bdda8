"""`status`: the conditions of each resource, from its observation and the plan. Pure.

kstatus' three conditions: `Ready` is the state; `Reconciling` and `Stalled` are true only while
something is in progress, or needs a user. Reasons are `Reason`'s; messages say what is awaited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from headrace_operator.plan.planner import failures_of, is_usable
from headrace_operator.plan.scaling import is_within_target
from headrace_operator.resources import (
    Cluster,
    Condition,
    ConditionType,
    ConsumerGroup,
    Reason,
    Topic,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from headrace_operator.plan.model import (
        Application,
        Desired,
        Key,
        Observed,
        Plan,
        Problem,
        Waiting,
    )
    from headrace_operator.resources import LagPolicy

Verdict: TypeAlias = "tuple[Literal['True', 'False', 'Unknown'], Reason, str]"
#: What stalls a resource, what is only reported, and what is in progress.
_Findings: TypeAlias = "tuple[Problem | None, str, tuple[Reason, str] | None]"
_NOTHING: _Findings = (None, "", None)

#: The initial conditions, before a controller has seen the resource (the CRDs' status default).
UNKNOWN_SINCE = "1970-01-01T00:00:00Z"


def status(
    observed: Observed, desired: Desired, plan: Plan, *, now: str = UNKNOWN_SINCE
) -> Mapping[Key, tuple[Condition, ...]]:
    """Return Ready, Reconciling and Stalled for every resource of `desired`.

    `plan` is what remained to do when `observed` was taken, so a resource with an action is not
    ready yet. `now` is RFC 3339 and is used only for a condition whose status changes: equal input
    gives equal conditions, so a converged resource is not written again.
    """
    resources: list[Cluster | Topic | ConsumerGroup | Application] = [
        *desired.topics,
        *desired.groups,
        *desired.applications,
    ]
    if desired.cluster is not None:
        resources.insert(0, desired.cluster)
    findings = _findings_of(plan)
    return {
        resource.key: _conditions(resource, observed, findings.get(resource.key, _NOTHING), now=now)
        for resource in resources
    }


def _conditions(
    resource: Cluster | Topic | ConsumerGroup | Application,
    observed: Observed,
    findings: _Findings,
    *,
    now: str,
) -> tuple[Condition, ...]:
    stalled, notes, progress = findings
    unhealthy = _unhealthy(resource, observed)
    if isinstance(resource, Cluster):
        # Missing brokers are in progress: a Cluster that cannot start is not idle.
        progress = unhealthy if progress is None else _with_failures(progress, observed)
    ready: Verdict
    if stalled is not None:
        ready = ("False", stalled.reason, stalled.message)
    elif progress is not None:
        ready = ("False", *progress)
    elif unhealthy is not None:
        ready = ("False", *unhealthy)
    else:
        ready = ("True", Reason.RECONCILED, notes or "as the spec says")
    verdicts: dict[ConditionType, Verdict] = {
        ConditionType.READY: ready,
        ConditionType.RECONCILING: _reconciling(stalled, progress),
        ConditionType.STALLED: (
            ("True", stalled.reason, stalled.message)
            if stalled is not None
            else ("False", Reason.RECONCILED, "nothing needs a person")
        ),
    }
    if isinstance(resource, ConsumerGroup) and resource.spec.lag_policy is not None:
        verdicts[ConditionType.LAG_WITHIN_TARGET] = _lag_verdict(
            resource, resource.spec.lag_policy, observed
        )
    previous = {condition.type: condition for condition in _previous(resource)}
    return tuple(
        _condition(kind, verdict, previous.get(kind), resource.metadata.generation, now)
        for kind, verdict in verdicts.items()
    )


def _reconciling(stalled: Problem | None, progress: tuple[Reason, str] | None) -> Verdict:
    """Report what is in progress. A kstatus reader stops at the first condition that is true."""
    if stalled is not None:
        return "False", stalled.reason, progress[1] if progress else "a person has to act first"
    if progress is not None:
        return "True", *progress
    return "False", Reason.RECONCILED, "nothing is left to do"


def _lag_verdict(group: ConsumerGroup, policy: LagPolicy, observed: Observed) -> Verdict:
    existing = observed.groups.get(group.group_id)
    is_within = is_within_target(policy, existing, observed.trends.get(group.key))
    if is_within is None:
        return (
            "Unknown",
            Reason.LAG_UNKNOWN,
            "nothing was committed, or the rate was not measured yet",
        )
    if is_within:
        return "True", Reason.LAG_WITHIN_TARGET, "no further behind than lagPolicy.target allows"
    return "False", Reason.LAG_ABOVE_TARGET, "further behind than lagPolicy.target allows"


def _with_failures(progress: tuple[Reason, str], observed: Observed) -> tuple[Reason, str]:
    """Add why brokers fail: what is in progress may be waiting for just these."""
    reason, message = progress
    brokers = observed.cluster.brokers if observed.cluster else ()
    unsaid = [each for each in brokers if not each.is_registered and each.failing not in message]
    return reason, "; ".join([message, *filter(None, [failures_of(unsaid)])])


def _previous(
    resource: Cluster | Topic | ConsumerGroup | Application,
) -> tuple[Condition, ...]:
    if isinstance(resource, Cluster | Topic | ConsumerGroup):
        return resource.status.conditions
    return ()


def _condition(
    kind: ConditionType,
    verdict: Verdict,
    previous: Condition | None,
    generation: int,
    now: str,
) -> Condition:
    state, reason, message = verdict
    is_unchanged = previous is not None and previous.status == state
    return Condition(
        type=kind,
        status=state,
        reason=reason,
        message=message,
        observed_generation=generation,
        last_transition_time=previous.last_transition_time if previous and is_unchanged else now,
    )


def _findings_of(plan: Plan) -> Mapping[Key, _Findings]:
    """Return the plan's findings for each resource; reads the plan once, as it may be long."""
    problems: dict[Key, list[Problem]] = {}
    waiting: dict[Key, Waiting] = {}
    actions: dict[Key, list[str]] = {}
    for problem in plan.problems:
        problems.setdefault(problem.resource, []).append(problem)
    for wait in plan.waiting:
        waiting.setdefault(wait.resource, wait)
    for action in plan.actions:
        actions.setdefault(action.resource, []).append(action.describe())
    found: dict[Key, _Findings] = {}
    for key in {*problems, *waiting, *actions}:
        mine = problems.get(key, [])
        progress: tuple[Reason, str] | None = None
        if key in waiting and waiting[key].reason is Reason.APPLY_FAILED:
            # It names the action.
            progress = (Reason.APPLY_FAILED, waiting[key].message)
        elif key in actions:
            # An action in progress may itself wait for something (an address, room on a node).
            waits = [waiting[key].message] if key in waiting else []
            progress = (Reason.RECONCILING, "; ".join(actions[key] + waits))
        elif key in waiting:
            progress = (waiting[key].reason, waiting[key].message)
        found[key] = (
            next((problem for problem in mine if problem.is_stalling), None),
            "; ".join(problem.message for problem in mine if not problem.is_stalling),
            progress,
        )
    return found


def _unhealthy(
    resource: Cluster | Topic | ConsumerGroup | Application, observed: Observed
) -> tuple[Reason, str] | None:
    """Return why a resource is not ready though there is nothing to do about it here."""
    if isinstance(resource, Cluster):
        brokers = observed.cluster.brokers if observed.cluster else ()
        failures = failures_of(brokers)
        why = f"; {failures}" if failures else ""
        if not any(pool.replicas for pool in resource.spec.pools):
            return Reason.WAITING_FOR_BROKERS, "no broker is wanted: every pool has replicas: 0"
        if not is_usable(observed):
            message = f"the cluster's brokers do not answer yet{why}"
            return Reason.WAITING_FOR_BROKERS, message
        lost = [str(broker.node_id) for broker in brokers if not broker.is_registered]
        if lost:
            return Reason.WAITING_FOR_BROKERS, f"not registered: broker {', '.join(lost)}{why}"
        starting = [str(broker.node_id) for broker in brokers if not broker.is_ready]
        if starting:
            return Reason.WAITING_FOR_BROKERS, f"not ready: broker {', '.join(starting)}"
    if isinstance(resource, Topic):
        topic = observed.topics.get(resource.topic_name)
        if topic is not None and topic.offline:
            listed = ", ".join(map(str, topic.offline))
            return Reason.PARTITIONS_OFFLINE, f"partitions without a leader: {listed}"
    return None
