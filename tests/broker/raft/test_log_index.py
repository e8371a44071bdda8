"""The node's index of its log, against lists that say the same by brute force."""

import random

import pytest

from headrace_broker.raft.log_index import Diverging, LogIndex, NeedsSnapshot
from headrace_broker.raft.types import LogState, OffsetAndEpoch


def index_of(epochs: list[int]) -> LogIndex:
    """Make the index of a log with one record for each epoch listed."""
    index = LogIndex(LogState())
    for offset, epoch in enumerate(epochs):
        index.append(epoch, offset + 1)
    return index


def random_epochs(rng: random.Random) -> list[int]:
    return sorted(rng.randint(1, 6) for _ in range(rng.randint(0, 12)))


def test_kip_595_a_fetch_may_go_on_exactly_where_the_epoch_before_it_is_the_same():
    rng = random.Random(5)
    for _ in range(2000):
        epochs = random_epochs(rng)
        index = index_of(epochs)
        offset, epoch = rng.randint(0, 13), rng.randint(0, 7)
        if epoch in epochs and offset <= epochs.index(epoch):
            continue  # an epoch begins at one offset in every log (Raft's log matching)
        verdict = index.check(OffsetAndEpoch(offset, epoch))
        is_prefix = offset <= len(epochs) and epoch == (epochs[offset - 1] if offset else 0)
        assert (verdict is None) == is_prefix or epoch == offset == 0, (epochs, offset, epoch)
        if verdict is not None:
            assert isinstance(verdict, Diverging)
            assert verdict.end.epoch <= epoch
            below = [at for at, found in enumerate(epochs) if found <= epoch]
            assert verdict.end.offset == (below[-1] + 1 if below else 0)


def test_kip_279_truncation_by_diverging_epochs_ends_at_the_longest_common_prefix():
    rng = random.Random(6)
    for _ in range(2000):
        # Two logs that agree up to a point and then were led apart, by epochs of their own.
        common = random_epochs(rng)
        last = common[-1] if common else 0
        leader = index_of(common + sorted(last + 2 * rng.randint(1, 3) for _ in range(4)))
        follower = index_of(common + sorted(last + 2 * rng.randint(1, 3) - 1 for _ in range(4)))
        for _ in range(10):
            verdict = leader.check(follower.end)
            if verdict is None:
                break
            assert isinstance(verdict, Diverging)
            follower.truncate(follower.truncation_point(verdict.end))
        assert follower.end_offset == len(common)


def test_kip_630_what_lies_before_the_logs_start_needs_the_snapshot():
    index = index_of([1, 1, 2, 2, 3])
    index.snapshots.append(OffsetAndEpoch(3, 2))
    index.trim(OffsetAndEpoch(3, 2))
    assert index.end == OffsetAndEpoch(5, 3)
    assert index.check(OffsetAndEpoch(3, 2)) is None
    assert index.check(OffsetAndEpoch(4, 2)) is None
    for behind in (OffsetAndEpoch(0, 0), OffsetAndEpoch(2, 1), OffsetAndEpoch(3, 1)):
        assert index.check(behind) == NeedsSnapshot(OffsetAndEpoch(3, 2))


def test_an_fsync_that_began_before_a_truncation_covers_only_what_was_left():
    index = index_of([1, 1, 1])
    ticket = index.request_flush()
    index.truncate(1)
    index.append(2, 4)
    assert index.flushed(ticket)
    assert index.flushed_end == 1
    assert not index.is_flushed


def test_what_takes_the_place_of_truncated_records_is_not_durable_before_its_own_fsync():
    index = index_of([1, 1, 1])
    assert index.flushed(index.request_flush())
    assert index.flushed_end == 3
    index.truncate(1)
    index.append(2, 3)
    assert index.flushed_end == 1
    assert not index.is_flushed


def test_a_log_without_the_snapshot_it_starts_at_is_refused():
    with pytest.raises(ValueError, match="without a snapshot"):
        LogIndex(LogState(start_offset=4, end_offset=5))
    with pytest.raises(ValueError, match="before its snapshot"):
        LogIndex(LogState(end_offset=5, snapshots=(OffsetAndEpoch(6, 1),)))
