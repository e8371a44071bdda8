"""A job that kills itself with SIGKILL at points of its batches: `-m support.crashing_job`.

    python -m support.crashing_job POINTS BATCH MODULE [arguments of the job]

The first of the points (`a,b`) is that of batch BATCH, the second of the next one. Those of
`POINTS` end the driver, those of `EXECUTOR_POINTS` what computes for it: a Python worker of an
executor, or an executor's JVM (of a `local-cluster`), each once. The driver goes on then.

The product has no hooks for this: its functions are wrapped here, before the job starts.
"""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from headrace_jobs.jobs.outputs import Outputs
from headrace_jobs.jobs.run import main
from headrace_jobs.progress import group, listener
from headrace_jobs.sinks import postgres, postgres_rows, postgres_store

#: What each of them has left behind when the process is gone.
POINTS = (
    "batch-committed",  # the batch before is in the checkpoint; this one is not planned
    "batch-planned",  # it is in the offset log, and nothing else was done
    "in-a-task",  # a task has copied half of its rows
    "staged",  # the rows are in the staging table
    "before-commit",  # they are merged, the offsets stored, and nothing is committed
    "after-commit",  # the sink has the batch
    "written",  # all sinks have it; the checkpoint's entry is missing
    "group-commit",  # the checkpoint has it; the group's offsets are being committed
)

EXECUTOR_POINTS = (
    "executors-planned",  # the batch is in the offset log; all executors are gone
    "worker-in-a-task",  # a task has copied half of its rows
    "worker-after-a-task",  # a task has committed what it copied, and has not answered
    "executor-in-a-task",  # the same two, with the JVM around the worker
    "executor-after-a-task",
    "executors-staged",  # the rows are in the staging table, of executors that are gone
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def around(owner: Any, name: str, wrap: Callable[..., Any]) -> None:
    """Replace a function by one that gets it as its first argument."""
    inner = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: wrap(inner, *args, **kwargs))


class Crash:
    """Functions that go around those of the product, and kill a process at a point of a batch."""

    def __init__(self, points: str, batch_id: int) -> None:
        self._points = dict(enumerate(points.split(","), start=batch_id))
        self._running = -1
        #: Has a file for each victim: a task that is tried again is left alone.
        self._victims = tempfile.mkdtemp()

    def arm(self) -> None:
        around(Outputs, "write", self._write)
        around(postgres_store.PostgresStore, "_transact_once", self._transact_once)
        around(postgres, "copy_rows", self._copy_rows)
        around(listener.ProgressListener, "take", self._take)
        around(group.GroupClient, "commit", self._commit)

    def _die_at(self, point: str) -> None:
        if self._is_at(point):
            die()

    def _is_at(self, point: str) -> bool:
        return self._points.get(self._running) == point

    def _write(self, inner, outputs, frame, batch_id):
        self._running = batch_id
        self._die_at("batch-planned")
        self._kill_executors_at("executors-planned")
        inner(outputs, frame, batch_id)
        self._die_at("written")

    def _kill_executors_at(self, point: str) -> None:
        if self._is_at(point):
            family = psutil.Process().children(recursive=True)
            # The driver's own JVM is the one that executors come from.
            found = [each for each in family if _is_jvm(each) and each.parent() in family]
            for each in found:
                each.kill()
            _say(f"{point}: {len(found)} killed")

    def _transact_once(self, inner, store, batch, work):
        def merge_and_die(connection, relation):
            if work is not None:
                work(connection, relation)
            die()

        self._die_at("staged")
        self._kill_executors_at("executors-staged")
        verdict = inner(store, batch, merge_and_die if self._is_at("before-commit") else work)
        self._die_at("after-commit")
        return verdict

    def _copy_rows(self, inner, *arguments):
        point = self._points.get(self._running, "none")
        if not point.endswith("-a-task"):
            return inner(*arguments)
        task = postgres_rows._CopyTask
        whole = task.run
        victim = str(Path(self._victims) / str(self._running))
        task.run = _killing(whole, point, os.getpid(), victim)
        try:
            return inner(*arguments)
        finally:
            task.run = whole
            _say(f"{point}: {int(Path(victim).exists())} killed")

    def _take(self, inner, progress_listener, progress):
        if self._points.get(int(progress.batchId) + 1) == "batch-committed":
            die()
        inner(progress_listener, progress)

    def _commit(self, inner, client, name, offsets):
        if any(
            point == "group-commit" and self._running >= at for at, point in self._points.items()
        ):
            die()
        inner(client, name, offsets)


def _killing(run: Callable[..., Any], point: str, driver: int, victim: str) -> Callable[..., Any]:
    """Return a task that kills once: when its first rows are on their way, or are committed."""
    who, _, when = point.partition("-")

    def kill():
        with contextlib.suppress(FileExistsError):
            os.close(os.open(victim, os.O_CREAT | os.O_EXCL))
            process = driver
            if who == "worker":
                process = os.getpid()
            elif who == "executor":
                process = next(each.pid for each in psutil.Process().parents() if _is_jvm(each))
            os.kill(process, signal.SIGKILL)
            if who != "worker":
                signal.pause()  # until the signal has come there, nothing goes on here

    def killing(self, batches):
        def first_then_kill():
            for batch in batches:
                yield batch
                kill()

        if when != "after-a-task":
            yield from run(self, first_then_kill())
        else:
            answer = list(run(self, batches))
            kill()
            yield from answer

    return killing


def _is_jvm(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name() == "java"
    return False


def _say(text: str) -> None:
    print(f"crash: {text}", flush=True)  # noqa: T201 - what the test reads


if __name__ == "__main__":
    Crash(sys.argv[1], int(sys.argv[2])).arm()
    sys.exit(main(sys.argv[3:]))
