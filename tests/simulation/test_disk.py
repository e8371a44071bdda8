"""The simulated disk ends processes as a kernel would."""

import os
import random

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
