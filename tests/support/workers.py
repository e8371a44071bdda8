"""How tests are shared out among pytest-xdist's workers: a file stays with one of them.

What a file's tests share (a cluster, a broker) is then made once. Tests that share a Spark session
stay with one worker; in a run of Spark's tests alone, those that start drivers of their own go to
whoever is free. Long files begin first, so that the short ones fill the end: `long_files.json` says
how many seconds the longest took (`python -m support.workers JUNIT.xml …` writes it), and marks
stand for what is not in it.
The mark `cluster` is given here, by what a test's module imports.
"""

import ast
import functools
import json
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from xdist.scheduler import LoadScopeScheduling

_ROOT = Path(__file__).parent.parent.parent
#: Where jobs are tested: files share a Spark session, or start drivers of their own.
_JOBS = "tests/jobs/"
_LONG_FILES = Path(__file__).with_name("long_files.json")
_LONG_SECONDS = 20
#: Which marks say that a file takes long, and how many seconds at least, where nothing is known.
_LONG = {"spark": 15, "slow": 10, "java": 5}
#: Helpers that start brokers, or what talks to them, as processes.
_STARTERS = (
    *("headrace_broker", "headrace_cluster", "kafka_cluster", "kafka_peer", "kube", "kube_cluster"),
    *("monitoring", "spark_world", "up"),
)


class FileScheduling(LoadScopeScheduling):
    """Files in the order of the collection, which is that of `long_files_first`."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False
        self._chosen = config.option.markexpr
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid.split("::", 1)[0], self._chosen)


def scope_of(path: str, chosen: str) -> str:
    """Return whose tests stay with one worker, where `-m` chose some of them."""
    if "not spark" in chosen or not (path.startswith(_JOBS) or _starts_spark(path)):
        return path
    # Among other tests two at a time start Spark so slowly that what waits for it gives up.
    return path if chosen == "spark" and not _uses_the_session(path) else "spark"


@functools.cache
def _starts_spark(path: str) -> bool:
    return "mark.spark" in (_ROOT / path).read_text()


@functools.cache
def _uses_the_session(path: str) -> bool:
    """Whether anything in a file asks for the fixture `spark`."""
    functions = [
        each
        for each in ast.walk(ast.parse((_ROOT / path).read_text()))
        if isinstance(each, ast.FunctionDef)
    ]
    return any(each.arg == "spark" for function in functions for each in function.args.args)


def long_files_first(items: list[pytest.Item], chosen: str) -> None:
    """Sort by what stays with one worker, the longest first; within it the order stays."""
    known = json.loads(_LONG_FILES.read_text())
    paths: dict[str, str] = {}
    guessed = Counter[str]()
    for item in items:
        path = item.nodeid.split("::", 1)[0]
        paths[path] = scope_of(path, chosen)
        marks = {mark.name for mark in item.iter_markers()}
        least = max((seconds for name, seconds in _LONG.items() if name in marks), default=0)
        guessed[path] = max(guessed[path], least)
    seconds = Counter[str]()
    for path, scope in paths.items():
        seconds[scope] += known.get(path, guessed[path])
    items.sort(key=lambda item: -seconds[paths[item.nodeid.split("::", 1)[0]]])


def take(reports: list[str]) -> None:
    """Write the files' seconds from JUnit reports of whole runs (`pytest --junit-xml`)."""
    seconds = Counter[str]()
    for report in reports:
        for case in ET.parse(report).iter("testcase"):  # noqa: S314 - our own report
            parts = case.attrib["classname"].split(".")
            end = next(at for at, part in enumerate(parts) if part.startswith("test_"))
            seconds["/".join(parts[: end + 1]) + ".py"] += float(case.attrib["time"])
    found = {path: round(each) for path, each in sorted(seconds.items()) if each >= _LONG_SECONDS}
    _LONG_FILES.write_text(json.dumps(found, indent=2) + "\n")


def mark_clusters(items: list[pytest.Item]) -> None:
    """Mark `cluster` what starts processes of brokers, itself or by a fixture of its own folder."""
    known: dict[str, bool] = {}
    for item in items:
        fixtures = getattr(item, "_fixtureinfo", None)
        definitions = fixtures.name2fixturedefs.values() if fixtures is not None else ()
        modules = {each.func.__module__ for found in definitions for each in found}
        modules.add(getattr(item, "module", ModuleType("")).__name__)
        if any(_starts_processes(name, known) for name in modules):
            item.add_marker("cluster")


def _starts_processes(name: str, known: dict[str, bool]) -> bool:
    if name not in known:
        values = vars(sys.modules.get(name, ModuleType(name))).values()
        starters = {f"support.{each}" for each in _STARTERS}
        known[name] = any(
            getattr(value, "__module__", None) in starters
            or (isinstance(value, ModuleType) and value.__name__ in starters)
            for value in values
        )
    return known[name]


if __name__ == "__main__":
    take(sys.argv[1:])
