"""Resizes a running job: asks Spark for as many executors as a file says.

On Kubernetes the file is an annotation of the driver's pod, so whoever may change the pod may
resize the job, and no port has to be open for it. Spark makes the executors itself; too many of
them are ended by it, the idle ones first, and a task that ran there runs again elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import structlog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["ExecutorTarget", "follow_executor_target"]

POLL_SECONDS = 1.0
FILE_VARIABLE = "HEADRACE_EXECUTORS_FILE"

_log = structlog.get_logger(__name__)


def follow_executor_target(
    session: SparkSession, environment: Mapping[str, str] = os.environ
) -> contextlib.AbstractContextManager[object]:
    """Follow the file that the environment names while the returned context lasts."""
    path = environment.get(FILE_VARIABLE)
    is_local = str(session.sparkContext.master).startswith("local")
    if not path or is_local:
        return contextlib.nullcontext()
    return ExecutorTarget(session, Path(path))


class ExecutorTarget:
    """A thread that compares the file with what Spark was asked for."""

    def __init__(self, session: SparkSession, path: Path) -> None:
        """Nothing is asked before `with`."""
        self._session = session
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="executor-target", daemon=True)
        self._asked = int(session.sparkContext.getConf().get("spark.executor.instances", "1") or 1)

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
            wanted = self._read()
            if wanted is None or wanted == self._asked:
                continue
            try:
                self._ask(wanted)
            except Exception as error:  # noqa: BLE001 - the JVM may be stopping; the next poll tries again
                _log.warning("executors could not be asked for", wanted=wanted, error=str(error))
                continue
            _log.info("executors asked for", wanted=wanted, before=self._asked)
            self._asked = wanted

    def _read(self) -> int | None:
        """Return the number; None for a file that is not there or says something else."""
        try:
            wanted = int(self._path.read_text().strip())
        except (OSError, ValueError):
            return None
        return wanted if wanted > 0 else None

    def _ask(self, wanted: int) -> None:
        """Set Spark's target (SparkContext.requestTotalExecutors), then end what is too many."""
        context: Any = self._session.sparkContext
        gateway, scala = context._gateway, context._jsc.sc()  # noqa: SLF001 - no public way to these
        nothing = gateway.jvm.scala.Predef.Map().empty()
        if not scala.requestTotalExecutors(wanted, 0, nothing):
            raise RuntimeError("Spark's scheduler did not take the request")
        surplus = _executors(scala)[wanted:]
        if surplus:
            ids = gateway.jvm.java.util.ArrayList()
            for each in surplus:
                ids.add(each)
            buffer = gateway.jvm.scala.jdk.javaapi.CollectionConverters.asScala(ids)
            scala.killExecutors(buffer.toSeq())


def _executors(scala: Any) -> list[str]:
    """Return the ids of the executors that run, the busiest first; the driver is none."""
    store = scala.statusStore().executorList(True)  # noqa: FBT003 - Scala's signature
    summaries = [store.apply(index) for index in range(store.size())]
    busy = [(-each.activeTasks(), each.id()) for each in summaries if each.id() != "driver"]
    return [name for _, name in sorted(busy)]
