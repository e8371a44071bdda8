"""Plans topics: creation, partitions, settings, deletion, drift. Pure.

If the spec's generation is newer than the last reconciled one, a difference is the user's change
and is always applied. Otherwise another client made it: that is drift, handled according to
`spec.drift`. An existing topic is adopted: it is compared like one that the operator created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.plan.actions import (
    AlterTopicConfig,
    ChangeReplicationFactor,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
)
from headrace_operator.plan.brokers import config_text
from headrace_operator.plan.factors import plan_factor
from headrace_operator.plan.model import (
    Action,
    Desired,
    Observed,
    ObservedTopic,
    Problem,
    Waiting,
)
from headrace_operator.resources import Reason, Topic

if TYPE_CHECKING:
    from collections.abc import Iterator

Outcome = Action | Problem | Waiting

#: The throttle of moves (KIP-73), set while replicas move. It does not count as drift: without it a
#: throttled reassignment would run at full speed. A throttle from a spec is removed with the spec's
#: field: the status remembers it.
MOVERS_SETTINGS = frozenset(
    {"follower.replication.throttled.replicas", "leader.replication.throttled.replicas"}
)


def plan_topics(observed: Observed, desired: Desired, *, busy: int = 0) -> Iterator[Outcome]:
    """Compare topics with those of the brokers. Topics without a manifest are left alone.

    `busy`: partitions that brokers are about to move besides.
    """
    moving = observed.cluster.reassigning if observed.cluster else frozenset()
    room = (desired.cluster.spec.moves.concurrent if desired.cluster else 0) - len(moving) - busy
    owners: dict[str, Topic] = {}
    going = [topic for topic in desired.topics if topic.key in desired.deleted]
    for topic in desired.topics:
        name = topic.topic_name
        if topic.key in desired.deleted:
            continue
        if name in owners:
            message = (
                f"topic {name} is already described by {owners[name].title};"
                " delete one of the two resources"
            )
            yield Problem(resource=topic.key, reason=Reason.DUPLICATE_TOPIC, message=message)
        else:
            owners[name] = topic
            existing = observed.topics.get(name)
            if existing is None:
                yield _plan_creation(topic, observed, desired)
            else:
                for outcome in _plan_change(topic, existing, observed, desired, room):
                    if isinstance(outcome, ChangeReplicationFactor):
                        room -= outcome.copies
                    yield outcome
    for topic in going:
        # If another resource still describes the same topic, it stays.
        if topic.topic_name not in owners:
            owners[topic.topic_name] = topic
            yield from _plan_deletion(topic, observed.topics.get(topic.topic_name))


def _plan_creation(topic: Topic, observed: Observed, desired: Desired) -> Outcome:
    replicas = topic.spec.replicas
    if replicas is not None and replicas > (alive := count_brokers(observed)):
        planned = _planned_brokers(desired)
        if replicas > planned:
            message = (
                f"{replicas} replicas need {replicas} brokers and the cluster has {planned};"
                " lower spec.replicas or give a pool more replicas"
            )
            return Problem(resource=topic.key, reason=Reason.TOO_FEW_BROKERS, message=message)
        message = f"{replicas} replicas need {replicas} brokers; {alive} are registered"
        return Waiting(resource=topic.key, reason=Reason.WAITING_FOR_BROKERS, message=message)
    return CreateTopic(
        resource=topic.key,
        topic=topic.topic_name,
        partitions=topic.spec.partitions,
        replicas=-1 if replicas is None else replicas,
        config={key: config_text(value) for key, value in topic.spec.config.items()},
    )


def count_brokers(observed: Observed) -> int:
    """Count registered brokers that can hold replicas."""
    brokers = observed.cluster.brokers if observed.cluster else ()
    return sum(broker.is_registered and "broker" in broker.roles for broker in brokers)


def _planned_brokers(desired: Desired) -> int:
    pools = desired.cluster.spec.pools if desired.cluster else ()
    return sum(pool.replicas for pool in pools if "broker" in pool.roles)


def _plan_change(
    topic: Topic, existing: ObservedTopic, observed: Observed, desired: Desired, room: int
) -> Iterator[Outcome]:
    policy = topic.spec.drift
    if topic.metadata.generation != topic.status.reconciled_generation:
        policy = "Enforce"
    if policy == "Ignore":
        return
    is_enforced = policy == "Enforce"
    yield from _plan_partitions(topic, existing, is_enforced=is_enforced)
    factor: list[Outcome] = []
    if desired.cluster is not None:
        factor += plan_factor(topic, existing, observed, desired.cluster, room)
    for outcome in factor:
        if is_enforced or (isinstance(outcome, Problem) and not outcome.is_stalling):
            yield outcome
        elif isinstance(outcome, Action):
            yield _drift(topic, outcome)
    change = config_difference(topic, existing)
    if change is not None:
        if is_enforced:
            yield change
        else:
            yield _drift(topic, change)


def _plan_partitions(
    topic: Topic, existing: ObservedTopic, *, is_enforced: bool
) -> Iterator[Outcome]:
    wanted = topic.spec.partitions
    if wanted < existing.partitions:
        message = (
            f"the topic has {existing.partitions} partitions and the spec says {wanted};"
            " partitions cannot be removed without losing records:"
            f" write partitions: {existing.partitions}, or move to a new topic"
        )
        yield Problem(
            resource=topic.key,
            reason=Reason.PARTITIONS_CANNOT_SHRINK,
            message=message,
            is_stalling=is_enforced,
        )
    elif wanted > existing.partitions:
        action = CreatePartitions(
            resource=topic.key,
            topic=topic.topic_name,
            partitions=wanted,
            current=existing.partitions,
        )
        yield action if is_enforced else _drift(topic, action)


def _drift(topic: Topic, action: Action) -> Problem:
    message = f"the brokers differ from the spec, and drift: Report leaves it: {action.describe()}"
    return Problem(
        resource=topic.key, reason=Reason.DRIFT_REPORTED, message=message, is_stalling=False
    )


def config_difference(topic: Topic, existing: ObservedTopic) -> AlterTopicConfig | None:
    """Return the change from the topic's own settings to the spec's, or None."""
    wanted = {key: config_text(value) for key, value in topic.spec.config.items()}
    unmanaged = set(topic.spec.unmanaged_config)
    changed = {
        key: value
        for key, value in wanted.items()
        if key not in unmanaged and not _same(existing.config.get(key), value)
    }
    others = MOVERS_SETTINGS - applied_throttles(topic, existing).keys()
    surplus = tuple(sorted(set(existing.config) - set(wanted) - unmanaged - others))
    if not changed and not surplus:
        return None
    return AlterTopicConfig(
        resource=topic.key,
        topic=topic.topic_name,
        set=changed,
        delete=surplus,
        previous={
            key: existing.config[key] for key in (*changed, *surplus) if key in existing.config
        },
    )


def applied_throttles(topic: Topic, existing: ObservedTopic) -> dict[str, str]:
    """Return the throttle settings that the topic has from its spec, or last had from it.

    A value that another client has changed since no longer belongs to the spec.
    """
    found = {}
    for key in sorted(MOVERS_SETTINGS - set(topic.spec.unmanaged_config)):
        ours = topic.spec.config.get(key, topic.status.throttles.get(key))
        if ours is not None and _same(existing.config.get(key), config_text(ours)):
            found[key] = existing.config[key]
    return found


def _same(current: str | None, wanted: str) -> bool:
    if current is None:
        return False
    return _canonical(current) == _canonical(wanted)


def _canonical(value: str) -> str:
    # Brokers keep the original text: `compact, delete` and `TRUE` stay as they are.
    lowered = value.strip().lower()
    if lowered in ("true", "false"):
        return lowered
    return ",".join(part.strip() for part in value.split(","))


def _plan_deletion(topic: Topic, existing: ObservedTopic | None) -> Iterator[Outcome]:
    policy = topic.spec.deletion_policy
    if existing is None or policy == "Retain":
        return
    if topic.status.topic_id and existing.topic_id not in ("", topic.status.topic_id):
        # Another client created a new topic with this name: it never belonged to this resource.
        return
    if policy == "Protect":
        message = (
            f"topic {topic.topic_name} exists and deletionPolicy is Protect;"
            " write deletionPolicy: Delete or Retain first"
        )
        yield Problem(resource=topic.key, reason=Reason.DELETION_PROTECTED, message=message)
    else:
        yield DeleteTopic(resource=topic.key, topic=topic.topic_name)
