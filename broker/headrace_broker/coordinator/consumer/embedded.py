"""The consumer protocol embedded in the classic one: subscriptions and assignments as bytes.

`ConsumerProtocolSubscription` and `ConsumerProtocolAssignment`: a version, then the message. An
unknown version is read as the newest known one, as Kafka's clients do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace_broker.coordinator.modern.assignment import Partitions
from headrace_broker.coordinator.modern.topics import TopicsView
from headrace_broker.protocol.codec import decode, encode_bytes
from headrace_broker.protocol.errors import DecodeError
from headrace_broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from headrace_broker.protocol.messages.records.consumer_protocol_assignment import (
    ConsumerProtocolAssignment,
    TopicPartition,
)
from headrace_broker.protocol.messages.records.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
)

_VERSION_MAX: Final = 3
_PREFIX_BYTES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSubscription:
    """What a classic member subscribes to, and which partitions it says that it owns."""

    topics: tuple[str, ...]
    rack_id: str | None
    owned: Mapping[str, frozenset[int]]
    generation: int = -1
    """The generation in which it was assigned them; -1 if the version has no such field."""

    def owned_structs(
        self, topics: TopicsView
    ) -> list[ConsumerGroupHeartbeatRequestTopicPartitions]:
        """Return its partitions by topic id, in the form of the consumer protocol."""
        return [
            ConsumerGroupHeartbeatRequestTopicPartitions(
                topic_id=topics.by_name[name].topic_id, partitions=sorted(items)
            )
            for name, items in self.owned.items()
            if name in topics.by_name
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedAssignment:
    """What a leader assigned to a member."""

    partitions: Mapping[str, frozenset[int]]
    user_data: bytes


def _version(data: bytes) -> int:
    if len(data) < _PREFIX_BYTES:
        raise DecodeError("no version")
    version = int.from_bytes(data[:_PREFIX_BYTES], "big", signed=True)
    if version < 0:
        raise DecodeError(f"version {version}")
    return min(version, _VERSION_MAX)


def read_subscription(data: bytes) -> EmbeddedSubscription | None:
    """Return a subscription, or None if the bytes are not one."""
    try:
        found, _ = decode(ConsumerProtocolSubscription, data, _version(data), _PREFIX_BYTES)
    except DecodeError:
        return None
    return EmbeddedSubscription(
        topics=tuple(sorted(set(found.topics))),
        rack_id=found.rack_id or None,
        owned={item.topic: frozenset(item.partitions) for item in found.owned_partitions},
        generation=found.generation_id,
    )


def read_assignment(data: bytes) -> EmbeddedAssignment | None:
    """Return an assignment, or None if the bytes are not one."""
    try:
        found, _ = decode(ConsumerProtocolAssignment, data, _version(data), _PREFIX_BYTES)
    except DecodeError:
        return None
    return EmbeddedAssignment(
        partitions={item.topic: frozenset(item.partitions) for item in found.assigned_partitions},
        user_data=bytes(found.user_data or b""),
    )


def encode_assignment(assigned: Partitions, topics: TopicsView, *, like: bytes) -> bytes:
    """Return an assignment in the version of a member's own metadata `like`."""
    try:
        version = _version(like)
    except DecodeError:
        version = 0
    found = [
        TopicPartition(topic=topic.name, partitions=sorted(items))
        for topic_id, items in assigned.items()
        if (topic := topics.by_id.get(topic_id)) is not None
    ]
    message = ConsumerProtocolAssignment(
        assigned_partitions=sorted(found, key=lambda item: item.topic)
    )
    return version.to_bytes(_PREFIX_BYTES, "big") + encode_bytes(message, version)
