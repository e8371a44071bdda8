"""Compaction of segments by key: the newest record of each key stays, with its offset.

Owns which records stay (Kafka's Cleaner, KIP-534 for tombstones) and writes `.cleaned` segments. It
only reads inactive segments and none of the log's own state, so it may run in another thread.
`compaction` decides what is cleaned and puts the result in place.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final

import structlog

from headrace_broker.log.batches import Header, newest_timestamp, read_header
from headrace_broker.log.markers import read_marker
from headrace_broker.log.producer_state import RETAINED_BATCHES
from headrace_broker.log.segments.segment import LogSegment
from headrace_broker.log.segments.transaction_index import AbortedTransaction
from headrace_broker.protocol.batch import (
    BatchOptions,
    NewRecord,
    Record,
    build_batch,
    iterate_records,
)
from headrace_broker.protocol.batch_header import MAX_TIMESTAMP_POSITION, seal
from headrace_broker.protocol.compression import Compression
from headrace_broker.protocol.errors import DecodeError

KEYS_MAX: Final = 500_000
"""Keys of one pass, about 100 bytes each; further keys wait for the next pass."""
_KEY_HASH_SIZE: Final = 16
_log = structlog.get_logger(__name__)


class AbortedBatches:
    """Which transactional batches belong to transactions that were aborted."""

    __slots__ = ("_ranges",)

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        for entry in aborted:
            ranges = self._ranges.setdefault(entry.producer_id, [])
            ranges.append((entry.first_offset, entry.last_offset))

    def holds(self, header: Header) -> bool:
        """Whether no reader may see this batch's records."""
        if not header.is_transactional or header.is_control:
            return False
        ranges = self._ranges.get(header.producer_id, ())
        return any(first <= header.base_offset <= last for first, last in ranges)


class OpenBatches:
    """Which transactions have batches left, as a pass walks over the log from its start."""

    __slots__ = ("_seen", "empty_ends")

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self.empty_ends: set[int] = set()
        """Offsets of markers whose transactions have no batch left."""

    def note(self, header: Header) -> None:
        """Note a data batch."""
        if header.is_transactional:
            self._seen.add(header.producer_id)

    def end(self, header: Header) -> bool:
        """Note a marker; return whether its transaction has no batch left before it."""
        if header.producer_id in self._seen:
            self._seen.remove(header.producer_id)
            return False
        self.empty_ends.add(header.base_offset)
        return True


@dataclass(kw_only=True, slots=True)
class KeyMap:
    """The newest offset of each key in the dirty part, for at most `keys_max` keys."""

    keys_max: int = KEYS_MAX
    end_offset: int
    """Below this every record has been seen."""
    _offsets: dict[bytes, int] = field(default_factory=dict)

    def add_segment(self, segment: LogSegment, start: int, aborted: AbortedBatches) -> bool:
        """Note a segment's keys from `start` on; False when the map is full."""
        for position, header in segment.headers(segment.position_of(start)):
            if len(self._offsets) + max(header.record_count, 0) > self.keys_max and self._offsets:
                return False
            if not header.is_control and not aborted.holds(header):
                batch = segment.read_batch(position, header)
                try:
                    records = list(iterate_records(batch))
                except DecodeError as error:
                    # Once, as each batch is new to one pass only.
                    _log.warning(
                        "records of a batch do not parse; it is kept as it is",
                        path=str(segment.path),
                        base_offset=header.base_offset,
                        error=str(error),
                    )
                    records = []
                for record in records:
                    if record.key is not None and record.offset >= start:
                        self._offsets[_hash(record.key)] = record.offset
            self.end_offset = header.last_offset + 1
        return True

    def is_newest(self, record: Record) -> bool:
        """Whether no later record of the same key is known."""
        if record.offset >= self.end_offset:
            return True
        if record.key is None:
            return False
        return record.offset >= self._offsets.get(_hash(record.key), -1)


@dataclass(frozen=True, kw_only=True, slots=True)
class CleanerRules:
    """What one pass keeps beside the newest records."""

    keys: KeyMap
    aborted: AbortedBatches
    producers: frozenset[int]
    """Producers that have not expired: their sequences must not be lost."""
    now_ms: int
    delete_retention_ms: int
    is_everywhere: bool = True
    """Whether every replica has what is cleaned; tombstones and markers are deleted only then.

    One that comes back and does not find them would keep what they ended.
    """
    last_batches: set[int] = field(default_factory=set)
    """Last offsets of these producers' newest batches among the cleaned segments."""
    open_batches: OpenBatches = field(default_factory=OpenBatches)

    def is_over(self, horizon: int | None) -> bool:
        """Whether a tombstone or marker with this delete horizon may go."""
        return horizon is not None and self.now_ms > horizon and self.is_everywhere

    def note_last_batches(self, sources: Iterable[LogSegment]) -> None:
        """Find each producer's newest batches to be cleaned, which are kept even if they are empty.

        Kafka keeps one. A follower that lagged behind knows of these batches only from the log; as
        a leader it would refuse the retry of any other batch that may still be in flight. Batches
        above the cleaned part are ignored: a power cut may yet remove them, and with them the only
        sequences.

        The newest batch of the cleaned part stays too, as in Kafka. If nothing follows it, a
        follower that never saw it could not reach the end of the leader's log, and would never be
        in sync.
        """
        newest: dict[int, deque[int]] = {}
        markers: dict[int, int] = {}
        last: Header | None = None
        for source in sources:
            for _, header in source.headers(0):
                last = header
                if header.producer_id not in self.producers:
                    continue
                if header.is_control:
                    # The newest marker tells which epochs are fenced.
                    markers[header.producer_id] = header.last_offset
                else:
                    held = newest.setdefault(header.producer_id, deque(maxlen=RETAINED_BATCHES))
                    held.append(header.last_offset)
        self.last_batches.update(*newest.values(), markers.values())
        if last is not None:
            self.last_batches.add(last.last_offset)


def clean_segments(
    sources: list[LogSegment],
    directory: Path,
    rules: CleanerRules,
    new_segment: Callable[[Path, int], LogSegment],
) -> LogSegment:
    """Write what stays of some segments into one segment, as durable `.cleaned` files."""
    cleaned = new_segment(directory, sources[0].base_offset)
    for path in cleaned.paths():
        path.unlink(missing_ok=True)
    cleaned.create()
    for source in sources:
        for position, header in source.headers(0):
            whole = source.read_batch(position, header)
            batch: bytes | bytearray | None = whole
            # Before a topic was compacted, it took batches by their headers.
            with suppress(DecodeError, struct.error):
                batch = clean_batch(whole, header, rules)
            if batch is not None:
                at = cleaned.write(memoryview(batch))
                kept = read_header(batch)
                cleaned.note_batch(at, len(batch), kept.last_offset, newest_timestamp(kept))
        for entry in source.transaction_index.entries:
            if entry.last_offset not in rules.open_batches.empty_ends:
                cleaned.transaction_index.append(entry)
    cleaned.become_inactive()
    cleaned.sync()
    return cleaned


def clean_batch(batch: bytes, header: Header, rules: CleanerRules) -> bytes | bytearray | None:
    """Return what stays of a batch: all of it, the batch with fewer records, or None.

    Base offset, last offset and sequences stay what they were, so that offsets keep their meaning
    and a producer's next batch still follows. Raises DecodeError where the records do not parse,
    and struct.error where their timestamps have no place.
    """
    if header.is_control:
        return _clean_marker(batch, header, rules)
    rules.open_batches.note(header)
    if header.base_offset >= rules.keys.end_offset:
        return batch
    horizon: int | None = header.base_timestamp if header.has_delete_horizon else None
    gone = rules.aborted.holds(header)
    kept = [
        record
        for record in (() if gone or header.record_count == 0 else iterate_records(batch))
        if rules.keys.is_newest(record) and (record.value is not None or not rules.is_over(horizon))
    ]
    if not kept and header.last_offset not in rules.last_batches:
        return None
    sets_horizon = horizon is None and any(record.value is None for record in kept)
    if len(kept) == header.record_count and not sets_horizon:
        return batch
    if sets_horizon:
        horizon = rules.now_ms + rules.delete_retention_ms
    return _rebuild(header, kept, horizon)


def _clean_marker(batch: bytes, header: Header, rules: CleanerRules) -> bytes | bytearray | None:
    """Keep a marker while its transaction has batches, and `delete.retention.ms` longer.

    A reader that has seen such a batch must find its marker (KAFKA-8351, KIP-534).
    """
    if read_marker(batch) is None:
        return batch
    is_needed = not rules.open_batches.end(header)
    if (
        is_needed
        or header.last_offset in rules.last_batches
        or header.base_offset >= rules.keys.end_offset
    ):
        return batch
    if not header.has_delete_horizon:
        horizon = rules.now_ms + rules.delete_retention_ms
        return _rebuild(header, list(iterate_records(batch)), horizon)
    return None if rules.is_over(header.base_timestamp) else batch


def _rebuild(header: Header, kept: list[Record], horizon: int | None) -> bytearray:
    options = BatchOptions(
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        partition_leader_epoch=header.partition_leader_epoch,
        compression=Compression(header.compression if kept else Compression.NONE),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
    )
    if header.is_log_append_time:
        options["log_append_time"] = header.max_timestamp
    if horizon is not None:
        options["delete_horizon"] = horizon
    first = header.base_offset
    records = [
        NewRecord(each.key, each.value, each.timestamp, each.headers, each.offset - first)
        for each in kept
    ]
    batch = build_batch(records, **options)
    if not kept:
        # As in Kafka: the producer's age is counted from this timestamp.
        struct.pack_into(">q", batch, MAX_TIMESTAMP_POSITION, header.max_timestamp)
        seal(batch)
    return batch


def _hash(key: bytes) -> bytes:
    """Hash a key, so that any length costs the same memory; 128 bits make collisions negligible."""
    return blake2b(key, digest_size=_KEY_HASH_SIZE).digest()
