"""What a log knows of its records' times outlives a power cut, on the simulated disk."""

import random

from headrace_broker.log.config import LogConfig
from headrace_broker.log.files import sync_directory
from headrace_broker.log.partition_log import PartitionLog
from simulation.disk import Disk, FileSystem
from simulation.scenario import simulate
from support.log import START_MS, ManualClock, append, batch_of

_POWER_CUTS = 30


def test_a_power_cut_leaves_the_times_of_a_segment_that_was_rolled_after_its_fsync(tmp_path):
    """Its last time entry is written by the roll; the recovery point is its end by then."""
    files = FileSystem()
    files.disks += [
        Disk(tmp_path / f"disk{number}", random.Random(number)) for number in range(_POWER_CUTS)
    ]
    with files.installed():
        for number, disk in enumerate(files.disks):
            clock = ManualClock()
            log = PartitionLog.open(disk.root / "topic-0", LogConfig(), clock=clock)
            append(log, batch_of(b"first"))
            log.flush()
            sync_directory(disk.root)
            log.roll(START_MS)
            if number % 2:
                append(log, batch_of(b"second", base_timestamp=START_MS + 5))
                log.flush()
            recovery_point = log.recovery_point
            log.abandon()
            disk.lose_unsynced()
            again = PartitionLog.open(
                disk.root / "topic-0",
                LogConfig(),
                clock=clock,
                recovery_point=recovery_point,
                was_clean=False,
            )
            found = again.fetch_offset_by_timestamp(START_MS)
            assert found is not None, disk.root
            assert found.offset == 0, disk.root
            again.abandon()
            disk.close()


def test_seed_9011_finds_the_first_record_of_a_time():
    outcome = simulate(9011, 3)
    assert not outcome.violations, outcome.violations
