"""Several processes run tests at once on one machine, and do not meet."""

import subprocess
import sys
from pathlib import Path

from support.processes import free_port
from support.workers import scope_of

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


def test_a_shared_spark_session_is_one_workers_and_drivers_spread_where_spark_is_alone():
    shared = {"tests/jobs/test_delivery.py", "tests/jobs/test_postgres_sink.py"}
    drivers = {"tests/jobs/test_crashes.py", "tests/e2e/test_up.py"}
    for chosen in ("spark", "not long"):
        assert {scope_of(each, chosen) for each in shared} == {"spark"}
    assert {scope_of(each, "spark") for each in drivers} == drivers
    assert {scope_of(each, "not long") for each in drivers} == {"spark"}
    for chosen in ("not spark", "not slow and not spark"):
        assert {scope_of(each, chosen) for each in shared | drivers} == shared | drivers
