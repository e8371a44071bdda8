"""A job whose driver kills itself with SIGKILL at a point of a batch: `-m support.crashing_job`.

    python -m support.crashing_job POINT BATCH MODULE [arguments of the job]

The product has no hooks for this: its functions are wrapped here, before the job starts.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

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


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def around(owner: Any, name: str, wrap: Callable[..., Any]) -> None:
    """Replace a function by one that gets it as its first argument."""
    inner = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: wrap(inner, *args, **kwargs))


class Crash:
    """Functions that go around those of the product, and kill the process at one point."""

    def __init__(self, point: str, batch_id: int) -> None:
        self._point = point
        self._batch_id = batch_id
        self._running = -1

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
        return self._point == point and self._running == self._batch_id

    def _write(self, inner, outputs, frame, batch_id):
        self._running = batch_id
        self._die_at("batch-planned")
        inner(outputs, frame, batch_id)
        self._die_at("written")

    def _transact_once(self, inner, store, batch, work):
        def merge_and_die(connection, relation):
            if work is not None:
                work(connection, relation)
            die()

        self._die_at("staged")
        verdict = inner(store, batch, merge_and_die if self._is_at("before-commit") else work)
        self._die_at("after-commit")
        return verdict

    def _copy_rows(self, inner, *arguments):
        if self._is_at("in-a-task"):
            task = postgres_rows._CopyTask
            task.run = _half_of(task.run, os.getpid())
        return inner(*arguments)

    def _take(self, inner, progress_listener, progress):
        if self._point == "batch-committed" and int(progress.batchId) == self._batch_id - 1:
            die()
        inner(progress_listener, progress)

    def _commit(self, inner, client, name, offsets):
        if self._point == "group-commit" and self._running >= self._batch_id:
            die()
        inner(client, name, offsets)


def _half_of(run: Callable[..., Any], driver: int) -> Callable[..., Any]:
    """Return a task that kills the driver once its first rows are on their way."""

    def killing(self, batches):
        def first_then_kill():
            for batch in batches:
                yield batch
                os.kill(driver, signal.SIGKILL)

        return run(self, first_then_kill())

    return killing


if __name__ == "__main__":
    Crash(sys.argv[1], int(sys.argv[2])).arm()
    sys.exit(main(sys.argv[3:]))
