"""`Compaction`: one pass of the cleaner over a log: it picks segments and swaps the result in.

Owns the choice (dirty ratio, lags, never the active segment, never above the high watermark or an
open transaction) and the crash-safe swap. `begin` and `finish` belong to the log's thread. `run`
may run in another one: it reads inactive segments and writes `.cleaned` files.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import structlog

from headrace_broker.log.cleaner import (
    KEYS_MAX,
    AbortedBatches,
    CleanerRules,
    KeyMap,
    clean_segments,
)
from headrace_broker.log.config import LogConfig
from headrace_broker.log.descriptor_shortage import OutOfDescriptorsError
from headrace_broker.log.files import (
    LogDirectoryFailure,
    as_a_whole,
    remove_quietly,
    sync_file,
)
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.recovery import adopt_segment
from headrace_broker.log.segments.segment import LogSegment, SuspectedDamage
from headrace_broker.log.segments.swap import CLEANED_SUFFIX, SWAP_SUFFIX, rename_all
from headrace_broker.protocol.errors import DecodeError
from headrace_broker.protocol.types import Offset

_log = structlog.get_logger(__name__)


@dataclass(kw_only=True, slots=True)
class Compaction:
    """A pass that has begun."""

    log: PartitionLog
    now_ms: int
    candidates: list[LogSegment]
    rules: CleanerRules
    first_dirty_offset: int
    truncations: int
    """The log's number of truncations when this pass began."""
    _made: list[LogSegment] = field(default_factory=list)
    """Every segment that was begun, whole or not."""
    _cleaned: list[tuple[list[LogSegment], LogSegment]] = field(default_factory=list)
    _is_complete: bool = False

    @classmethod
    def begin(
        cls,
        log: PartitionLog,
        now_ms: int,
        keys_max: int = KEYS_MAX,
        *,
        is_everywhere: bool = True,
    ) -> Self | None:
        """Decide what a pass would clean; None if it is not worth it.

        `is_everywhere` says that all replicas are in sync, and thus have what is committed. Raises
        OutOfDescriptorsError.
        """
        if not log.config.compacts or log.is_damaged or log.is_being_copied:
            return None
        first_dirty = max(log.cleaner_offset, log.log_start_offset)
        candidates = _cleanable_segments(log, now_ms)
        if not _is_dirty_enough(
            log.config, candidates, _dirty(log, candidates, first_dirty), now_ms
        ):
            return None
        # If an epoch's batches are all removed, only its file has it.
        log.leader_epochs.write_pending()
        # A transaction with records among the candidates may have its marker in a later segment.
        aborted = (entry for each in log.segments for entry in each.transaction_index.entries)
        rules = CleanerRules(
            keys=KeyMap(keys_max=keys_max, end_offset=first_dirty),
            aborted=AbortedBatches(aborted),
            producers=frozenset(producer_id for producer_id, _ in log.producers.items()),
            now_ms=now_ms,
            delete_retention_ms=log.config.delete_retention_ms,
            is_everywhere=is_everywhere,
        )
        _log.debug(
            "compaction begins", log=str(log.directory), end_offset=_next_base(log, candidates[-1])
        )
        return cls(
            log=log,
            now_ms=now_ms,
            candidates=candidates,
            rules=rules,
            first_dirty_offset=first_dirty,
            truncations=log.truncations,
        )

    def run(self) -> None:
        """Read the dirty part's keys and write the cleaned segments.

        Raises OutOfDescriptorsError, with nothing left of what was written.
        """
        try:
            self._clean()
        except OutOfDescriptorsError:
            self._discard()
            raise
        except (LogDirectoryFailure, DecodeError, SuspectedDamage):
            if self._has_sources():
                raise
            # Retention or truncation removed records during the read; `finish` cleans up.

    def _has_sources(self) -> bool:
        """Whether the candidates are still the log's, each with all its records.

        A truncation may have cut the last of them, which may have grown again since.
        """
        log = self.log
        return log.truncations == self.truncations and all(
            log.segments.holds(source) for source in self.candidates
        )

    def _clean(self) -> None:
        keys = self.rules.keys
        for segment in _dirty(self.log, self.candidates, self.first_dirty_offset):
            start = max(self.first_dirty_offset, segment.base_offset)
            if not keys.add_segment(segment, start, self.rules.aborted):
                break
        seen = [segment for segment in self.candidates if segment.base_offset < keys.end_offset]
        self.rules.note_last_batches(seen)
        for sources in _groups(seen, self.log):
            cleaned = clean_segments(sources, self.log.directory, self.rules, self._new_cleaned)
            self._cleaned.append((sources, cleaned))
        # If an epoch's batches are all removed, only this file has it; the swap makes its name
        # durable.
        sync_file(self.log.leader_epochs.path)
        self._is_complete = True

    def finish(self, *, is_everywhere: bool = True) -> bool:
        """Replace the source segments by the cleaned ones; return whether that was possible.

        Raises OutOfDescriptorsError, with nothing left of what was written.

        Damage that was found meanwhile was skipped by the read: its records would seem never to
        have been there. `is_everywhere` is as for `begin`: a replica that was added meanwhile may
        have copied records, and not the tombstones and markers that this pass has deleted.
        """
        log = self.log
        is_usable = self._is_complete and self._has_sources()
        one_is_behind = self.rules.is_everywhere and not is_everywhere
        if not is_usable or one_is_behind or log.is_damaged or log.is_being_copied:
            self._discard()
            return False
        try:
            for _, cleaned in self._cleaned:
                cleaned.close()
            with as_a_whole(log.directory):
                for sources, cleaned in self._cleaned:
                    self._replace(sources, cleaned.base_offset)
        except OutOfDescriptorsError:
            self._discard()
            raise
        log.reader.forget()
        log.cleaner_offset = Offset(self.rules.keys.end_offset)
        return True

    def _discard(self) -> None:
        for segment in self._made:
            segment.close()
            for path in segment.paths():
                remove_quietly(path)

    def _replace(self, sources: list[LogSegment], base_offset: int) -> None:
        log = self.log
        before = sum(source.size for source in sources)
        rename_all(log.directory, base_offset, CLEANED_SUFFIX, SWAP_SUFFIX)
        for source in sources:
            log.segments.remove(source)
            log.removal.schedule(source, self.now_ms + log.config.file_delete_delay_ms)
        rename_all(log.directory, base_offset, SWAP_SUFFIX, "")
        segment = self._new_segment(log.directory, base_offset, "")
        names = {path.name for path in segment.paths() if path.exists()}
        adopt_segment(segment, names)
        log.segments.add(segment)
        _log.info(
            "segments compacted",
            log=str(log.directory),
            base_offset=base_offset,
            segments=len(sources),
            bytes_before=before,
            bytes_after=segment.size,
        )

    def _new_cleaned(self, directory: Path, base_offset: int) -> LogSegment:
        made = self._new_segment(directory, base_offset, CLEANED_SUFFIX)
        self._made.append(made)
        return made

    def _new_segment(self, directory: Path, base_offset: int, suffix: str) -> LogSegment:
        interval = self.log.config.index_interval_bytes
        return LogSegment(directory, base_offset, interval, self.now_ms, suffix)


def _next_base(log: PartitionLog, segment: LogSegment) -> int:
    following = log.segments.after(segment)
    return following.base_offset if following is not None else log.log_end_offset


def _cleanable_segments(log: PartitionLog, now_ms: int) -> list[LogSegment]:
    """Return the oldest segments whose records are all committed and older than the minimum lag."""
    bound = min(log.high_watermark, log.last_stable_offset)
    lag_ms = log.config.min_compaction_lag_ms
    cleanable: list[LogSegment] = []
    for segment in log.segments.inactive:
        if _next_base(log, segment) > bound:
            break
        if lag_ms > 0 and segment.size and now_ms - segment.largest_timestamp < lag_ms:
            break
        cleanable.append(segment)
    return cleanable


def _dirty(log: PartitionLog, candidates: list[LogSegment], first_dirty: int) -> list[LogSegment]:
    return [segment for segment in candidates if _next_base(log, segment) > first_dirty]


def _is_dirty_enough(
    config: LogConfig, candidates: list[LogSegment], dirty: list[LogSegment], now_ms: int
) -> bool:
    if not dirty:
        return False
    dirty_bytes, all_bytes = _bytes(dirty), _bytes(candidates)
    # The oldest record has waited longest. As in Kafka, a segment's first batch stands for it.
    first = min(
        (each.first_timestamp for each in dirty if each.first_timestamp > 0), default=now_ms
    )
    if now_ms - first > config.max_compaction_lag_ms:
        return True
    return dirty_bytes > all_bytes * config.min_cleanable_dirty_ratio


def _bytes(segments: Iterable[LogSegment]) -> int:
    return sum(segment.size for segment in segments)


def _groups(segments: list[LogSegment], log: PartitionLog) -> list[list[LogSegment]]:
    """Group neighbours that fit into one segment, so that logs do not fragment."""
    groups: list[list[LogSegment]] = []
    config = log.config
    index_max = config.segment_index_bytes
    size = entries = 0
    for segment in segments:
        fits = (
            groups
            and size + segment.size <= config.segment_bytes
            and entries + len(segment.time_index) * 12 + 12 <= index_max
            # The next segment's base bounds this one's offsets from above.
            and _next_base(log, segment) - 1 <= groups[-1][0].offset_max
        )
        if not fits:
            groups.append([])
            size = entries = 0
        groups[-1].append(segment)
        size += segment.size
        entries += len(segment.time_index) * 12
    return groups
