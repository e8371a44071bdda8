import subprocess
import sys

_ALLOCATES = """
import ctypes, sys, threading
from headrace_operator.kubernetes.main import share_arenas
if sys.argv[1] == "shared":
    share_arenas()
meeting = threading.Barrier(8)
def work():
    meeting.wait()
    kept = [bytes(1000) for _ in range(1000)]
    meeting.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""


def arenas(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _ALLOCATES, how], capture_output=True, text=True, check=True
    )
    return done.stdout.count("<heap nr=")


def test_threads_share_two_arenas() -> None:
    assert arenas("each its own") > 2
    assert 1 <= arenas("shared") <= 2
