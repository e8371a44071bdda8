"""A random life of a log beside a list that says what must be in it.

The model keeps every batch's bytes. After each step that lives through a restart, a kill (files
copied as they are, the newest one cut anywhere), a truncation or a compaction, log and model must
agree.
"""

import os
import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace_broker.log.batches import iterate_headers
from headrace_broker.log.config import LogConfig
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.protocol.batch import iterate_records
from support.log import START_MS, ManualClock, batch_of, compact, content

LIMITS = {"max_examples": 40, "stateful_step_count": 30, "deadline": None}
BIG = 1 << 20


class LogLife(RuleBasedStateMachine):
    """Appends, reads, flushes, truncations, compactions, deletions, clean and unclean restarts."""

    def __init__(self):
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="headrace-log-"))
        self.clock = ManualClock()
        self.lives = 0
        self.time_ms = START_MS

    @initialize(
        segment=st.sampled_from([300, 1000, 5000]),
        interval=st.sampled_from([0, 100, 4096]),
        compacts=st.booleans(),
    )
    def begin(self, segment, interval, compacts):
        self.config = LogConfig(
            segment_bytes=segment,
            index_interval_bytes=interval,
            cleanup_policy=frozenset({"compact", "delete"} if compacts else {"delete"}),
            min_cleanable_dirty_ratio=0.0,
        )
        self.batches = []
        self.sequence = 0
        self.flushed = 0
        self.log = self.open(self.root / "life-0", was_clean=True)

    def open(self, path, *, was_clean):
        return PartitionLog.open(
            path,
            self.config,
            clock=self.clock,
            recovery_point=self.flushed,
            was_clean=was_clean,
            log_start_offset=self.log.log_start_offset if hasattr(self, "log") else 0,
        )

    @rule(
        sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
        epoch=st.integers(0, 3),
        key=st.sampled_from([b"a", b"b", b"c"]),
    )
    def append(self, sizes, epoch, key):
        self.time_ms += 1
        batch = batch_of(
            *[b"x" * size for size in sizes],
            key=key,
            base_timestamp=self.time_ms,
            producer_id=1,
            producer_epoch=0,
            base_sequence=self.sequence,
        )
        # A leader epoch never goes back.
        epoch = max(epoch, self.log.leader_epochs.latest)
        info = self.log.append_as_leader(batch, epoch, now_ms=START_MS)
        self.batches.append((info.first_offset, info.last_offset, bytes(batch)))
        self.sequence += len(sizes)

    @rule()
    def append_the_newest_again(self):
        if self.batches and self.log.producers.get(1):
            first, last, batch = self.batches[-1]
            if next(iterate_headers(batch))[1].record_count <= last - first:
                return  # compaction has taken some of its records
            info = self.log.append_as_leader(bytes(8) + batch[8:], 0, now_ms=START_MS)
            assert (info.first_offset, info.last_offset, info.is_duplicate) == (first, last, True)

    @rule()
    def flush(self):
        self.flushed = self.log.flush()

    @rule(offset=st.integers(0, 200))
    def truncate(self, offset):
        before = self.log.log_end_offset
        self.log.truncate_to(offset)
        if offset < before:
            self.batches = [each for each in self.batches if each[1] < offset]
            self.flushed = min(self.flushed, self.log.log_end_offset)
            state = self.log.producers.get(1)
            self.sequence = state.last_sequence + 1 if state else 0

    @rule(offset=st.integers(0, 200))
    def delete_records(self, offset):
        offset = min(offset, self.log.log_end_offset)
        self.log.delete_records_before(offset)
        self.log.high_watermark = self.log.log_end_offset
        self.log.apply_retention(START_MS)

    @rule()
    def compact(self):
        """Leave the newest record of each key, and holes between the batches."""
        self.log.roll(START_MS)
        self.log.high_watermark = self.log.log_end_offset
        before = self.newest()
        if compact(self.log, START_MS):
            self.flushed = self.log.flush()
            self.batches = [
                (header.base_offset, header.last_offset, segment.read_batch(position, header))
                for segment in self.log.segments
                for position, header in segment.headers(0)
            ]
            assert self.newest() == before

    def newest(self):
        return {
            record.key: record.offset
            for batch in content(self.log)
            for record in iterate_records(batch)
            if record.offset >= self.log.log_start_offset
        }

    @rule()
    def restart(self):
        self.log.close()
        self.flushed = self.log.recovery_point
        self.log = self.open(self.log.directory, was_clean=True)

    @rule(data=st.data())
    def kill(self, data):
        """Lose some of what was written after the last flush, as a power cut does."""
        self.lives += 1
        copy = self.root / f"life-{self.lives}"
        shutil.copytree(self.log.directory, copy)
        self.log.abandon()
        newest = max(copy.glob("*.log"))
        base = int(newest.stem)
        kept = sum(len(b) for first, _, b in self.batches if base <= first < self.flushed)
        size = newest.stat().st_size
        cut = data.draw(st.integers(min(kept, size), size), label="cut at")
        os.truncate(newest, cut)
        left = cut
        survivors = [each for each in self.batches if each[0] < base]
        for each in (each for each in self.batches if each[0] >= base):
            left -= len(each[2])
            if left >= 0:
                survivors.append(each)
        lost = len(survivors) < len(self.batches)
        self.batches = survivors
        self.log = self.open(copy, was_clean=False)
        state = self.log.producers.get(1)
        if lost:
            self.sequence = state.last_sequence + 1 if state else 0

    @rule(seed=st.integers(0, 1000), size=st.integers(1, 2000))
    def read_anywhere(self, seed, size):
        visible = [each for each in self.batches if each[1] >= self.log.log_start_offset]
        if not visible:
            return
        first, last, batch = random.Random(seed).choice(visible)
        offset = random.Random(seed).randint(max(first, self.log.log_start_offset), last)
        end = self.log.log_end_offset
        data = bytes(self.log.read(offset, size, upper_bound=end, at_least_one=True))
        assert data.startswith(batch)
        expected = b"".join(b for start, _, b in visible if start >= first)
        assert expected.startswith(data)
        offsets = [record.offset for record in iterate_records(data[: len(batch)])]
        if not offsets or offsets[-1] < self.log.log_start_offset:
            return  # compaction has taken the records that were left
        found = self.log.fetch_offset_by_timestamp(next(iterate_headers(batch))[1].max_timestamp)
        assert found.offset == next(each for each in offsets if each >= self.log.log_start_offset)

    @invariant()
    def the_log_holds_what_the_model_holds(self):
        if not hasattr(self, "log"):
            return
        start = self.log.log_start_offset
        visible = [each[2] for each in self.batches if each[1] >= start]
        assert content(self.log) == visible
        assert not self.log.is_damaged
        ends = [self.log.segments.active.base_offset, *(each[1] + 1 for each in self.batches)]
        assert self.log.log_end_offset == max(ends)
        assert self.log.recovery_point <= self.log.log_end_offset

    def teardown(self):
        if hasattr(self, "log"):
            self.log.abandon()
        shutil.rmtree(self.root)


TestLogLife = LogLife.TestCase
TestLogLife.settings = settings(
    **LIMITS, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
