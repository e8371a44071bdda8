"""Resizes a running job: requests the number of executors in a file from Spark.

On Kubernetes the file is an annotation of the driver's pod, so a client that may change the pod can
resize the job, and no port has to be open for it. Spark creates the executors itself. It ends
surplus ones, the idle ones first; a task that ran there runs again elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import structlog

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pyspark.sql import SparkSession

__all__ = ["ExecutorTarget", "follow_executor_target", "surplus_of"]

POLL_SECONDS = 1.0
FILE_VARIABLE = "HEADRACE_EXECUTORS_FILE"

_log = structlog.get_logger(__name__)


def follow_executor_target(
    session: SparkSession, environment: Mapping[str, str] = os.environ
) -> contextlib.AbstractContextManager[object]:
    """Follow the file in the environment variable while the returned context is open."""
    path = environment.get(FILE_VARIABLE)
    settings = session.sparkContext.getConf()
    is_local = str(session.sparkContext.master).startswith("local")
    if not path or is_local or settings.get("spark.dynamicAllocation.enabled") == "true":
        return contextlib.nullcontext()
    return ExecutorTarget(session, Path(path))


class ExecutorTarget:
    """A thread that compares the file with the number requested from Spark."""

    def __init__(self, session: SparkSession, path: Path) -> None:
        """Nothing is requested before `with`."""
        self._session = session
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="executor-target", daemon=True)
        self._asked = int(session.sparkContext.getConf().get("spark.executor.instances", "1") or 1)
        self._ending: set[str] = set()

    def __enter__(self) -> Self:
        """Begin to follow the file."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop following it."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            try:
                self._look(self._read())
            except Exception as error:  # noqa: BLE001 - the JVM may be stopping; the next poll tries again
                _log.warning("executors could not be asked for", error=str(error))

    def _look(self, wanted: int | None) -> None:
        """Request another number; end surplus executors, also those that start later."""
        if wanted is None:
            return
        context: Any = self._session.sparkContext
        scala = context._jsc.sc()  # noqa: SLF001 - no public way to it
        there = _executors(scala)
        self._ending &= set(there)
        surplus = surplus_of(there, self._ending, wanted)
        if wanted == self._asked and not surplus:
            return
        if surplus:
            self._end(scala, surplus)
        # After ending some: that lowers Spark's target by their number.
        nothing = context._gateway.jvm.scala.Predef.Map().empty()  # noqa: SLF001 - as above
        if not scala.requestTotalExecutors(wanted, 0, nothing):
            raise RuntimeError("Spark's scheduler did not take the request")
        _log.info("executors asked for", wanted=wanted, before=self._asked, ended=surplus)
        self._asked = wanted

    def _read(self) -> int | None:
        """Return the number; None if the file is missing or has something else."""
        try:
            wanted = int(self._path.read_text().strip())
        except (OSError, ValueError):
            return None
        return wanted if wanted > 0 else None

    def _end(self, scala: Any, surplus: Sequence[str]) -> None:
        """End executors (SparkContext.killExecutors)."""
        context: Any = self._session.sparkContext
        gateway = context._gateway  # noqa: SLF001 - no public way to it
        ids = gateway.jvm.java.util.ArrayList()
        for each in surplus:
            ids.add(each)
        scala.killExecutors(gateway.jvm.scala.jdk.javaapi.CollectionConverters.asScala(ids).toSeq())
        self._ending |= set(surplus)


def surplus_of(there: Sequence[str], ending: Collection[str], wanted: int) -> list[str]:
    """Return the surplus ones of `there` (the busiest first) that are not ending yet."""
    return [each for each in there if each not in ending][wanted:]


def _executors(scala: Any) -> list[str]:
    """Return the ids of the running executors, the busiest first, without the driver."""
    store = scala.statusStore().executorList(True)  # noqa: FBT003 - Scala's signature
    summaries = [store.apply(index) for index in range(store.size())]
    busy = [(-each.activeTasks(), each.id()) for each in summaries if each.id() != "driver"]
    return [name for _, name in sorted(busy)]
