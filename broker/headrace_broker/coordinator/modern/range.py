"""The `range` assignor: each subscriber of a topic gets a range of partitions of even size.

Topics with equal partition counts and subscribers are assigned alike, so that a member that joins
two topics by key gets both sides. Members keep their partitions as far as their share allows, as in
Kafka's coordinator.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from headrace_broker.coordinator.modern.assignment import Partitions, without_empty
from headrace_broker.coordinator.modern.assignor import AssignmentSpec


def assign_range(spec: AssignmentSpec) -> dict[str, Partitions]:
    """Return the new target of every member whose target changes."""
    targets: dict[str, dict[UUID, frozenset[int]]] = {member: {} for member in spec.members}
    # An instance id outlives a restart: ordering by it keeps ranges with their members.
    ordered = sorted(
        spec.members, key=lambda member: (spec.instance_ids.get(member, member), member)
    )
    subscribers: dict[UUID, list[str]] = {}
    for member in ordered:
        for topic_id in spec.topics_of(member):
            subscribers.setdefault(topic_id, []).append(member)
    near = _racks_that_agree(spec, subscribers)
    for topic_id, members in subscribers.items():
        shares = _assign_topic(spec, topic_id, members, prefer_near=topic_id in near)
        for member, items in shares.items():
            targets[member][topic_id] = frozenset(items)
    result = {member: without_empty(target) for member, target in targets.items()}
    return {
        member: target
        for member, target in result.items()
        if member not in spec.current or target != spec.current[member]
    }


def _racks_that_agree(
    spec: AssignmentSpec, subscribers: Mapping[UUID, Sequence[str]]
) -> frozenset[UUID]:
    """Return the topics for which racks may count: co-partitioned ones must stay aligned."""
    if not spec.racks:
        return frozenset()
    alike: dict[tuple[int, tuple[str, ...]], list[UUID]] = {}
    for topic_id, members in subscribers.items():
        key = (spec.topics[topic_id].partition_count, tuple(members))
        alike.setdefault(key, []).append(topic_id)
    return frozenset(
        topic_id
        for topic_ids in alike.values()
        if len({spec.topics[item].racks for item in topic_ids}) == 1
        for topic_id in topic_ids
    )


def _assign_topic(
    spec: AssignmentSpec, topic_id: UUID, members: Sequence[str], *, prefer_near: bool
) -> dict[str, list[int]]:
    count = spec.topics[topic_id].partition_count
    low, extra = divmod(count, len(members))
    shares: dict[str, list[int]] = {}
    for member in members:
        held = sorted(spec.target_of(member).get(topic_id, ()))
        keep = low
        if len(held) > low and extra > 0:
            keep, extra = low + 1, extra - 1
        shares[member] = held[:keep]
    taken = {index for items in shares.values() for index in items}
    free = [index for index in range(count) if index not in taken]
    for member in members:
        room = low - len(shares[member])
        if room >= 0 and extra > 0:
            room, extra = room + 1, extra - 1
        if room <= 0:
            continue
        if prefer_near:
            near = [index for index in free if spec.is_near(member, topic_id, index)]
            free = near + [index for index in free if index not in set(near)]
        shares[member] += free[:room]
        free = sorted(free[room:])
    return shares
