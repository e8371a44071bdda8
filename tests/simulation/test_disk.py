"""The simulated disk ends processes, and loses power, as a kernel would."""

import os
import random
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

import simulation.invariants.on_disk  # noqa: F401 - its observers judge
from headrace_broker.log.config import LogConfig
from headrace_broker.log.partition_log import PartitionLog
from simulation.disk import Disk, FileSystem
from simulation.history import History
from simulation.loop import ProcessEnded, SimulatedLoop
from simulation.observing import observed
from support.log import START_MS, ManualClock, batch_of


def test_a_process_that_dies_in_a_write_to_a_failed_folder_ends(tmp_path):
    loop = SimulatedLoop(random.Random(1))
    files, disk = FileSystem(), Disk(tmp_path / "node", random.Random(1))
    files.disks.append(disk)
    process = loop.process("broker", "10.0.0.1")
    disk.attach(process)
    ended = []
    disk.on_stopped = lambda: ended.append(process)

    async def write():
        descriptor = os.open(disk.root / "log", os.O_CREAT | os.O_RDWR)
        disk.failed_folder, disk.stop_at = str(disk.root), disk.operations + 1
        with pytest.raises(ProcessEnded):
            os.pwrite(descriptor, b"record", 0)

    async def run():
        await loop.start_task(process, write())

    with files.installed():
        loop.run(run(), limit_seconds=5)
        disk.close()
    assert ended == [process]


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_brings_no_removed_folder_back(tmp_path, seed):
    """A copy given up: made, renamed and removed, and the folder above it never synced."""
    loop = SimulatedLoop(random.Random(1))
    files, disk = FileSystem(), Disk(tmp_path / "node", random.Random(seed))
    files.disks.append(disk)
    process = loop.process("broker", "10.0.0.1")
    disk.attach(process)

    async def give_a_copy_up():
        copy, doomed = disk.root / "events-0.1-future", disk.root / "events-0.1-delete"
        for content in (b"first", b"second"):
            copy.mkdir(exist_ok=True)
            descriptor = os.open(copy / "arriving.tmp", os.O_CREAT | os.O_WRONLY)
            os.write(descriptor, content)
            os.close(descriptor)
            (copy / "arriving.tmp").replace(copy / "arriving")
            copy.replace(doomed)
            shutil.rmtree(doomed)

    async def run():
        await loop.start_task(process, give_a_copy_up())

    with files.installed():
        loop.run(run(), limit_seconds=5)
        disk.detach()
        disk.lose_unsynced()
        disk.close()
    assert list(disk.root.iterdir()) == []
    assert list(disk.graveyard.iterdir()) == []


@pytest.mark.parametrize("is_overtaken", [True, False])
def test_a_flush_covers_its_files_unless_a_truncation_overtook_it(tmp_path, is_overtaken):
    log = PartitionLog.open(tmp_path / "events-0", LogConfig(), clock=ManualClock())
    history = History(lambda: START_MS)
    # A power cut may change every segment but the first.
    disk = SimpleNamespace(
        may_change=lambda path: path.suffix == ".log" and int(path.stem) > 0,
        may_bring_back=lambda *_: False,
    )
    history.disk = lambda: disk

    with observed(history):
        for _ in range(5):
            log.append_as_leader(batch_of(b"x"), 0, now_ms=START_MS)
        flush = log.begin_flush()
        if is_overtaken:
            log.truncate_to(2)
        log.roll(START_MS)
        replace(flush, offset=6).run()  # to find the segment that begins at 5, too
    log.abandon()
    left_out = [text for text in history.violations if "leaves it out" in text]
    assert bool(left_out) != is_overtaken, history.violations
