"""`report`: the complete status of each resource, as Kubernetes stores it. Pure.

`status` makes the conditions; this module adds what was observed. `observedGeneration` changes only
when a generation is reconciled or stalled: until then kstatus sees that it is in progress.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from headrace_operator.plan.moves import progress_of
from headrace_operator.plan.status import UNKNOWN_SINCE, status
from headrace_operator.plan.topics import applied_throttles
from headrace_operator.resources import Cluster, Condition, ConditionType, ConsumerGroup, Topic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_operator.plan.actions import ResetOffsets
    from headrace_operator.plan.model import Desired, Key, Observed, Plan, TopicPartition
    from headrace_operator.plan.moves import MovesProgress

__all__ = ["changed", "is_lag_only", "report", "reset_note"]

PENDING_MAX = 32
TOPICS_MAX = 20
#: Numbers that change all the time while a group reads.
LAG_FIELDS = ("lagRecords", "lagSeconds", "topics")
ORPHANS_MAX = 20
TEXT_MAX = 1024

Status = dict[str, Any]


def report(
    observed: Observed, desired: Desired, plan: Plan, *, now: str = UNKNOWN_SINCE
) -> Mapping[Key, Status]:
    """Return the status of each Cluster, Topic and ConsumerGroup in `desired`.

    `now` is RFC 3339, used for conditions whose status changes. Fields that cannot be observed now
    keep their value in the resource's status.
    """
    conditions = status(observed, desired, plan, now=now)
    found: dict[Key, Status] = {}
    if desired.cluster is not None and desired.cluster.spec.paused:
        # A paused cluster is not observed: the other known fields stay.
        desired = replace(desired, topics=(), groups=())
    pending: dict[Key, list[str]] = {}
    for action in plan.actions:
        pending.setdefault(action.resource, []).append(action.describe()[:TEXT_MAX])
    for topic in desired.topics:
        found[topic.key] = _topic(topic, observed, conditions[topic.key])
        if topic.key in pending:
            found[topic.key]["pending"] = pending[topic.key][:PENDING_MAX]
    for group in desired.groups:
        found[group.key] = _group(group, observed, conditions[group.key])
    if desired.cluster is not None:
        key = desired.cluster.key
        found[key] = _cluster(desired.cluster, observed, desired, plan, conditions[key])
    return found


def changed(previous: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a status has to be written. The order of conditions does not matter."""
    return _normalized(previous) != _normalized(wanted)


def is_lag_only(previous: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether only the lag numbers differ: such a status may be written later."""
    without = [
        {key: value for key, value in each.items() if key not in LAG_FIELDS}
        for each in (previous, wanted)
    ]
    return not changed(without[0], without[1])


def _normalized(document: Mapping[str, Any]) -> Status:
    conditions = sorted(document.get("conditions", ()), key=lambda each: str(each["type"]))
    return {**document, "conditions": conditions}


def _common(resource: Cluster | Topic | ConsumerGroup, conditions: tuple[Condition, ...]) -> Status:
    states = {condition.type: condition.status for condition in conditions}
    is_in_progress = states[ConditionType.RECONCILING] == "True"
    is_stalled = states[ConditionType.STALLED] == "True"
    generation = resource.metadata.generation
    if is_in_progress and not is_stalled:
        generation = resource.status.observed_generation
    document: Status = {"conditions": [_condition(each) for each in conditions]}
    if generation:
        document["observedGeneration"] = generation
    return document


def _condition(condition: Condition) -> Status:
    document: Status = {
        "type": str(condition.type),
        "status": condition.status,
        "reason": str(condition.reason),
        "lastTransitionTime": condition.last_transition_time,
    }
    if condition.message:
        document["message"] = condition.message[:TEXT_MAX]
    if condition.observed_generation:
        document["observedGeneration"] = condition.observed_generation
    return document


def _topic(topic: Topic, observed: Observed, conditions: tuple[Condition, ...]) -> Status:
    document = _common(topic, conditions)
    document["topicName"] = topic.topic_name
    states = {condition.type: condition.status for condition in conditions}
    is_settled = states[ConditionType.RECONCILING] == states[ConditionType.STALLED] == "False"
    reconciled = topic.metadata.generation if is_settled else topic.status.reconciled_generation
    if reconciled:
        document["reconciledGeneration"] = reconciled
    existing = observed.topics.get(topic.topic_name)
    if existing is not None:
        document["partitions"] = existing.partitions
        document["replicas"] = existing.replicas
        if existing.topic_id:
            document["topicId"] = existing.topic_id
        if throttles := applied_throttles(topic, existing):
            document["throttles"] = throttles
    elif observed.cluster is None or not observed.cluster.is_reachable:
        document |= _kept(topic.status, ("partitions", "replicas", "topicId", "throttles"))
    return document


def _group(group: ConsumerGroup, observed: Observed, conditions: tuple[Condition, ...]) -> Status:
    document = _common(group, conditions)
    document["groupId"] = group.group_id
    document |= _kept(group.status, ("lastReset", "pausedReplicas", "pausedTarget"))
    existing = observed.groups.get(group.group_id)
    if existing is None:
        return document | _kept(group.status, (*LAG_FIELDS, "state", "type", "members"))
    document["state"] = existing.state
    document["type"] = existing.type
    document["members"] = len(existing.members)
    if existing.offsets:
        # The lag of a group that never committed is unknown, which is not 0.
        document["lagRecords"] = existing.lag_records
    if existing.lag_seconds is not None:
        document["lagSeconds"] = existing.lag_seconds
    by_topic: dict[str, list[int]] = {}
    for (topic, _), records in existing.lag.items():
        by_topic.setdefault(topic, []).append(records)
    furthest = sorted(by_topic, key=lambda topic: (-sum(by_topic[topic]), topic))[:TOPICS_MAX]
    if furthest:
        document["topics"] = [
            {"topic": topic, "partitions": len(by_topic[topic]), "lagRecords": sum(by_topic[topic])}
            for topic in sorted(furthest)
        ]
    return document


def _cluster(
    cluster: Cluster,
    observed: Observed,
    desired: Desired,
    plan: Plan,
    conditions: tuple[Condition, ...],
) -> Status:
    document = _common(cluster, conditions)
    seen = observed.cluster
    document["brokers"] = sum(pool.replicas for pool in cluster.spec.pools)
    document["readyBrokers"] = sum(
        broker.is_registered and broker.is_running for broker in (seen.brokers if seen else ())
    )
    if seen is not None and seen.cluster_id:
        document["clusterId"] = seen.cluster_id
    else:
        document |= _kept(cluster.status, ("clusterId",))
    if seen is not None and seen.bootstrap_servers:
        document["bootstrapServers"] = seen.bootstrap_servers
    if desired.is_complete and seen is not None and seen.is_reachable:
        described = {topic.topic_name for topic in desired.topics}
        orphans = sorted(set(observed.topics) - described)
        if orphans:
            document["orphanTopics"] = {"count": len(orphans), "names": orphans[:ORPHANS_MAX]}
    else:
        document |= _kept(cluster.status, ("orphanTopics",))
    if seen is not None and seen.is_reachable:
        if progress := progress_of(cluster, seen):
            document["moves"] = _moves(cluster, progress)
        if seen.features:
            document["features"] = dict(seen.features)
    else:
        document |= _kept(cluster.status, ("moves", "features"))
    if plan.proposed:
        actions = [action.describe()[:TEXT_MAX] for action in plan.proposed]
        document["plan"] = {"hash": plan.hash, "actions": actions}
    return document


def _moves(cluster: Cluster, progress: MovesProgress) -> Status:
    """Return the progress of moves, relative to all bytes to copy when they began."""
    document: Status = {
        "partitionsMoving": progress.partitions_moving,
        "partitionsLeft": progress.partitions_left,
    }
    if progress.bytes_left is not None:
        before = cluster.status.moves
        known = (before.bytes_total if before else None) or 0
        document["bytesTotal"] = max(known, progress.bytes_left)
        document["bytesLeft"] = progress.bytes_left
    if progress.seconds_left is not None:
        document["secondsLeft"] = progress.seconds_left
    return document


def _kept(previous: msgspec.Struct, names: tuple[str, ...]) -> Status:
    known = msgspec.to_builtins(previous)
    return {name: known[name] for name in names if name in known}


def reset_note(reset: ResetOffsets, *, state: str, completed_at: str = "") -> Status:
    """Return the `lastReset` of a reset that begins (Started) or is complete (Done)."""
    note: Status = {"requestId": reset.request_id, "state": state}
    if completed_at:
        note["completedAt"] = completed_at
    if reset.is_dry_run:
        note["dryRun"] = True
    note["offsets"] = _offsets(reset.offsets)
    note["previousOffsets"] = _offsets(reset.previous)
    return note


def _offsets(offsets: Mapping[TopicPartition, int]) -> list[Status]:
    return [
        {"topic": topic, "partition": partition, "offset": offset}
        for (topic, partition), offset in sorted(offsets.items())
    ]
