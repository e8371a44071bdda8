"""franz-go's tests of its client `pkg/kgo`: groups, transactions, regular expressions, sharing.

The Go module is had by its name; its tests take the broker's address from KGO_SEEDS. A test that
wants KIP-848 falls back to the classic protocol where a broker does not serve it, without a word:
so what the broker serves is looked at before, and groups of the new kind are watched for.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kio.schema.api_versions.v0.request import ApiVersionsRequest

from conformance.suites.suite import (
    Broker,
    Outcome,
    Result,
    SuiteMissingError,
    cache_directory,
)
from support.wire import RawConnection

MODULE: Final = "github.com/twmb/franz-go"
VERSION: Final = "v1.22.2"
#: Of each topic that the groups chain through; the client's own default is 500,000.
RECORDS: Final = os.environ.get("HEADRACE_SUITES_RECORDS", "30000")
_TIMEOUT_SECONDS: Final = 3600
_CONSUMER_GROUP_HEARTBEAT: Final = 68
_ENDED = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+)")
_OUTCOMES: Final = {"PASS": Outcome.PASSED, "FAIL": Outcome.FAILED, "SKIP": Outcome.SKIPPED}


class Kgo:
    """The suite of franz-go."""

    name = "kgo"
    left_out: Mapping[str, str] = {}
    broker_count = 1
    broker_properties: Mapping[str, str] = {}

    def __init__(self) -> None:
        self._home = cache_directory() / f"kgo-{VERSION}"
        self._binary = self._home / "kgo.test"

    def build(self) -> None:
        if self._binary.exists():
            return
        if shutil.which("go") is None:
            raise SuiteMissingError("`go` is not on the PATH")
        self._home.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "GOFLAGS": "-mod=mod"}
        if not (self._home / "go.mod").exists():
            self._go("mod", "init", "suites", environment=environment)
        self._go("get", f"{MODULE}@{VERSION}", environment=environment)
        target = ["test", "-c", "-o", str(self._binary), f"{MODULE}/pkg/kgo"]
        self._go(*target, environment=environment)

    def _go(self, *arguments: str, environment: Mapping[str, str]) -> str:
        done = subprocess.run(
            ["go", *arguments],
            cwd=self._home,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise SuiteMissingError(f"go {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def run(self, broker: Broker, only: str | None) -> Iterator[Result]:
        check_serves_consumer_groups(broker.bootstrap)
        log = broker.directory / "kgo.log"
        command = [str(self._binary), "-test.v", "-test.timeout", f"{_TIMEOUT_SECONDS}s"]
        if only is not None:
            command += ["-test.run", only]
        skipped = [name for name in self.left_out if "/" not in name]
        if skipped and only is None:
            command += ["-test.skip", "|".join(f"^{name}$" for name in skipped)]
        environment = {
            **os.environ,
            "GOFLAGS": "-mod=mod",
            "KGO_SEEDS": broker.bootstrap,
            "KGO_TEST_RF": "1",
            "KGO_TEST_RECORDS": RECORDS,
            "KGO_LOG_LEVEL": "none",
        }
        # One of its tests reads the sources beside it.
        source = self._go("list", "-f", "{{.Dir}}", f"{MODULE}/pkg/kgo", environment=environment)
        with log.open("w") as output:
            subprocess.run(
                command,
                cwd=source.strip(),
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_TIMEOUT_SECONDS + 60,
                check=False,
            )
        yield from results(log)


def check_serves_consumer_groups(bootstrap: str) -> None:
    """Raise where subtests of KIP-848 would run the classic protocol instead."""
    with RawConnection(bootstrap) as connection:
        answer = connection.call(ApiVersionsRequest())
    served = {int(each.api_key): int(each.max_version) for each in answer.api_keys}
    if served.get(_CONSUMER_GROUP_HEARTBEAT, -1) < 1:
        raise SuiteMissingError("ConsumerGroupHeartbeat 1 is not served: /848 would show nothing")


def results(log: Path) -> Iterator[Result]:
    """Read each test's end, subtests too; one that never ended failed."""
    begun: dict[str, None] = {}
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("=== RUN"):
            begun[line.split()[-1]] = None
        elif found := _ENDED.match(line):
            begun.pop(found[2], None)
            yield Result(name=found[2], outcome=_OUTCOMES[found[1]], log=log)
    for name in begun:
        yield Result(name=name, outcome=Outcome.FAILED, log=log)
