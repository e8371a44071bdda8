"""The simulated disk ends processes, and loses power, as a kernel would."""

import os
import random
import shutil

import pytest

from simulation.disk import Disk, FileSystem
from simulation.loop import ProcessEnded, SimulatedLoop


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
