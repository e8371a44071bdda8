"""Assignments as values: topic id → partitions. Never changed in place."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from headrace_broker.coordinator.modern.topics import TopicsView

Partitions = Mapping[UUID, frozenset[int]]
"""Partitions by topic; every topic in it has partitions."""

NO_PARTITIONS: Final[Partitions] = {}


class TopicPartitionsStruct(Protocol):
    """A topic with partitions in requests, responses and records."""

    topic_id: UUID
    partitions: list[int]


StructT = TypeVar("StructT", bound=TopicPartitionsStruct)


def from_structs(structs: Iterable[TopicPartitionsStruct]) -> Partitions:
    """Return the partitions in a list of structs."""
    return {
        item.topic_id: frozenset(item.partitions) for item in structs if len(item.partitions) > 0
    }


def to_structs(kind: type[StructT], partitions: Partitions) -> list[StructT]:
    """Return structs in a fixed order: equal assignments are equal bytes."""
    return [
        kind(topic_id=topic_id, partitions=sorted(partitions[topic_id]))  # type: ignore[call-arg]  # every such struct has these two fields
        for topic_id in sorted(partitions)
    ]


def to_named_structs(
    kind: Callable[..., Any], partitions: Partitions, topics: TopicsView
) -> list[Any]:
    """Return structs that name their topics too; deleted topics are left out."""
    return [
        kind(
            topic_id=topic_id,
            topic_name=topics.by_id[topic_id].name,
            partitions=sorted(partitions[topic_id]),
        )
        for topic_id in sorted(partitions)
        if topic_id in topics.by_id
    ]


def size(partitions: Partitions) -> int:
    """Return how many partitions there are."""
    return sum(map(len, partitions.values()))


def is_subset(owned: Iterable[TopicPartitionsStruct] | None, assigned: Partitions) -> bool:
    """Whether all partitions that a member claims to own are assigned to it; None claims none."""
    if owned is None:
        return False
    return all(set(item.partitions) <= assigned.get(item.topic_id, frozenset()) for item in owned)


def overlaps(owned: Iterable[TopicPartitionsStruct], partitions: Partitions) -> bool:
    """Whether a member claims to own any of the partitions."""
    return any(
        not partitions.get(item.topic_id, frozenset()).isdisjoint(item.partitions) for item in owned
    )


def without_empty(partitions: Mapping[UUID, Iterable[int]]) -> Partitions:
    """Return the partitions without topics that have none."""
    return {topic_id: frozenset(items) for topic_id, items in partitions.items() if items}
