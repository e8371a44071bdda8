"""The `uniform` assignor: all members have the same number of partitions, give or take one.

If all members subscribe to the same topics, as in most groups, partitions move only from members
above their share to members below it: one that joins a thousand others moves only its own ten
partitions. If subscriptions differ, each topic's partitions go to its least loaded subscribers, and
move until no move would improve the balance between two of them. A partition goes to a member in a
rack of its replicas if that costs no balance (KIP-881).
"""

import heapq
from collections.abc import Iterable, Mapping
from uuid import UUID

from headrace_broker.coordinator.modern.assignment import Partitions, without_empty
from headrace_broker.coordinator.modern.assignor import AssignmentSpec

Partition = tuple[UUID, int]


def assign_uniform(spec: AssignmentSpec) -> dict[str, Partitions]:
    """Return the new target of every member whose target changes."""
    if not spec.members:
        return {}
    if isinstance(spec.subscriptions, frozenset):
        return _Even(spec, spec.subscriptions).assign()
    return _Uneven(spec, spec.subscriptions).assign()


class _Draft:
    """Targets in progress: a member's target is copied at its first change."""

    def __init__(self, spec: AssignmentSpec) -> None:
        self.spec = spec
        self.changed: dict[str, dict[UUID, set[int]]] = {}

    def of(self, member_id: str) -> dict[UUID, set[int]]:
        """Return the member's target, for changing."""
        target = self.changed.get(member_id)
        if target is None:
            current = self.spec.target_of(member_id)
            target = {topic_id: set(items) for topic_id, items in current.items()}
            self.changed[member_id] = target
        return target

    def give(self, member_id: str, partition: Partition) -> None:
        """Add a partition to the member's target."""
        self.of(member_id).setdefault(partition[0], set()).add(partition[1])

    def take(self, member_id: str, partition: Partition) -> None:
        """Remove a partition from the member's target."""
        self.of(member_id)[partition[0]].discard(partition[1])

    def result(self) -> dict[str, Partitions]:
        """Return the targets that have changed."""
        targets = {member_id: without_empty(target) for member_id, target in self.changed.items()}
        return {
            member_id: target
            for member_id, target in targets.items()
            if target != self.spec.target_of(member_id) or member_id not in self.spec.current
        }


class _Even:
    """All members subscribe to the same topics."""

    def __init__(self, spec: AssignmentSpec, topics: frozenset[UUID]) -> None:
        self._spec = spec
        self._topics = sorted(topics)
        self._draft = _Draft(spec)
        self._sizes = {member: spec.sizes.get(member, 0) for member in spec.members}
        total = sum(spec.topics[topic_id].partition_count for topic_id in topics)
        self._low, self._extra = divmod(total, len(spec.members))

    def assign(self) -> dict[str, Partitions]:
        """Free the partitions that must move, then give them to members below their share."""
        pool = self._drop_foreign_topics()
        pool += self._unowned()
        pool += self._take_from_the_full()
        self._hand_out(sorted(pool))
        for member in self._spec.members:
            if member not in self._spec.current:
                self._draft.of(member)  # each member has a target, even an empty one
        return self._draft.result()

    def _drop_foreign_topics(self) -> list[Partition]:
        """Remove topics without subscribers; their partitions are not assigned again."""
        wanted = set(self._topics)
        if self._spec.owners.keys() <= wanted:
            return []
        for member in self._spec.members:
            target = self._spec.target_of(member)
            for topic_id in target.keys() - wanted:
                self._sizes[member] -= len(target[topic_id])
                self._draft.of(member).pop(topic_id)
        return []

    def _unowned(self) -> list[Partition]:
        free: list[Partition] = []
        for topic_id in self._topics:
            owners = self._spec.owners.get(topic_id, {})
            count = self._spec.topics[topic_id].partition_count
            if len(owners) < count:
                free += [(topic_id, index) for index in range(count) if index not in owners]
        return free

    def _take_from_the_full(self) -> list[Partition]:
        freed: list[Partition] = []
        over = sorted((-held, member) for member, held in self._sizes.items() if held > self._low)
        for place, (held, member) in enumerate(over):
            quota = self._low + (place < self._extra)
            count = -held - quota
            for partition in self._least_wanted(member, count) if count > 0 else ():
                self._draft.take(member, partition)
                freed.append(partition)
            self._sizes[member] = min(-held, quota)
        return freed

    def _least_wanted(self, member: str, count: int) -> list[Partition]:
        """Return the partitions to give away: those of other racks first, then the last ones."""
        held = [
            (topic_id, index)
            for topic_id, items in self._draft.of(member).items()
            for index in items
        ]
        if self._spec.racks:
            held.sort(key=lambda item: (not self._spec.is_near(member, *item), item), reverse=True)
        else:
            held.sort(reverse=True)
        return held[:count]

    def _hand_out(self, pool: list[Partition]) -> None:
        """Fill up the smallest members first, in rounds, so that a topic spreads over members."""
        above = sum(held > self._low for held in self._sizes.values())
        takers: list[tuple[str, int]] = []
        limit = self._low + (above < self._extra)
        small = [(held, member) for member, held in self._sizes.items() if held < limit]
        for held, member in sorted(small):
            room = self._low - held
            if above < self._extra and room >= 0:
                room, above = room + 1, above + 1
            if room > 0:
                takers.append((member, room))
        if self._spec.racks:
            pool = self._hand_out_near(pool, takers)
        rooms = dict(takers)
        waiting = iter(pool)
        while rooms:
            for member in list(rooms):
                partition = next(waiting, None)
                if partition is None:
                    return
                self._draft.give(member, partition)
                rooms[member] -= 1
                if rooms[member] == 0:
                    del rooms[member]

    def _hand_out_near(
        self, pool: list[Partition], takers: list[tuple[str, int]]
    ) -> list[Partition]:
        """Give partitions to takers in one of their racks; return the rest and update `takers`."""
        by_rack: dict[str, list[str]] = {}
        rooms = dict(takers)
        for member, _ in takers:
            if (rack := self._spec.racks.get(member)) is not None:
                by_rack.setdefault(rack, []).append(member)
        rest: list[Partition] = []
        for partition in pool:
            racks = self._spec.topics[partition[0]].racks
            near = racks[partition[1]] if partition[1] < len(racks) else frozenset[str]()
            candidates = [
                (-rooms[member], member)
                for rack in near
                for member in by_rack.get(rack, ())
                if rooms[member] > 0
            ]
            if candidates:
                _, member = min(candidates)
                self._draft.give(member, partition)
                rooms[member] -= 1
            else:
                rest.append(partition)
        takers[:] = [(member, rooms[member]) for member, _ in takers if rooms[member] > 0]
        return rest


class _Uneven:
    """Members subscribe to different topics."""

    def __init__(self, spec: AssignmentSpec, subscriptions: Mapping[str, frozenset[UUID]]) -> None:
        self._spec = spec
        self._draft = _Draft(spec)
        self._loads: dict[str, int] = {}
        self._owners: dict[UUID, dict[int, str]] = {}
        self._subscribers: dict[UUID, list[str]] = {}
        for member in sorted(spec.members):
            for topic_id in subscriptions[member]:
                self._subscribers.setdefault(topic_id, []).append(member)
        # The topics with the fewest choices first.
        self._topics = sorted(
            self._subscribers, key=lambda topic_id: (len(self._subscribers[topic_id]), topic_id)
        )

    def assign(self) -> dict[str, Partitions]:
        """Keep valid partitions, assign free ones, then balance."""
        for member in self._spec.members:
            self._keep(member)
        for topic_id in self._topics:
            self._assign_free(topic_id)
        while sum(self._even_out(topic_id) for topic_id in self._topics):
            pass  # each move lowers the sum of squared loads, so this ends
        return self._draft.result()

    def _keep(self, member: str) -> None:
        wanted = self._spec.topics_of(member)
        target = self._spec.target_of(member)
        kept = {topic_id: set(items) for topic_id, items in target.items() if topic_id in wanted}
        if len(kept) < len(target) or member not in self._spec.current:
            self._draft.changed[member] = kept
        self._loads[member] = sum(map(len, kept.values()))
        for topic_id, items in kept.items():
            self._owners.setdefault(topic_id, {}).update(dict.fromkeys(items, member))

    def _assign_free(self, topic_id: UUID) -> None:
        owners = self._owners.setdefault(topic_id, {})
        heap = self._by_load(self._subscribers[topic_id])
        for index in range(self._spec.topics[topic_id].partition_count):
            if index in owners:
                continue
            load, member = heap[0]
            if self._spec.racks:
                near = [
                    item
                    for item in heap
                    if item[0] == load and self._spec.is_near(item[1], topic_id, index)
                ]
                member = min(near)[1] if near else member
            self._move(topic_id, index, None, member)
            if member == heap[0][1]:
                heapq.heapreplace(heap, (load + 1, member))
            else:
                heap = self._by_load(self._subscribers[topic_id])

    def _even_out(self, topic_id: UUID) -> bool:
        """Move this topic's partitions from the most to the least loaded while that helps."""
        owners = self._owners[topic_id]
        held: dict[str, list[int]] = {}
        for index in sorted(owners):
            held.setdefault(owners[index], []).append(index)
        givers = [(-self._loads[member], member) for member in held]
        heapq.heapify(givers)
        takers = self._by_load(self._subscribers[topic_id])
        moved = False
        while givers and takers:
            load, giver = givers[0]
            if -load != self._loads[giver] or not held[giver]:
                heapq.heappop(givers)
                if held[giver]:
                    heapq.heappush(givers, (-self._loads[giver], giver))
                continue
            low, taker = takers[0]
            if low != self._loads[taker]:
                heapq.heapreplace(takers, (self._loads[taker], taker))
                continue
            if -load - low <= 1:
                break
            self._move(topic_id, held[giver].pop(), giver, taker)
            moved = True
        return moved

    def _by_load(self, members: Iterable[str]) -> list[tuple[int, str]]:
        heap = [(self._loads[member], member) for member in members]
        heapq.heapify(heap)
        return heap

    def _move(self, topic_id: UUID, index: int, giver: str | None, taker: str) -> None:
        if giver is not None:
            self._draft.take(giver, (topic_id, index))
            self._loads[giver] -= 1
        self._draft.give(taker, (topic_id, index))
        self._loads[taker] += 1
        self._owners[topic_id][index] = taker
