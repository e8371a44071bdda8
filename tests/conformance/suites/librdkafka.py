"""librdkafka's own tests, each in a process of its own.

Their source is in the npm package `@confluentinc/kafka-javascript`, which brings librdkafka along.
What it runs against a mock of a broker (its "local" tests) says nothing of ours and is not run.
"""

import os
import re
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from conformance.suites.suite import (
    Broker,
    Outcome,
    Result,
    SuiteMissingError,
    cache_directory,
    reason_left_out,
)
from support.kafka_peer import tool_command

PACKAGE: Final = "@confluentinc/kafka-javascript"
VERSION: Final = "1.10.1"
_BUILD_SECONDS: Final = 3600
_TEST_SECONDS: Final = 300
_DECLARED = re.compile(r"^\s*_TEST\((\d{4})_(\w+)", re.MULTILINE)
_SUMMARY = re.compile(r"\|(?:\x1b\[\d+m)?\s*(\d{4}_\w+)\s*\|\s*(\w+)\s*\|")
_TLS: Final = "TLS is not served yet"
_SASL: Final = "SASL is not served yet"


class Librdkafka:
    """The suite of librdkafka."""

    name = "librdkafka"
    left_out: Mapping[str, str] = {
        "0097*": _TLS,
        "0115*": "needs ACLs and SASL",
        "0119*": "needs ACLs",
        "0126*": _SASL,
        "0128*": _SASL,
        "0133*": _TLS,
        "0134*": _TLS,
        "0135*": _SASL,
        "0142*": _SASL,
        "0081*": "its last part makes ACLs; what comes before passes",
        "0101*": "needs its brokers in three racks",
        "0109*": "its second half forbids a topic by ACLs; the first half passes",
    }
    broker_count = 3
    #: trivup's, with which librdkafka's authors test.
    broker_properties: Mapping[str, str] = {
        "num.partitions": "4",
        # Kafka's default: 0118 wants its two members to join together.
        "group.initial.rebalance.delay.ms": "3000",
    }

    def __init__(self) -> None:
        self._home = cache_directory() / f"librdkafka-{VERSION}"
        self._source = self._home / "package" / "deps" / "librdkafka"

    @property
    def _tests(self) -> Path:
        return self._source / "tests"

    def build(self) -> None:
        if (self._tests / "test-runner").exists():
            return
        for tool in ("npm", "g++", "make"):
            if shutil.which(tool) is None:
                raise SuiteMissingError(f"`{tool}` is not on the PATH")
        self._home.mkdir(parents=True, exist_ok=True)
        if not self._source.exists():
            self._do(self._home, "npm", "pack", f"{PACKAGE}@{VERSION}")
            (archive,) = self._home.glob("*.tgz")
            with tarfile.open(archive) as opened:
                opened.extractall(self._home, filter="data")
        jobs = f"-j{os.cpu_count() or 1}"
        self._do(self._source, "./configure", "--disable-lz4-ext", "--disable-sasl")
        self._do(self._source, "make", jobs, "libs")
        # Its last step copies something that the package leaves out.
        self._do(self._source, "make", "-C", "tests", jobs, "build", may_fail=True)
        if not (self._tests / "test-runner").exists():
            raise SuiteMissingError(f"see {self._home / 'build.log'}")

    def _do(self, directory: Path, *command: str, may_fail: bool = False) -> None:
        with (self._home / "build.log").open("a") as log:
            done = subprocess.run(
                command,
                cwd=directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=_BUILD_SECONDS,
                check=False,
            )
        if done.returncode and not may_fail:
            raise SuiteMissingError(f"{command} failed, see {self._home / 'build.log'}")

    def run(self, broker: Broker, only: str | None) -> Iterator[Result]:
        (self._tests / "test.conf").write_text(
            f"metadata.broker.list={broker.bootstrap}\ntest.timeout.multiplier=2\n"
        )
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": "../src:../src-cpp",
            "TEST_KAFKA_VERSION": "4.2.0",
            "BROKERS": broker.bootstrap,
            "KAFKA_PATH": str(tools_of_kafka(broker.directory)),
            "CI": "true",
        }
        for number in self._numbers():
            if only is not None and not only.startswith(number):
                continue
            if only is None and reason_left_out(self, number):
                continue
            yield from self._run_one(number, environment, broker.directory / f"{number}.log")

    def _numbers(self) -> list[str]:
        declared = _DECLARED.findall((self._tests / "test.c").read_text())
        return sorted({number for number, _ in declared if number < "1000"})

    def _run_one(self, number: str, environment: Mapping[str, str], log: Path) -> Iterator[Result]:
        # -Q quick, -L nothing that needs no broker.
        command = ["./test-runner", "-Q", "-L", "-p1"]
        status: int | None = None
        with log.open("w") as output:
            try:
                done = subprocess.run(
                    command,
                    cwd=self._tests,
                    env={**environment, "TESTS": number},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=_TEST_SECONDS,
                    check=False,
                )
                status = done.returncode
            except subprocess.TimeoutExpired:
                output.write("\ntoo long\n")
        found = dict(_SUMMARY.findall(log.read_text(errors="replace")))
        if status != 0:
            yield Result(name=number, outcome=Outcome.FAILED, log=log)
            return
        for name, state in found.items():
            passed = Outcome.PASSED if state == "PASSED" else Outcome.SKIPPED
            yield Result(name=name, outcome=passed, log=log)


def tools_of_kafka(directory: Path) -> Path:
    """Make a folder that looks like Kafka's, with the one script that the tests call."""
    script = directory / "kafka" / "bin" / "kafka-topics.sh"
    script.parent.mkdir(parents=True)
    quoted = " ".join(f"'{part}'" for part in tool_command("topics"))
    script.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script.parent.parent
