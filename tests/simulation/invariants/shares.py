"""Invariants of share groups: who has a record, how often it was delivered, what became of it.

A second book is kept of what each `SharePartition` does, by the rules of KIP-932 stated once more,
and held against what members were answered (`workloads.share` tells of that) and against what
`__share_group_state` has. A leader that was replaced and has not heard of it may deliver what its
successor's members have acknowledged; Kafka's may, too, and only the newest leader is judged.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace_broker.coordinator.share_partition.partition import SharePartition
from headrace_broker.coordinator.share_partition.states import AcknowledgeType, RecordState
from headrace_broker.protocol.batch import Record
from headrace_broker.server.shares.share_partition_driver import SharePartitionDriver, Status
from simulation.cluster import Cluster, Node
from simulation.history import History
from simulation.invariants.invariant import Invariant
from simulation.share_faults import GIVEN_TWICE
from simulation.workloads.share import GROUP, TOPIC

Place = tuple[int, int]
"""A record: its partition and its offset."""
_LOOK_SECONDS = 0.2
_LATE_SECONDS = 2.0
"""How late a lock may end where a disk blocks the process."""
_FINAL = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVING, RecordState.ARCHIVED})
"""Nobody is given it again; what is Archiving waits for its dead letter alone."""


@dataclass(slots=True, kw_only=True)
class Hold:
    """Who was given a record, until when, and what she has said of it."""

    member_id: str
    deadline_ms: int
    said: AcknowledgeType | None = None
    first_deadline_ms: int = 0


@dataclass(slots=True)
class Book:
    """What one `SharePartition` has done so far."""

    holds: dict[int, Hold] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    """How often each offset was delivered, as far as that counts."""
    lapsed: dict[int, str] = field(default_factory=dict)
    """Whose lock of an offset ran out."""


@dataclass(slots=True)
class Kept:
    """What `__share_group_state` must have of one partition: what was written with success."""

    start: int = -1
    states: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By offset: state and delivery count."""
    least: dict[int, int] = field(default_factory=dict)
    """The smallest delivery count that was sent since: its outcome may be unknown."""


class Shares(Invariant):
    """The second book, and the looks at leaders' start offsets."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        super().__init__(cluster, history)
        history.shares = self
        self.said: set[Place] = set()
        """ACCEPT or REJECT was sent: it may be done with."""
        self.said_accept: set[Place] = set()
        self.accepted: set[Place] = set()
        """ACCEPT took effect at the leader."""
        self.indexes: dict[SharePartition, int] = {}
        """Which partition it is, once it was fetched from."""
        self.dead_letters: tuple[list[tuple[int, Record]], int] | None = None
        """What the dead-letter topic has in the end, by partition, and how many these are."""
        self.done: dict[Place, str] = {}
        """ACCEPT or REJECT was answered with success."""
        self.exhausted: set[Place] = set()
        """It was delivered as often as may be."""
        self.delivered: dict[Place, Any] = {}
        """By whom it was delivered last."""
        self.strangers: set[str] = set()
        """Members that a leader told INVALID_REQUEST, for what it had not delivered in this epoch.

        Kafka does, too: SharePartition.fetchSubMap.
        """
        self.values: dict[Place, bytes] = {}
        """What members were given."""
        self.kept: dict[int, Kept] = {}
        self.moment: Callable[[str], None] = lambda _moment: None
        """Called with what faults are aimed at."""
        self.end_faults: Callable[[], Awaitable[None]] = _nothing
        """Called when nothing else strikes any more."""
        self.cut_off: Node | None = None
        """A leader that its peers do not hear, but its members do."""
        self._books: dict[SharePartition, Book] = {}
        self._checked: dict[int, int] = {}
        self._paused: dict[int, float] = {}
        self._next_look: dict[int, float] = {}
        self._epochs: dict[int, int] = {}

    @property
    def is_on(self) -> bool:
        """Whether this seed has share groups."""
        return "share" in self.cluster.profile.works

    def book(self, state: SharePartition) -> Book:
        """Return what is known of a share partition in memory."""
        return self._books.setdefault(state, Book())

    def newest_epoch(self, index: int) -> int:
        """Return the newest leader epoch of a partition that any broker knew so far."""
        for node in self.cluster.nodes:
            broker: Any = node.broker
            if broker is None or not broker.is_composed:
                continue
            partition = broker.metadata.partition(TOPIC, index)
            if partition is not None:
                epoch = int(partition.leader_epoch)
                self._epochs[index] = max(epoch, self._epochs.get(index, -1))
        return self._epochs.get(index, -1)

    def check_node(self, node: Node) -> None:
        """No start offset passes a record that nobody is done with; locks end when they should."""
        if not self.is_on:
            return
        now = self.cluster.loop.time()
        if node.process is not None and node.process.is_paused:
            self._paused[node.node_id] = now
            return
        looks_at_locks = now >= self._next_look.get(node.node_id, 0.0)
        if looks_at_locks:
            self._next_look[node.node_id] = now + _LOOK_SECONDS
        broker: Any = node.broker
        for key, driver in broker.shares.partitions._drivers.items():
            if driver.status is Status.ACTIVE and key.group_id == GROUP:
                self.started(key.partition, driver.state.start_offset, f"{node}")
                if looks_at_locks:
                    since = max(now - _LATE_SECONDS, self._paused.get(node.node_id, 0.0))
                    self._check_locks(node, self.book(driver.state), since, now)

    def _check_locks(self, node: Node, book: "Book", since: float, now: float) -> None:
        """What was held beyond its lock is taken back, unless the process stood still."""
        if now - since < _LATE_SECONDS:
            return
        for offset, hold in book.holds.items():
            if hold.said is None and hold.deadline_ms < since * 1000:
                self.history.violate(
                    "lock-overdue", f"{node}: {offset} is {hold.member_id}'s since {hold}"
                )

    def started(self, index: int, start: int, where: str) -> None:
        """Take a start offset: all below it is done with."""
        for offset in range(self._checked.get(index, 0), start):
            place = (index, offset)
            if place not in self.said and place not in self.exhausted:
                self.history.violate(
                    "lost-share-record", f"{place} is below the start offset {start} at {where}"
                )
        self._checked[index] = max(start, self._checked.get(index, 0))

    # ---- what members see

    def saying(self, index: int, said: Iterable[tuple[int, AcknowledgeType]]) -> None:
        """Note what is sent."""
        for offset, kind in said:
            if kind in {AcknowledgeType.ACCEPT, AcknowledgeType.REJECT}:
                self.said.add((index, offset))
            if kind is AcknowledgeType.ACCEPT:
                self.said_accept.add((index, offset))

    def answered(self, index: int, said: Iterable[tuple[int, AcknowledgeType]]) -> None:
        """Note what was answered with success."""
        for offset, kind in said:
            if kind in {AcknowledgeType.ACCEPT, AcknowledgeType.REJECT}:
                self.done.setdefault((index, offset), kind.name)

    def received(self, index: int, offset: int, value: bytes) -> None:
        """Take a record as a member was given it."""
        before = self.values.setdefault((index, offset), value)
        if before != value:
            self.history.violate("share-record", f"{index}/{offset} was {before!r}, is {value!r}")

    # ---- what leaders do

    def acquired(self, driver: SharePartitionDriver, ranges: Iterable[Any]) -> None:
        """Judge a delivery by what members were answered."""
        index = driver.key.partition
        for item in ranges:
            for offset in range(item.first, item.last + 1):
                place = (index, offset)
                before = self.delivered.get(place)
                self.delivered[place] = driver.state
                if before is not None and before is not driver.state:
                    self.history.reach("a record is redelivered by another leader or life of one")
                if place not in self.done:
                    continue
                if driver._leader_epoch < self.newest_epoch(index):
                    self.history.reach(GIVEN_TWICE)
                    continue
                self.history.violate(
                    "delivered-after-done",
                    f"{place} was answered {self.done[place]}, and is delivered again",
                )

    # ---- what is kept

    def sends(self, index: int, change: Any) -> None:
        """Note a write that is sent: from now on it may be what is kept."""
        kept = self.kept.setdefault(index, Kept())
        for offset, _, count in each(change.batches):
            kept.least[offset] = min(count, kept.least.get(offset, count))

    def wrote(self, index: int, change: Any) -> None:
        """Take a write that was answered with success."""
        kept = self.kept.setdefault(index, Kept())
        kept.start = max(kept.start, change.start_offset)
        for offset, state, count in each(change.batches):
            kept.states[offset] = (state, count)
            kept.least[offset] = count
        self.started(index, change.start_offset, "the share coordinator")

    def known(self, index: int) -> tuple[int, dict[int, tuple[int, int]], set[int]]:
        """Return what a reader who asks now must find: start, states, offsets done with."""
        kept = self.kept.get(index, Kept())
        done = {offset for place, offset in self.done if place == index}
        return kept.start, dict(kept.states), done

    def found(self, index: int, known: tuple[int, Any, set[int]], state: Any) -> None:
        """Judge what a leader read."""
        start, states, done = known
        found = {offset: (kind, count) for offset, kind, count in each(state.batches)}
        where = f"partition {index}, start {state.start_offset}"
        final = done | {offset for offset, (kind, _) in states.items() if kind in _FINAL}
        final |= set(range(self._first_unsure(index), start))
        for offset in final:
            if offset >= state.start_offset and found.get(offset, (0, 0))[0] not in _FINAL:
                self.history.violate("acknowledgement-lost", f"{where}: {offset} is not done with")
        least = self.kept.get(index, Kept()).least
        for offset, (kind, count) in states.items():
            if offset < state.start_offset or kind in _FINAL:
                continue
            seen = found.get(offset, (0, 0))
            if seen[0] not in _FINAL and seen[1] < min(count, least.get(offset, count)):
                self.history.violate(
                    "delivery-count-went-back", f"{where}: {offset} had {count}, has {seen[1]}"
                )

    def _first_unsure(self, index: int) -> int:
        return max(0, self.kept.get(index, Kept()).start - 200)


async def _nothing() -> None:
    """Where no share group is."""


def book_of(history: History, state: SharePartition) -> Book | None:
    """Return what is known of a share partition; None in seeds without share groups."""
    shares = history.shares
    return shares.book(state) if shares is not None and shares.is_on else None


def each(batches: Iterable[Any]) -> Iterator[tuple[int, int, int]]:
    for batch in batches:
        for offset in range(batch.first_offset, batch.last_offset + 1):
            yield offset, batch.delivery_state, batch.delivery_count
