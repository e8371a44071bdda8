"""`plan`: from present and desired state to actions. Pure; converged input plans nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace_operator.plan.actions import (
    ChangeReplicationFactor,
    MoveReplicas,
    StopApplication,
    StopBroker,
)
from headrace_operator.plan.applications import plan_applications
from headrace_operator.plan.brokers import plan_brokers, target_of
from headrace_operator.plan.groups import plan_groups, plan_resumes
from headrace_operator.plan.model import (
    Action,
    Desired,
    Observed,
    ObservedBroker,
    Plan,
    Problem,
    Waiting,
)
from headrace_operator.plan.moves import ends_throttle
from headrace_operator.plan.topics import count_brokers, plan_topics
from headrace_operator.resources import (
    Cluster,
    ConsumerGroup,
    Deployment,
    Reason,
    SparkApplication,
    Topic,
)
from headrace_operator.resources.ignored_settings import IGNORED_BROKER_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def plan(observed: Observed, desired: Desired) -> Plan:
    """Compare both states; return what to do, what cannot be done and what must wait.

    The actions are in an order in which they can be carried out: brokers, topics, groups,
    applications. A problem of one resource never blocks the actions of another.
    """
    cluster = desired.cluster
    if cluster is None:
        return _assemble([*_without_cluster(desired), *plan_resumes(observed, desired)])
    if cluster.key in desired.deleted:
        deletion = _plan_cluster_deletion(observed, desired, cluster)
        return _assemble([*deletion, *plan_resumes(observed, desired)])
    if cluster.spec.paused:
        return _assemble(_wait_for_end_of_pause(desired, cluster))
    accepted, problems = _accept(desired, cluster)
    brokers = plan_brokers(observed, accepted, cluster)
    outcomes: list[Action | Problem | Waiting] = [*problems, *brokers.problems]
    outcomes += _say_what_has_no_effect(cluster)
    proposed: tuple[Action, ...] = ()
    target = target_of(cluster)
    if cluster.spec.update_policy == "Plan" and cluster.spec.approved_plan != target:
        proposed = brokers.proposal
        if proposed:
            message = f"{len(proposed)} actions wait for spec.approvedPlan: {target}"
            outcomes.append(Waiting(resource=cluster.key, reason=Reason.PLANNED, message=message))
    outcomes += brokers.waiting
    if not proposed:
        outcomes += brokers.actions
    resumes = list(plan_resumes(observed, desired))
    if is_usable(observed):
        outcomes += [each for each in resumes if each.resource in desired.deleted]
        outcomes += _plan_topics(observed, accepted, outcomes)
        outcomes += plan_groups(observed, accepted)
        outcomes += plan_applications(observed, accepted)
        outcomes += _say_what_is_full(observed, cluster)
    else:
        outcomes += resumes
        outcomes += _wait_for_cluster(accepted, observed)
        outcomes += _say_what_fails(observed, cluster)
    return replace(_assemble(outcomes), proposed=proposed, target=target if proposed else "")


def _plan_topics(
    observed: Observed, desired: Desired, outcomes: list[Action | Problem | Waiting]
) -> list[Action | Problem | Waiting]:
    """Plan topics together with brokers: they share the limit of moves and its throttle."""
    busy = sum(len(each.moves) for each in outcomes if isinstance(each, MoveReplicas))
    found = list(plan_topics(observed, desired, busy=busy))
    if any(isinstance(each, ChangeReplicationFactor) and each.copies for each in found):
        outcomes[:] = [each for each in outcomes if not ends_throttle(each)]
    return found


def is_usable(observed: Observed) -> bool:
    """Whether topics can be managed: the admin client got answers and there is a broker."""
    cluster = observed.cluster
    return cluster is not None and cluster.is_reachable and count_brokers(observed) > 0


def _assemble(outcomes: Iterable[Action | Problem | Waiting]) -> Plan:
    items = tuple(outcomes)
    return Plan(
        actions=tuple(item for item in items if isinstance(item, Action)),
        problems=tuple(item for item in items if isinstance(item, Problem)),
        waiting=tuple(item for item in items if isinstance(item, Waiting)),
    )


def _without_cluster(desired: Desired) -> Iterator[Problem]:
    references: tuple[Topic | ConsumerGroup, ...] = (*desired.topics, *desired.groups)
    for resource in references:
        # Without its cluster there is nothing to clean up: deletion always succeeds.
        if resource.key not in desired.deleted:
            yield _no_cluster(resource)


def _no_cluster(resource: Topic | ConsumerGroup) -> Problem:
    reference = resource.spec.cluster_ref
    namespace = reference.namespace or resource.metadata.namespace
    return Problem(
        resource=resource.key,
        reason=Reason.CLUSTER_NOT_FOUND,
        message=f"there is no Cluster {namespace}/{reference.name}; correct spec.clusterRef",
    )


def _accept(desired: Desired, cluster: Cluster) -> tuple[Desired, list[Problem]]:
    """Leave out resources that do not belong to the cluster, or are not allowed to."""
    problems: list[Problem] = []
    topics: list[Topic] = []
    groups: list[ConsumerGroup] = []
    references: tuple[Topic | ConsumerGroup, ...] = (*desired.topics, *desired.groups)
    for resource in references:
        problem = _refusal(resource, cluster, desired.selected_namespaces)
        if problem is not None:
            if resource.key not in desired.deleted:
                problems.append(problem)
        elif isinstance(resource, Topic):
            topics.append(resource)
        else:
            groups.append(resource)
    return replace(desired, topics=tuple(topics), groups=tuple(groups)), problems


def _refusal(
    resource: Topic | ConsumerGroup, cluster: Cluster, selected: frozenset[str]
) -> Problem | None:
    reference = resource.spec.cluster_ref
    namespace = reference.namespace or resource.metadata.namespace
    if (namespace, reference.name) != (cluster.metadata.namespace, cluster.metadata.name):
        return _no_cluster(resource)
    allowed = cluster.spec.allowed_topics.namespaces.from_
    if resource.metadata.namespace == cluster.metadata.namespace or allowed == "All":
        return None
    if allowed == "Selector" and resource.metadata.namespace in selected:
        return None
    message = (
        f"{cluster.title} takes nothing from namespace {resource.metadata.namespace}"
        f" (spec.allowedTopics.namespaces.from: {allowed})"
    )
    return Problem(resource=resource.key, reason=Reason.NAMESPACE_NOT_ALLOWED, message=message)


def _wait_for_end_of_pause(desired: Desired, cluster: Cluster) -> Iterator[Waiting]:
    message = "spec.paused: nothing is changed until it is false"
    yield Waiting(resource=cluster.key, reason=Reason.PAUSED, message=message)
    resources: tuple[Topic | ConsumerGroup, ...] = (*desired.topics, *desired.groups)
    for resource in resources:
        is_stopped = isinstance(resource, ConsumerGroup) and resource.is_paused
        if resource.key in desired.deleted and (is_stopped or _is_held(resource, desired)):
            message = f"{cluster.title} is paused; the deletion goes on when it is not"
            yield Waiting(resource=resource.key, reason=Reason.PAUSED, message=message)


def _wait_for_cluster(desired: Desired, observed: Observed) -> Iterator[Waiting]:
    error = observed.cluster.error if observed.cluster else ""
    message = "the cluster's brokers do not answer yet" + (f" ({error})" if error else "")
    for resource in (*desired.topics, *desired.groups, *desired.applications):
        if resource.key in desired.deleted and (
            isinstance(resource, SparkApplication | Deployment) or not _is_held(resource, desired)
        ):
            continue
        yield Waiting(resource=resource.key, reason=Reason.WAITING_FOR_CLUSTER, message=message)


def _say_what_has_no_effect(cluster: Cluster) -> Iterator[Problem]:
    if names := sorted(cluster.spec.config.keys() & IGNORED_BROKER_SETTINGS):
        yield Problem(
            resource=cluster.key,
            reason=Reason.SETTING_WITHOUT_EFFECT,
            message=f"spec.config: without effect in these brokers: {', '.join(names)}",
            is_stalling=False,
        )


def _say_what_is_full(observed: Observed, cluster: Cluster) -> Iterator[Problem]:
    full = observed.cluster.full if observed.cluster else ()
    if full:
        yield Problem(
            resource=cluster.key,
            reason=Reason.VOLUME_FULL,
            message="; ".join(full),
            is_stalling=False,
        )


def _say_what_fails(observed: Observed, cluster: Cluster) -> Iterator[Problem]:
    """Report why no broker answers, if a pod gives a reason and waiting has not helped."""
    brokers = observed.cluster.brokers if observed.cluster else ()
    voters = [broker for broker in brokers if broker.is_voter]
    voters = voters or [broker for broker in brokers if "controller" in broker.roles]
    lost = [broker for broker in voters if broker.is_data_lost]
    if 2 * len(lost) > len(voters):
        names = ", ".join(map(_lost_name, lost))
        message = (
            f"broker {names} lost its volumes, and with them most voters of the metadata quorum:"
            " nothing can be decided any more. Bring a volume back, or let one that is left go on"
            " alone: docs/kubernetes.md, When the metadata quorum is lost"
        )
        yield Problem(resource=cluster.key, reason=Reason.QUORUM_LOST, message=message)
    if any(broker.is_stuck for broker in brokers):
        message = f"no broker answers: {failures_of(brokers)}"
        yield Problem(resource=cluster.key, reason=Reason.BROKERS_FAILING, message=message)


def _lost_name(broker: ObservedBroker) -> str:
    """Name a broker, and the node that its volumes went with."""
    if broker.is_disk_lost or broker.loss is None:
        return str(broker.node_id)
    return f"{broker.node_id} (with node {broker.loss.machine})"


def failures_of(brokers: Iterable[ObservedBroker]) -> str:
    """Return why each failing broker fails; brokers with the same reason share one text."""
    found: dict[str, list[str]] = {}
    for broker in brokers:
        if broker.failing:
            found.setdefault(broker.failing, []).append(str(broker.node_id))
    return "; ".join(f"broker {', '.join(ids)}: {why}" for why, ids in found.items())


def _is_held(resource: Topic | ConsumerGroup, desired: Desired) -> bool:
    """Whether a deletion waits for brokers."""
    return resource.key in desired.deleted and resource.spec.deletion_policy != "Retain"


def _plan_cluster_deletion(
    observed: Observed, desired: Desired, cluster: Cluster
) -> Iterator[Action | Problem | Waiting]:
    if cluster.spec.deletion_policy == "Protect":
        yield Problem(
            resource=cluster.key,
            reason=Reason.DELETION_PROTECTED,
            message="deletionPolicy is Protect; write deletionPolicy: Delete or Retain first",
        )
        return
    resources: tuple[Topic | ConsumerGroup, ...] = (*desired.topics, *desired.groups)
    for resource in resources:
        # Its data goes, or stays, with the cluster's brokers: nothing is left to clean up.
        if resource.key not in desired.deleted:
            message = f"{cluster.title} is being deleted"
            yield Waiting(resource=resource.key, reason=Reason.WAITING_FOR_CLUSTER, message=message)
    for application in desired.applications:
        running = observed.applications.get(application.key)
        if running is not None and running.is_running:
            yield StopApplication(resource=application.key, application=application.metadata.name)
    for broker in observed.cluster.brokers if observed.cluster else ():
        if broker.is_running:
            yield StopBroker(resource=cluster.key, node_id=broker.node_id, pool=broker.pool)
