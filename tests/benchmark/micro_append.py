"""Microseconds of an append of a 16 KB batch, with and without the parts that no language saves.

Run by hand: `python tests/benchmark/micro_append.py [directory]`. The floor is the checksum and
the `pwrite` of the same bytes; what is above it is Python.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from crc32c import crc32c

from headrace_broker.log.config import LogConfig
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.protocol.types import TimestampMs
from support.batches import BatchFields, NewRecord, build_batch

BATCHES = 20_000
FIRST = bytes(8)
NOW_MS = 1_700_000_000_000


class FixedClock:
    """A clock that stands still."""

    def now_ms(self) -> TimestampMs:
        """Return the same moment always."""
        return TimestampMs(NOW_MS)


def measure_us(action: Callable[[int], object], count: int = BATCHES) -> float:
    """Best of three runs, each in microseconds per call."""
    best = float("inf")
    for run in range(3):
        start = time.perf_counter()
        for number in range(run * count, (run + 1) * count):
            action(number)
        best = min(best, (time.perf_counter() - start) / count * 1e6)
    return best


def batch(records: int, size: int, **fields: int) -> bytes:
    """Build a batch of equal records."""
    made = [NewRecord(value=b"x" * size) for _ in range(records)]
    return build_batch(made, BatchFields(base_timestamp=NOW_MS, **fields))


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(directory: Path) -> None:
    """Print one line per case."""
    plain = memoryview(bytearray(batch(16, 1000)))
    small = memoryview(bytearray(batch(1, 100)))
    fields = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    idempotent = memoryview(bytearray(batch(16, 1000, **fields)))
    floor = os.open(directory / "floor", os.O_RDWR | os.O_CREAT)
    size = len(plain)

    def write_only(number: int) -> None:
        os.pwrite(floor, plain, number * size)

    checksum_us = measure_us(lambda _: crc32c(plain[21:]))
    write_us = measure_us(write_only)
    (directory / "floor").unlink()
    say(f"{size} bytes: checksum {checksum_us:.1f} us, pwrite {write_us:.1f} us")
    # As one segment at a time is written, at most two are kept: the benchmark must not fill disks.
    config = LogConfig(segment_bytes=256 << 20, retention_bytes=256 << 20)
    log = PartitionLog.open(directory / "plain-0", config, clock=FixedClock())

    def append_plain(_: int) -> None:
        plain[:8] = FIRST  # appending patches the buffer, as it does a request's
        log.append_as_leader(plain, 0, now_ms=NOW_MS)

    append_us = measure_us(append_plain)
    own_us = append_us - checksum_us - write_us
    say(f"append {append_us:.1f} us, of which Python {own_us:.1f} us")

    def append_small(_: int) -> None:
        small[:8] = FIRST
        log.append_as_leader(small, 0, now_ms=NOW_MS)

    say(f"append of {len(small)} bytes {measure_us(append_small):.1f} us")
    second = PartitionLog.open(directory / "idempotent-0", config, clock=FixedClock())

    def append_idempotent(number: int) -> None:
        idempotent[:8] = FIRST
        idempotent[53:57] = ((number * 16) & 0x7FFFFFFF).to_bytes(4, "big")
        idempotent[17:21] = crc32c(idempotent[21:]).to_bytes(4, "big")
        second.append_as_leader(idempotent, 0, now_ms=NOW_MS)

    idempotent_us = measure_us(append_idempotent) - checksum_us
    say(f"idempotent append {idempotent_us:.1f} us (a little of it is the benchmark's)")
    position = [0]

    def read(_: int) -> None:
        data = log.read(position[0], 1 << 20, upper_bound=log.log_end_offset, at_least_one=True)
        position[0] = (position[0] + 16 * (len(data) // size)) % (BATCHES * 16)

    say(f"sequential read of 1 MB {measure_us(read, 1000):.1f} us")
    reading = log.log_end_offset - 1
    tail_us = measure_us(
        lambda _: log.read(reading, 1 << 20, upper_bound=reading + 1, at_least_one=True)
    )
    say(f"read of the newest batch {tail_us:.1f} us")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        main(Path(folder))
