"""Where a batch can be struck, for each sink, and what goes around the product's functions for it.

The product has no hooks for this: its functions are wrapped before the job starts. A point is named
by what has been done when it comes; the same name is the same moment in every sink.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from headrace_jobs.jobs.outputs import Outputs
from headrace_jobs.progress import group, listener
from headrace_jobs.sinks import (
    files,
    files_delta,
    files_plain,
    files_task,
    kafka_transactions,
    postgres,
    postgres_rows,
    postgres_store,
    search,
    search_marker,
    search_task,
)

_PLANNED = ("batch-committed", "batch-planned", "in-a-task")
_BEFORE = (*_PLANNED, "staged")
_BEHIND = ("after-commit", "written", "group-commit")

#: By sink, what each of them has left behind when the process is gone.
#:
#: batch-committed: the batch before is in the checkpoint; this one is not planned
#: batch-planned: it is in the offset log, and nothing else was done
#: in-a-task: a task has written half of its rows (of a topic, which the driver writes: has handed
#:     them on)
#: staged: the rows are there, and no reader sees them (an index has no such moment: readers see
#:     documents as they come)
#: before-commit: all that the sink's atomic step needs is done, up to that step
#: after-commit: the sink has the batch
#: written: all sinks have it; the checkpoint's entry is missing
#: group-commit: the checkpoint has it; the group's offsets are being committed
#:
#: And, where a sink has more steps: claimed (a driver has its epoch, and nothing was cleared away),
#: created (the table is there without an epoch), linked (the step is done, and not durable yet),
#: merged, compacted (around the commit of a compaction), half-sent (of the records),
#: half-of-the-offsets (the job's own group is missing in the transaction), committing (the broker
#: was asked to, and has not answered).
POINTS = {
    "postgres": ("claimed", *_BEFORE, "before-commit", *_BEHIND),
    "delta": ("created", *_BEFORE, "before-commit", *_BEHIND, "compacted", "claimed"),
    "parquet": ("claimed", *_BEFORE, "before-commit", "linked", *_BEHIND, "merged", "compacted"),
    "search": ("claimed", *_BEFORE, *_BEHIND),
    "kafka": (
        *("claimed", *_PLANNED, "half-sent", "staged", "half-of-the-offsets"),
        *("before-commit", "committing", *_BEHIND),
    ),
}

EXECUTOR_POINTS = (
    "executors-planned",  # the batch is in the offset log; all executors are gone
    "worker-in-a-task",  # a task has written half of its rows
    "worker-after-a-task",  # a task has done all, and has not answered
    "executor-in-a-task",  # the same two, with the JVM around the worker
    "executor-after-a-task",
    "executors-staged",  # the rows are written, by executors that are gone
)


class Crash(Protocol):
    """What strikes."""

    running: int

    def at(self, point: str, batch_id: int | None = None) -> bool:
        """Strike if this is the point of the batch, by default of the one in work; whether so."""

    def is_at(self, point: str) -> bool:
        """Whether this is the point of the batch in work, or of the driver's start."""

    def is_behind(self, point: str) -> bool:
        """Whether this is the point of the batch in work, or of one before."""

    def in_tasks(self, task: type, call: Callable[[], Any]) -> Any:
        """Call, and strike in one of the tasks if the point is in one."""


def around(owner: Any, name: str, wrap: Callable[..., Any]) -> None:
    """Replace a function by one that gets it as its first argument."""
    inner = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: wrap(inner, *args, **kwargs))


def strike_after(owner: Any, name: str, crash: Crash, point: str) -> None:
    """Strike when a function of that name has done its work."""

    def wrap(inner, *args, **kwargs):
        found = inner(*args, **kwargs)
        crash.at(point)
        return found

    around(owner, name, wrap)


def strike_before(owner: Any, name: str, crash: Crash, point: str) -> None:
    def wrap(inner, *args, **kwargs):
        crash.at(point)
        return inner(*args, **kwargs)

    around(owner, name, wrap)


def arm(crash: Crash) -> None:
    """Put everything around the product."""

    def write(inner, outputs, frame, batch_id):
        crash.running = batch_id
        crash.at("batch-planned")
        crash.at("executors-planned")
        inner(outputs, frame, batch_id)
        crash.at("written")

    def take(inner, progress_listener, progress):
        crash.at("batch-committed", int(progress.batchId) + 1)
        inner(progress_listener, progress)

    def commit(inner, *arguments):
        if crash.is_behind("group-commit"):
            crash.at("group-commit")
        inner(*arguments)

    around(Outputs, "write", write)
    around(listener.ProgressListener, "take", take)
    around(group.GroupProgress, "_commit", commit)
    for each in (_arm_postgres, _arm_files, _arm_search, _arm_kafka):
        each(crash)


def _arm_postgres(crash: Crash) -> None:
    def copy_rows(inner, *arguments):
        return crash.in_tasks(postgres_rows._CopyTask, lambda: inner(*arguments))

    def transact_once(inner, store, batch, work):
        crash.at("staged-in-postgres")  # where a job has other sinks before
        crash.at("staged")
        crash.at("executors-staged")
        verdict = inner(store, batch, work)
        if crash.at("answer-lost"):
            import psycopg

            raise psycopg.OperationalError("server closed the connection unexpectedly")
        crash.at("after-commit")
        return verdict

    around(postgres, "copy_rows", copy_rows)
    around(postgres_store.PostgresStore, "_transact_once", transact_once)
    strike_after(postgres_store.PostgresStore, "_claim", crash, "claimed")
    strike_after(postgres_store.PostgresStore, "_store", crash, "before-commit")


def _arm_files(crash: Crash) -> None:
    import deltalake

    def write_files(inner, *arguments):
        return crash.in_tasks(files_task._WriteTask, lambda: inner(*arguments))

    def commit(inner, log, progress, added):
        crash.at("staged")
        crash.at("executors-staged")
        inner(log, progress, added)
        crash.at("after-commit")

    def compact(inner, log, *arguments):
        done = inner(log, *arguments)
        if done:
            crash.at("compacted")
        return done

    around(files, "write_files", write_files)
    for log in (files_plain.PlainLog, files_delta.DeltaLog):
        around(log, "commit", commit)
        around(log, "compact", compact)
        strike_before(log, "clear", crash, "claimed")
    strike_after(files_plain, "merge", crash, "merged")
    strike_before(files_plain.os, "link", crash, "before-commit")
    strike_after(files_plain.os, "link", crash, "linked")
    strike_after(files_delta.DeltaLog, "create", crash, "created")
    strike_before(deltalake.DeltaTable, "create_write_transaction", crash, "before-commit")


def _arm_search(crash: Crash) -> None:
    def index_rows(inner, *arguments):
        return crash.in_tasks(search_task._BulkTask, lambda: inner(*arguments))

    def mark(inner, writer, batch):
        crash.at("staged")
        crash.at("executors-staged")
        verdict = inner(writer, batch)
        crash.at("after-commit")
        return verdict

    around(search, "index_rows", index_rows)
    around(search.SearchWriter, "_mark", mark)
    strike_after(search_marker.Marker, "claim", crash, "claimed")


class _PassTask:
    """A topic has no task of its own: its records come to the driver through this one."""

    def run(self, batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches


def _passed(arrow_batches: Callable[..., Any], records: Any) -> list[Any]:
    return list(arrow_batches(records.mapInArrow(_PassTask().run, records.schema)))


def _arm_kafka(crash: Crash) -> None:
    writer = kafka_transactions.TransactionalWriter

    def arrow_batches(inner, records):
        return crash.in_tasks(_PassTask, lambda: _passed(inner, records))

    def produce(inner, self, batches):
        for batch in batches:
            half = batch.num_rows // 2
            inner(self, [batch.slice(0, half)])
            if crash.is_at("half-sent"):
                self._producer.flush(30)
                crash.at("half-sent")
            inner(self, [batch.slice(half)])
        if crash.is_at("staged") or crash.is_at("executors-staged"):
            self._producer.flush(30)
            crash.at("staged")
            crash.at("executors-staged")

    def send_offsets(inner, self, progress, **more):
        before = len(calls)
        inner(self, progress, **more)
        del calls[before:]

    def within_its_time(inner, call, *arguments):
        if len(arguments) > 1:  # offsets of a group
            if calls:
                crash.at("half-of-the-offsets")
            calls.append(call)
        elif crash.is_at("committing"):
            threading.Timer(0.002, crash.at, ("committing", crash.running)).start()
        inner(call, *arguments)

    def commit(inner, self):
        crash.at("before-commit")
        inner(self)
        crash.at("after-commit")

    calls: list[Any] = []
    around(kafka_transactions, "arrow_batches", arrow_batches)
    around(kafka_transactions, "_within_its_time", within_its_time)
    around(writer, "_produce", produce)
    around(writer, "_send_offsets", send_offsets)
    around(writer, "_commit", commit)
    strike_after(writer, "_claim", crash, "claimed")
