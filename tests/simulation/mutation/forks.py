"""Work in a fork of this process: what it breaks is gone with it."""

import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable

_WALL_SECONDS_MAX = 900
_MEMORY_MAX = 4 << 30

Work = Callable[[Callable[[bytes], object]], int]


def forked(
    work: Work, *, cpu_seconds: int, wall_seconds: float = _WALL_SECONDS_MAX
) -> tuple[int, bytes]:
    """Return the code that some work ended with, and what it said; a signal's is negative.

    The work gets a function to say something with. What stands still is ended.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 70
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MAX, _MEMORY_MAX))
            _be_silent()
            code = work(lambda said: _write(writing, said))
        except BaseException:  # noqa: BLE001 - whatever it is, the fork must end here
            _write(writing, traceback.format_exc()[-300:].encode())
        finally:
            os._exit(code)
    os.close(writing)
    said, end = b"", time.monotonic() + wall_seconds
    while select.select([reading], [], [], max(0.0, end - time.monotonic()))[0]:
        chunk = os.read(reading, 65536)
        said += chunk
        if not chunk:
            break
    else:
        os.killpg(child, signal.SIGKILL)
    os.close(reading)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, said


def _write(descriptor: int, said: bytes) -> None:
    with open(descriptor, "wb", closefd=False) as pipe:
        pipe.write(said)


def _be_silent() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(nowhere, stream.fileno())
