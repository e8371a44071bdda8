"""A source that tells a query when all of its topics have been silent for a while.

Spark runs no batch without records, so windows that wait for the next record would stay open. When
no trigger has found a record for the idle timeout, `Silence` leaves a file on the driver's disk.
The next trigger finds it, counts one more tick, and runs a batch in which each group of keys gets a
row. The tick is an offset in the query's log like any other: a batch that runs again gets it again.
Timers of `transformWithState` would not work: with them a batch is always due, and the
available-now trigger never ends.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from headrace_jobs.progress.offsets import TICK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CLOCK", "Silence", "read_ticks"]

#: The source's name.
CLOCK = "headrace-clock"
# Session settings: the file to look for, and the topic that is reported as silent.
_FILE = "headrace.clock.file"
_TOPIC = "headrace.clock.topic"


class Silence:
    """Follows a query's triggers, and requests a tick once if none found a record for a while.

    A driver's start counts as a record: a pause of the job is not a silence of its topics.
    """

    def __init__(self, session: SparkSession, *, idle_seconds: float, topic: str) -> None:
        """Register the source with the session, for queries that are built from now on."""
        self._idle_seconds = idle_seconds
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-clock-"))
        self._file = self._folder / TICK
        self._heard_at = time.monotonic()
        self._is_requested = False
        session.dataSource.register(_Clock)
        session.conf.set(_FILE, str(self._file))
        session.conf.set(_TOPIC, topic)

    def heard(self) -> None:
        """Note that a batch had records."""
        self._heard_at, self._is_requested = time.monotonic(), False

    def idle(self) -> None:
        """Note that a trigger found no records."""
        is_due = time.monotonic() - self._heard_at >= self._idle_seconds
        if is_due and not self._is_requested:
            self.request_tick()

    def request_tick(self) -> None:
        """Request a tick."""
        self._is_requested = True
        self._file.touch()

    def close(self) -> None:
        """Remove the file."""
        shutil.rmtree(self._folder, ignore_errors=True)


def read_ticks(session: SparkSession, groups: int) -> DataFrame | None:
    """Return the stream of ticks: `key_group, topic`, or None if the session has no clock."""
    path = session.conf.get(_FILE, None)
    if path is None:
        return None
    options = {"path": path, "topic": session.conf.get(_TOPIC), "groups": str(groups)}
    return session.readStream.format(CLOCK).options(**options).load()


class _Clock(DataSource):
    @classmethod
    def name(cls) -> str:
        return CLOCK

    def schema(self) -> str:
        return "key_group INT, topic STRING"

    def streamReader(self, schema: Any) -> _Reader:  # noqa: ARG002, N802 - Spark's interface
        return _Reader(self.options)


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._file = Path(options["path"])
        self._topic = options["topic"]
        self._groups = int(options["groups"])

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's interface
        return {TICK: 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002, N802 - as above
        try:
            self._file.unlink()
        except FileNotFoundError:
            return start
        return {TICK: start[TICK] + 1}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - as above
        """Do nothing. Without this method Spark would read everything in one batch."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(start != end)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        if partition.value:
            yield from ((group, self._topic) for group in range(self._groups))
