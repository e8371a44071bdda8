"""Several processes run tests at once on one machine, and do not meet."""

import subprocess
import sys
from pathlib import Path

from support.processes import free_port
from support.workers import LEFT_TO_TEST_ALL

_TESTS = Path(__file__).parent
_TAKE_PORTS = """
import sys
from support.processes import free_port
print(*(free_port() for _ in range(200)), flush=True)
sys.stdin.read()
"""


def test_no_two_processes_are_given_the_same_port():
    command = [sys.executable, "-c", _TAKE_PORTS]
    takers = [
        subprocess.Popen(
            command, cwd=_TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    taken = [free_port() for _ in range(200)]
    for taker in takers:
        taken += map(int, taker.stdout.readline().split())
    for taker in takers:
        taker.communicate()
    assert len(taken) == len(set(taken)) == 1000


def test_what_is_left_to_test_all_is_there():
    root = _TESTS.parent
    for each in LEFT_TO_TEST_ALL:
        path, _, name = each.partition("::")
        assert (root / path).exists(), each
        assert not name or f"def {name}" in (root / path).read_text(), each
