"""`PendingOffsets`: the offsets of open transactions, by producer, in the order of the log."""

from collections.abc import Collection, Iterable
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
    is_written: bool = True
    """Whether it is in the log; the others wait for their turn there."""
    previous: "PendingOffset | None" = None
    """The transaction's earlier commit for the same partition, until this one is in the log."""


@dataclass(slots=True)
class PendingOffsets:
    """The pending offsets of one shard."""

    _by_producer: dict[int, dict[tuple[str, TopicPartition], PendingOffset]] = field(
        default_factory=dict
    )
    _order: int = 0

    def note(
        self, producer_id: int, record: OffsetRecord, *, is_written: bool = True
    ) -> PendingOffset:
        """Add a producer's offset; it replaces its earlier one for the same partition."""
        self._order += 1
        key = (record.key.group, (record.key.topic, record.key.partition))
        offsets = self._by_producer.setdefault(producer_id, {})
        pending = PendingOffset(
            record=record,
            order=self._order,
            is_written=is_written,
            previous=None if is_written else offsets.get(key),
        )
        offsets[key] = pending
        return pending

    @staticmethod
    def written(noted: Iterable[PendingOffset | None]) -> None:
        """Note that offsets are in the log: nothing restores those that they replaced."""
        for pending in noted:
            if pending is not None:
                pending.is_written, pending.previous = True, None

    def forget(self, producer_id: int, noted: Iterable[PendingOffset | None]) -> None:
        """Remove offsets that were never appended, and restore those that they replaced.

        Several may wait for the log, and be refused one after the other: one that was refused
        before is not restored.
        """
        offsets = self._by_producer.get(producer_id, {})
        gone = set(map(id, noted))
        for key, newest in list(offsets.items()):
            left = _without(newest, gone)
            if left is None:
                del offsets[key]
            else:
                offsets[key] = left
        if not offsets:
            self._by_producer.pop(producer_id, None)

    def overwrite(self, group_id: str, where: TopicPartition, order: int = AFTER_ALL) -> None:
        """Note that a commit at this place in the log is readable: it overrides pending ones."""
        for offsets in self._by_producer.values():
            pending = offsets.get((group_id, where))
            while pending is not None:
                pending.is_overwritten |= pending.order < order
                pending = pending.previous

    def end(self, producer_id: int) -> list[PendingOffset]:
        """Remove and return a producer's pending offsets, in the order of the log.

        What is not in the log yet comes after the marker there, or is refused: it stays.
        """
        ended: list[PendingOffset] = []
        waiting: dict[tuple[str, TopicPartition], PendingOffset] = {}
        for key, newest in self._by_producer.pop(producer_id, {}).items():
            written = _newest_written(newest)
            if written is not None:
                ended.append(written)
            left = newest if written is None else _without(newest, {id(written)})
            if left is not None:
                waiting[key] = left
        if waiting:
            self._by_producer[producer_id] = waiting
        return sorted(ended, key=lambda pending: pending.order)

    def of_topics(self, topics: Collection[str]) -> set[tuple[str, TopicPartition]]:
        """Return the groups and partitions with pending offsets of some topics."""
        return {
            (group_id, where)
            for offsets in self._by_producer.values()
            for group_id, where in offsets
            if where[0] in topics
        }

    def pending_of(self, group_id: str) -> set[TopicPartition]:
        """Return a group's partitions with pending offsets."""
        return {
            where
            for offsets in self._by_producer.values()
            for found, where in offsets
            if found == group_id
        }


def _without(newest: PendingOffset, gone: set[int]) -> PendingOffset | None:
    """Return the newest of a partition's offsets that is not gone; those before it follow it."""
    kept: PendingOffset | None = newest
    while kept is not None and id(kept) in gone:
        kept = kept.previous
    later = kept
    while later is not None and later.previous is not None:
        if id(later.previous) in gone:
            later.previous = later.previous.previous
        else:
            later = later.previous
    return kept


def _newest_written(newest: PendingOffset) -> PendingOffset | None:
    """Return the last of a partition's offsets that is in the log, None where all wait."""
    pending: PendingOffset | None = newest
    while pending is not None and not pending.is_written:
        pending = pending.previous
    return pending
