"""What a log knows of its leader epochs outlives a power cut, on the simulated disk."""

import random

import pytest

from headrace_broker.log.config import LogConfig
from headrace_broker.log.epoch_cache import LeaderEpochCache
from headrace_broker.log.files import sync_directory
from headrace_broker.log.partition_log import PartitionLog
from simulation.disk import Disk, FileSystem
from simulation.scenario import simulate
from support.log import START_MS, ManualClock, append, batch_of, compact, open_at

_POWER_CUTS = 30
_SETTINGS = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.0}


@pytest.fixture
def disks(tmp_path):
    """Disks whose power cuts each leave something else."""
    files = FileSystem()
    files.disks += [
        Disk(tmp_path / f"disk{number}", random.Random(number)) for number in range(_POWER_CUTS)
    ]
    with files.installed():
        yield files.disks
        for disk in files.disks:
            disk.close()


def test_a_power_cut_brings_no_epoch_back_that_a_truncation_removed(disks):
    for disk in disks:
        cache = LeaderEpochCache(disk.root, lambda: 3)
        for number in range(3):
            cache.assign(number, number)
        sync_directory(disk.root)
        cache.truncate_from_end(1)
        disk.lose_unsynced()
        assert LeaderEpochCache(disk.root, lambda: 3).entries == [(0, 0)], disk.root


def test_a_power_cut_after_compaction_leaves_epochs_without_batches(disks):
    for disk in disks:
        path, clock = disk.root / "topic-0", ManualClock()
        log = PartitionLog.open(path, LogConfig(**_SETTINGS), clock=clock)
        append(log, batch_of(b"v", key=b"other"), epoch=0)
        log.flush()
        sync_directory(disk.root)
        for epoch in (1, 2):
            append(log, batch_of(b"v", key=b"k"), epoch=epoch)
        log.roll(START_MS)
        log.high_watermark = log.log_end_offset
        assert compact(log, START_MS)
        log.abandon()
        disk.lose_unsynced()
        again = open_at(path, clock, **_SETTINGS)
        assert again.log_end_offset == 3
        assert again.leader_epochs.entries == [(0, 0), (1, 1), (2, 2)], disk.root
        again.abandon()


def test_seed_700216_cuts_the_only_epoch_of_a_log_whose_start_a_kill_took_back():
    """The leader's log begins where that epoch was noted: nothing above it is without one."""
    outcome = simulate(700216, 3)
    assert not outcome.violations, outcome.violations
