"""The `simple` assignor of share groups: every partition has a member, every member a partition.

If there are more members than partitions, members share partitions; otherwise no partition has two.
Members keep their partitions as far as that is balanced. Equal input gives equal output.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from headrace_broker.coordinator.modern.assignment import NO_PARTITIONS, Partitions, without_empty

Where = tuple[UUID, int]


def assign_simple(
    subscriptions: Mapping[str, frozenset[UUID]],
    partitions: Partitions,
    current: Mapping[str, Partitions],
) -> dict[str, Partitions]:
    """Return the target of every member; `partitions` are those that may be assigned."""
    draft = _Draft(subscriptions, partitions)
    draft.keep(current)
    draft.cover_partitions()
    draft.cover_members()
    targets: dict[str, dict[UUID, set[int]]] = {member: {} for member in subscriptions}
    for member, held in draft.held.items():
        for topic_id, index in held:
            targets[member].setdefault(topic_id, set()).add(index)
    return {member: without_empty(target) for member, target in targets.items()}


class _Draft:
    """Targets in progress."""

    def __init__(
        self, subscriptions: Mapping[str, frozenset[UUID]], partitions: Partitions
    ) -> None:
        self._subscriptions = subscriptions
        self._all = [
            (topic_id, index)
            for topic_id in sorted(partitions)
            for index in sorted(partitions[topic_id])
        ]
        self.held: dict[str, list[Where]] = {member: [] for member in sorted(subscriptions)}
        self._sharers: dict[Where, int] = dict.fromkeys(self._all, 0)

    def keep(self, current: Mapping[str, Partitions]) -> None:
        """Let members keep their partitions, up to a member's and a partition's share."""
        count = max(1, len(self.held))
        slots = max(len(self._all), count)
        low, extra = divmod(slots, count)
        sharers_max = -(-slots // max(1, len(self._all)))
        sizes = {
            member: sum(map(len, current.get(member, NO_PARTITIONS).values()))
            for member in self.held
        }
        for member in sorted(self.held, key=lambda member: (-sizes[member], member)):
            quota = low + (sizes[member] > low and extra > 0)
            extra -= quota - low
            for where in self._eligible(member):
                if len(self.held[member]) >= quota:
                    break
                is_held = where[1] in current.get(member, NO_PARTITIONS).get(where[0], ())
                if is_held and self._sharers[where] < sharers_max:
                    self._give(member, where)

    def cover_partitions(self) -> None:
        """Give each unassigned partition to the least loaded subscriber."""
        for where in self._all:
            if self._sharers[where]:
                continue
            takers = [member for member in self.held if where[0] in self._subscriptions[member]]
            if takers:
                self._give(min(takers, key=lambda member: (len(self.held[member]), member)), where)

    def cover_members(self) -> None:
        """Give each member without partitions the one with the fewest members."""
        for member, held in self.held.items():
            eligible = self._eligible(member)
            if not held and eligible:
                self._give(member, min(eligible, key=lambda where: (self._sharers[where], where)))

    def _eligible(self, member: str) -> Sequence[Where]:
        topics = self._subscriptions[member]
        return [where for where in self._all if where[0] in topics]

    def _give(self, member: str, where: Where) -> None:
        self.held[member].append(where)
        self._sharers[where] += 1
