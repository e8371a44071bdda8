"""What a suite of somebody else is: where its source comes from, its tests, what is left out."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol


class Outcome(Enum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "FAILED"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One test's end; `log` is the file with what it said."""

    name: str
    outcome: Outcome
    log: Path


@dataclass(frozen=True, kw_only=True)
class Broker:
    """What a suite knows of the broker, and where it may write."""

    bootstrap: str
    directory: Path


class Suite(Protocol):
    """A suite that can be built here, and run against any broker."""

    name: str
    #: Test (or the begin of its name, with a `*`) to why it is not run or may fail.
    left_out: Mapping[str, str]
    #: 1 or 3.
    broker_count: int
    #: Settings that the suite's own cluster would have.
    broker_properties: Mapping[str, str]

    def build(self) -> None:
        """Fetch and compile once. Raises SuiteMissingError."""

    def run(self, broker: Broker, only: str | None) -> Iterator[Result]:
        """Yield each test's result as it ends."""
        ...


class SuiteMissingError(Exception):
    """A suite cannot be had here; the message says what is missing."""


def cache_directory() -> Path:
    """Return where sources and what was built of them stay."""
    given = os.environ.get("HEADRACE_SUITES")
    return Path(given) if given else Path.home() / ".cache" / "headrace" / "suites"


def reason_left_out(suite: Suite, test: str) -> str | None:
    """Return why a test is left out, None where it is not."""
    for name, reason in suite.left_out.items():
        if test == name or (name.endswith("*") and test.startswith(name[:-1])):
            return reason
    return None
