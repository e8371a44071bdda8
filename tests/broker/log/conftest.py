"""A clock and a folder for each test of the log."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace_broker.log.config import LogConfig
from headrace_broker.log.partition_log import PartitionLog
from support.log import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "topic-0"


@pytest.fixture
def new_log(folder: Path, clock: ManualClock) -> Iterator[Callable[..., PartitionLog]]:
    """Open the test's folder with the given settings; closed without a word at the end."""
    opened: list[PartitionLog] = []

    def open_log(**settings: object) -> PartitionLog:
        log = PartitionLog.open(folder, LogConfig(**settings), clock=clock)
        opened.append(log)
        return log

    yield open_log
    for log in opened:
        log.abandon()
