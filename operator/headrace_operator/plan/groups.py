"""Plans consumer groups: one-shot resets of offsets, deletion. Pure.

A reset is done once for each request id: `status.lastReset` records it with the offsets that undo
it. Kafka refuses to change the offsets of a group with members, so a reset waits until the group is
empty, or stops its consumers (`whenActive: ScaleDown`), which the next plan starts again.

A Spark job is not a member of its group: the group looks empty while the job runs, and the job's
next commit would undo the reset. So a SparkApplication counts as active while it runs, and is not
started before the reset is done. When it starts, it applies the reset by a new generation of its
checkpoint (`spark_operator_jobs/README.md`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.plan.actions import (
    DeleteGroup,
    ResetOffsets,
    ScaleTarget,
    StopApplication,
)
from headrace_operator.plan.model import (
    Action,
    Desired,
    Key,
    Observed,
    ObservedGroup,
    Problem,
    TopicPartition,
    Waiting,
)
from headrace_operator.plan.scaling import plan_scaling, target_problem
from headrace_operator.resources import ConsumerGroup, Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace_operator.resources import Reset

Outcome = Action | Problem | Waiting

#: States in which Kafka lets a group's offsets be changed.
EMPTY_STATES = frozenset({"Empty", "Dead", ""})
#: The most offsets that a status holds (crds/consumergroups.headrace.dev.yaml).
PARTITIONS_MAX = 1000


def plan_groups(observed: Observed, desired: Desired) -> Iterator[Outcome]:
    """Compare consumer groups with those of the brokers."""
    owners: dict[str, ConsumerGroup] = {}
    going = [group for group in desired.groups if group.key in desired.deleted]
    coming = {topic.topic_name for topic in desired.topics if topic.key not in desired.deleted}
    for group in desired.groups:
        existing = observed.groups.get(group.group_id)
        if group in going:
            continue
        if group.is_paused and group.present_target != group.spec.target_ref:
            # Before another target is stopped: one can be remembered.
            yield from _plan_resume(group, observed)
            continue
        if group.group_id in owners:
            message = (
                f"group {group.group_id} is already described by {owners[group.group_id].title};"
                " delete one of the two resources"
            )
            yield Problem(resource=group.key, reason=Reason.DUPLICATE_GROUP, message=message)
        else:
            owners[group.group_id] = group
            yield from _plan_missing_topics(group, observed, coming)
            reset = pending_reset(group)
            if problem := type_problem(group, existing):
                yield problem
                reset = None if problem.is_stalling else reset
            if reset is not None:
                yield from _plan_reset(group, reset, existing or ObservedGroup(state=""), observed)
            if not _is_doing(group, reset, observed):
                yield from _plan_resume(group, observed)
    for group in going:
        # If another resource still describes the same group, it stays.
        if group.group_id not in owners:
            owners[group.group_id] = group
            yield from _plan_deletion(group, observed.groups.get(group.group_id))


def plan_resumes(observed: Observed, desired: Desired) -> Iterator[Outcome]:
    """Start the targets of groups that are deleted, or no longer reset: it needs no brokers."""
    for group in desired.groups:
        target = observed.targets.get(group.key)
        if not group.is_paused or target is None:
            continue
        if group.key not in desired.deleted:
            if pending_reset(group) is None:
                yield from _plan_resume(group, observed)
        elif target.is_unknown or not (target.error or target.replicas):
            yield from _plan_resume(group, observed)


def type_problem(group: ConsumerGroup, existing: ObservedGroup | None) -> Problem | None:
    """Report that the brokers' group is of another kind than the spec's; None if it is not.

    A share group never changes its kind. For the other kinds the members decide (KIP-848).
    """
    wanted = (group.spec.type or "").lower()
    if not wanted or existing is None or existing.state in {"Dead", ""} or existing.type == wanted:
        return None
    message = f"group {group.group_id} is of the type {existing.type}, and spec.type says {wanted}"
    is_stalling = "share" in (wanted, existing.type)
    if is_stalling:
        message += "; correct spec.type, or delete the group"
    return Problem(
        resource=group.key,
        reason=Reason.GROUP_TYPE_DIFFERS,
        message=message,
        is_stalling=is_stalling,
    )


def pending_reset(group: ConsumerGroup) -> Reset | None:
    """Return the reset that was requested and is not done yet."""
    reset, last = group.spec.reset, group.status.last_reset
    if reset is None or last is None or last.request_id != reset.request_id:
        return reset
    if last.state == "Started":
        return reset
    return reset if last.dry_run and not reset.dry_run else None


def held_applications(observed: Observed, desired: Desired) -> frozenset[Key]:
    """Return workloads that must not be started before the reset of their group is done."""
    held = set()
    for group in desired.groups:
        key, reset = target_key(group), pending_reset(group)
        existing = observed.groups.get(group.group_id)
        if key is None or reset is None or existing is None or reset.dry_run:
            continue
        # Nothing waits for a reset that cannot be done.
        if _offsets_of_reset(group, reset, existing, observed)[1]:
            continue
        if _is_active(group, existing, observed):
            is_held = reset.when_active == "ScaleDown"
        else:
            is_held = not _is_running(key, observed)
        if is_held:
            held.add(key)
    return frozenset(held)


def target_key(group: ConsumerGroup) -> Key | None:
    """Return the workload that reads in this group."""
    target = group.spec.target_ref
    return (target.kind, group.metadata.namespace, target.name) if target else None


def _is_active(group: ConsumerGroup, existing: ObservedGroup, observed: Observed) -> bool:
    """Whether a consumer is active in the group, whose next commit would undo a reset."""
    if existing.state not in EMPTY_STATES or not _is_spark(group):
        return existing.state not in EMPTY_STATES
    target = observed.targets.get(group.key)
    return _is_running(target_key(group), observed) or (target is not None and target.running > 0)


def _is_spark(group: ConsumerGroup) -> bool:
    return group.spec.target_ref is not None and group.spec.target_ref.kind == "SparkApplication"


def _is_running(key: Key | None, observed: Observed) -> bool:
    running = observed.applications.get(key) if key else None
    return running is not None and running.is_running


def _plan_missing_topics(
    group: ConsumerGroup, observed: Observed, coming: set[str]
) -> Iterator[Outcome]:
    missing = [
        name for name in group.spec.topics if name not in observed.topics and name not in coming
    ]
    if missing:
        message = f"no such topic: {', '.join(missing)}; add a Topic or correct spec.topics"
        yield Problem(
            resource=group.key,
            reason=Reason.TOPIC_NOT_FOUND,
            message=message,
            is_stalling=False,
        )


def _plan_reset(
    group: ConsumerGroup, reset: Reset, existing: ObservedGroup, observed: Observed
) -> Iterator[Outcome]:
    offsets, problem = _offsets_of_reset(group, reset, existing, observed)
    if problem:
        yield Problem(resource=group.key, reason=Reason.INVALID_RESET, message=problem)
        return
    if _is_active(group, existing, observed) and not reset.dry_run:
        yield from _empty_the_group(group, reset, existing, observed)
        return
    yield ResetOffsets(
        resource=group.key,
        group=group.group_id,
        request_id=reset.request_id,
        offsets=offsets,
        previous=_previous(group, reset, existing, offsets),
        is_dry_run=reset.dry_run,
        # If there is none yet, the brokers create a share group that starts there.
        is_share=existing.is_share or group.spec.type == "Share",
    )


def _previous(
    group: ConsumerGroup,
    reset: Reset,
    existing: ObservedGroup,
    offsets: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the offsets that undo the reset: if it was begun, those recorded before."""
    last = group.status.last_reset
    if last is not None and last.request_id == reset.request_id and last.state == "Started":
        return {(each.topic, each.partition): each.offset for each in last.previous_offsets}
    return {key: value for key, value in existing.offsets.items() if key in offsets}


def _is_doing(group: ConsumerGroup, reset: Reset | None, observed: Observed) -> bool:
    """Whether the target must stay stopped for a reset that can still be done."""
    if reset is None or reset.dry_run or reset.when_active != "ScaleDown":
        return False
    existing = observed.groups.get(group.group_id, ObservedGroup(state=""))
    return not _offsets_of_reset(group, reset, existing, observed)[1]


def _plan_resume(group: ConsumerGroup, observed: Observed) -> Iterator[Outcome]:
    """Give the target its replicas back; afterwards the lag policy applies again."""
    before, target = group.status.paused_replicas, observed.targets.get(group.key)
    reference = group.present_target
    is_former = reference != group.spec.target_ref
    if before is None:
        yield from plan_scaling(group, observed)
    elif target is None or reference is None:
        return
    elif (problem := target_problem(group, observed)) and not (is_former and target.is_missing):
        yield problem
    else:
        # If a user has started it in the meantime, or it is gone, only the record is removed.
        is_stopped = target.replicas == 0 and not target.is_missing
        yield ScaleTarget(
            resource=group.key,
            target=reference,
            replicas=before if is_stopped else target.replicas,
            previous=target.replicas,
            reason="targetRef names another one" if is_former else "the reset is done",
        )


def _offsets_of_reset(
    group: ConsumerGroup, reset: Reset, existing: ObservedGroup, observed: Observed
) -> tuple[dict[TopicPartition, int], str]:
    last = group.status.last_reset
    if last is not None and last.request_id == reset.request_id and last.state == "Started":
        return {(each.topic, each.partition): each.offset for each in last.offsets}, ""
    partitions = reset_partitions(group, reset, existing, observed)
    if len(partitions) > PARTITIONS_MAX:
        return {}, (
            f"{len(partitions)} partitions are more than the {PARTITIONS_MAX} whose offsets can be"
            " kept for an undo; name some of the topics in spec.reset.topics"
        )
    return reset_offsets(reset, existing, partitions)


def reset_partitions(
    group: ConsumerGroup, reset: Reset, existing: ObservedGroup, observed: Observed
) -> list[TopicPartition]:
    """Return the reset's partitions: those of its topics, of the group, or all committed ones."""
    if reset.to.offsets is not None:
        return [(entry.topic, entry.partition) for entry in reset.to.offsets]
    topics = reset.topics or group.spec.topics or tuple({topic for topic, _ in existing.offsets})
    return sorted(
        (name, index)
        for name in topics
        if name in observed.topics
        for index in range(observed.topics[name].partitions)
    )


def reset_offsets(
    reset: Reset, existing: ObservedGroup, partitions: list[TopicPartition]
) -> tuple[dict[TopicPartition, int], str]:
    """Return the new offsets, or what is wrong with the request.

    Computed offsets are clamped to the log, as Kafka's own reset does. Offsets that the user wrote
    are not changed silently: one out of range is a problem.
    """
    if not partitions:
        return {}, "none of the topics exists; correct spec.reset.topics or spec.topics"
    if reset.to.offsets is not None:
        offsets = {(entry.topic, entry.partition): entry.offset for entry in reset.to.offsets}
        for key, offset in offsets.items():
            problem = _out_of_range(key, offset, existing)
            if problem:
                return {}, problem
        return offsets, ""
    target: Mapping[TopicPartition, int]
    position = (reset.to.position or "").lower()
    if position == "earliest":
        target = existing.start_offsets
    elif position == "latest":
        target = existing.end_offsets
    elif reset.to.shift_by is not None:
        shift = reset.to.shift_by
        target = {
            key: min(
                max(offset + shift, existing.start_offsets.get(key, 0)),
                existing.end_offsets.get(key, offset + shift),
            )
            for key, offset in existing.offsets.items()
        }
        partitions = [key for key in partitions if key in target]
    else:
        target = existing.reset_offsets
    unknown = [f"{topic}-{index}" for topic, index in partitions if (topic, index) not in target]
    if unknown:
        return {}, f"no offset is known for {', '.join(unknown)}"
    return {key: target[key] for key in partitions}, ""


def _out_of_range(key: TopicPartition, offset: int, existing: ObservedGroup) -> str:
    topic, index = key
    if key not in existing.end_offsets:
        return f"spec.reset.to.offsets: there is no partition {topic}-{index}"
    start, end = existing.start_offsets.get(key, 0), existing.end_offsets[key]
    if not start <= offset <= end:
        return f"spec.reset.to.offsets: {topic}-{index} has offsets {start} to {end}, not {offset}"
    return ""


def _empty_the_group(
    group: ConsumerGroup, reset: Reset, existing: ObservedGroup, observed: Observed
) -> Iterator[Outcome]:
    key = target_key(group)
    scaled = observed.targets.get(group.key)
    if reset.when_active == "ScaleDown" and (problem := target_problem(group, observed)):
        yield problem
    if scaled is not None and group.spec.target_ref is not None:
        if reset.when_active == "ScaleDown" and scaled.replicas > 0:
            yield ScaleTarget(
                resource=group.key,
                target=group.spec.target_ref,
                replicas=0,
                previous=scaled.replicas,
                reason=f"reset {reset.request_id}",
                is_pause=True,
            )
    elif key is not None and reset.when_active == "ScaleDown" and _is_running(key, observed):
        yield StopApplication(resource=key, application=key[2])
    message = f"reset {reset.request_id} waits until {_who_is_active(group, existing)}"
    yield Waiting(resource=group.key, reason=Reason.WAITING_FOR_EMPTY_GROUP, message=message)


def _who_is_active(group: ConsumerGroup, existing: ObservedGroup) -> str:
    if existing.state not in EMPTY_STATES:
        members = ", ".join(f"{member.client_id}@{member.host}" for member in existing.members[:3])
        return (
            f"group {group.group_id} is empty; it is"
            f" {existing.state} with {len(existing.members)} members ({members})"
        )
    kind, _, name = target_key(group) or ("", "", "")
    return f"{kind} {name} has stopped; write suspend: true there, or whenActive: ScaleDown here"


def _plan_deletion(group: ConsumerGroup, existing: ObservedGroup | None) -> Iterator[Outcome]:
    policy = group.spec.deletion_policy
    if existing is None or existing.state == "Dead" or policy == "Retain":
        return
    if policy == "Protect":
        message = (
            f"group {group.group_id} exists and deletionPolicy is Protect;"
            " write deletionPolicy: Delete or Retain first"
        )
        yield Problem(resource=group.key, reason=Reason.DELETION_PROTECTED, message=message)
    elif existing.state not in EMPTY_STATES:
        message = (
            f"group {group.group_id} is deleted when it is empty; it is {existing.state}"
            f" with {len(existing.members)} members"
        )
        yield Waiting(resource=group.key, reason=Reason.WAITING_FOR_EMPTY_GROUP, message=message)
    else:
        yield DeleteGroup(resource=group.key, group=group.group_id)
