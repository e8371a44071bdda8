"""`PendingOffsets`: the offsets of open transactions, by producer, in the order of the log."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace_broker.coordinator.records import OffsetRecord

TopicPartition = tuple[str, int]
AFTER_ALL = 1 << 62
"""The place of a commit that is not transactional: behind all that is pending."""


@dataclass(slots=True, kw_only=True)
class PendingOffset:
    """One offset that waits for a marker."""

    record: OffsetRecord
    order: int
    """Its place among the shard's pending offsets."""
    is_overwritten: bool = False
    """A commit that is later in the log is readable already."""
    previous: "PendingOffset | None" = None
    """What the transaction had committed there before."""


@dataclass(slots=True)
class PendingOffsets:
    """Those of one shard."""

    _by_producer: dict[int, dict[tuple[str, TopicPartition], PendingOffset]] = field(
        default_factory=dict
    )
    _order: int = 0

    def note(self, producer_id: int, record: OffsetRecord) -> PendingOffset:
        """Keep a producer's offset; its earlier one of the same partition is replaced."""
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
        """Take out offsets that never came into the log: what was before them counts again."""
        offsets = self._by_producer.get(producer_id, {})
        gone = set(map(id, noted))
        for key in [key for key, pending in offsets.items() if id(pending) in gone]:
            previous = offsets.pop(key).previous
            if previous is not None:
                offsets[key] = previous
        if not offsets:
            self._by_producer.pop(producer_id, None)

    def overwrite(self, group_id: str, where: TopicPartition, order: int = AFTER_ALL) -> None:
        """A commit at that place of the log is readable: what is pending before it never will."""
        for offsets in self._by_producer.values():
            pending = offsets.get((group_id, where))
            if pending is not None and pending.order < order:
                pending.is_overwritten = True

    def end(self, producer_id: int) -> list[PendingOffset]:
        """Take out what a producer's transaction wrote, in the order of the log."""
        ended = self._by_producer.pop(producer_id, {})
        return sorted(ended.values(), key=lambda pending: pending.order)

    def pending_of(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions of a group that wait for a marker."""
        return {
            where
            for offsets in self._by_producer.values()
            for found, where in offsets
            if found == group_id
        }
