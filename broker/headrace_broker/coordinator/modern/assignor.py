"""The input and output of an assignor.

An assignor changes as little as possible: it starts from the current target and returns only
members whose target changes, so that one joining or leaving member costs only what it moves. Equal
input gives equal output, in whatever order members and topics come.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from headrace_broker.coordinator.modern.assignment import NO_PARTITIONS, Partitions
from headrace_broker.coordinator.modern.topics import TopicView


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentSpec:
    """A group as its assignor sees it. All topics in it exist."""

    members: Sequence[str]
    subscriptions: Mapping[str, frozenset[UUID]] | frozenset[UUID]
    """Each member's topics, or one set where all have the same."""
    topics: Mapping[UUID, TopicView]
    current: Mapping[str, Partitions]
    """The present target; members without one are left out."""
    sizes: Mapping[str, int]
    """How many partitions `current` gives each member."""
    owners: Mapping[UUID, Mapping[int, str]]
    """The same by partition."""
    racks: Mapping[str, str] = field(default_factory=dict)
    instance_ids: Mapping[str, str] = field(default_factory=dict)

    def topics_of(self, member_id: str) -> frozenset[UUID]:
        """Return what a member subscribes to."""
        if isinstance(self.subscriptions, frozenset):
            return self.subscriptions
        return self.subscriptions[member_id]

    def target_of(self, member_id: str) -> Partitions:
        """Return a member's present target."""
        return self.current.get(member_id, NO_PARTITIONS)

    def is_near(self, member_id: str, topic_id: UUID, partition: int) -> bool:
        """Whether a replica of the partition is in the member's rack."""
        racks = self.topics[topic_id].racks
        return partition < len(racks) and self.racks.get(member_id) in racks[partition]


Assignor = Callable[[AssignmentSpec], dict[str, Partitions]]
"""Returns the new target of every member whose target changes."""
