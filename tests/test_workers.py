"""Several processes run tests at once on one machine, and do not meet."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from support import workers
from support.processes import free_port
from support.workers import long_files_first, scope_of, take

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


def test_files_begin_in_the_order_of_what_they_took(tmp_path, monkeypatch):
    report = tmp_path / "report.xml"
    report.write_text(
        """<testsuites><testsuite><testcase classname="tests.test_workers" time="12.5"/>
        <testcase classname="tests.test_workers.TestMore" time="12"/>
        <testcase classname="tests.test_tidy" time="19"/></testsuite></testsuites>"""
    )
    monkeypatch.setattr(workers, "_LONG_FILES", tmp_path / "long_files.json")
    take([str(report)])
    assert json.loads((tmp_path / "long_files.json").read_text()) == {"tests/test_workers.py": 24}
    paths = ["tests/test_tidy.py", "tests/test_workers.py"]
    items = [SimpleNamespace(nodeid=f"{path}::test_x", iter_markers=list) for path in paths]
    long_files_first(items, "not spark")
    assert [each.nodeid for each in items] == [f"{path}::test_x" for path in reversed(paths)]


def test_what_is_known_to_take_long_is_there():
    known = json.loads(workers._LONG_FILES.read_text())
    assert [path for path in known if not (_TESTS.parent / path).exists()] == []
