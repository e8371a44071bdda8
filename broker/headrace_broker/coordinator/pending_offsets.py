"""`PendingOffsets`: the offsets of open transactions, by producer, in the order of the log."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace_broker.coordinator.records import OffsetRecord

TopicPartition = tuple[str, int]
AFTER_ALL = 1 << 62
"""The order of a commit without a transaction: after everything pending."""


@dataclass(slots=True, kw_only=True)
class PendingOffset:
    """One offset that waits for its transaction's marker."""

    record: OffsetRecord
    order: int
    """Its place among the shard's pending offsets."""
    is_overwritten: bool = False
    """Whether a later commit in the log is readable already."""
    previous: "PendingOffset | None" = None
    """The transaction's earlier commit for the same partition."""


@dataclass(slots=True)
class PendingOffsets:
    """The pending offsets of one shard."""

    _by_producer: dict[int, dict[tuple[str, TopicPartition], PendingOffset]] = field(
        default_factory=dict
    )
    _order: int = 0

    def note(self, producer_id: int, record: OffsetRecord) -> PendingOffset:
        """Add a producer's offset; it replaces its earlier one for the same partition."""
        self._order += 1
        key = (record.key.group, (record.key.topic, record.key.partition))
        offsets = self._by_producer.setdefault(producer_id, {})
        previous = offsets.get(key)
        if previous is not None:
            previous.previous = None
        pending = PendingOffset(record=record, order=self._order, previous=previous)
        offsets[key] = pending
        return pending

    def forget(self, producer_id: int, noted: Iterable[PendingOffset | None]) -> None:
        """Remove offsets that were never appended, and restore those that they replaced."""
        offsets = self._by_producer.get(producer_id, {})
        gone = set(map(id, noted))
        for key in [key for key, pending in offsets.items() if id(pending) in gone]:
            previous = offsets.pop(key).previous
            if previous is not None:
                offsets[key] = previous
        if not offsets:
            self._by_producer.pop(producer_id, None)

    def overwrite(self, group_id: str, where: TopicPartition, order: int = AFTER_ALL) -> None:
        """Note that a commit at this place in the log is readable: it overrides pending ones."""
        for offsets in self._by_producer.values():
            pending = offsets.get((group_id, where))
            if pending is not None and pending.order < order:
                pending.is_overwritten = True

    def end(self, producer_id: int) -> list[PendingOffset]:
        """Remove and return a producer's pending offsets, in the order of the log."""
        ended = self._by_producer.pop(producer_id, {})
        return sorted(ended.values(), key=lambda pending: pending.order)

    def pending_of(self, group_id: str) -> set[TopicPartition]:
        """Return a group's partitions with pending offsets."""
        return {
            where
            for offsets in self._by_producer.values()
            for found, where in offsets
            if found == group_id
        }
