"""A job that is struck at points of its batches: `-m support.crashing_job`.

    python -m support.crashing_job POINTS BATCH MODULE [arguments of the job]

The first of the points (`a,b`) is that of batch BATCH, the second of the next one. Those of a sink
(`crash_points.POINTS`) end the driver by SIGKILL, those of `EXECUTOR_POINTS` what computes for it:
a Python worker of an executor, or an executor's JVM (of a `local-cluster`), each once. The driver
goes on then. `stop:POINT` stops the driver there with all its processes, until somebody wakes
them; `server:POINT` kills the sink's server, whose process is in the file `CRASH_SERVER`, and goes
on.

`CRASH_STRUCK` is a folder with a file for each point that was struck: a driver that is started
again is left alone there. By default each driver has another one.
"""

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from headrace_jobs.jobs.run import main
from support import crash_points


class Crash:
    """Strikes at a point of each batch."""

    def __init__(self, points: str, batch_id: int) -> None:
        self._points = dict(enumerate(points.split(","), start=batch_id))
        self.running = -1
        self._struck = Path(os.environ.get("CRASH_STRUCK") or tempfile.mkdtemp())

    def is_at(self, point: str) -> bool:
        """Whether this is the point of the batch in work, or of the driver's start."""
        return self._next(point) is not None

    def is_behind(self, point: str) -> bool:
        return any(
            _place(each) == point and self.running >= at for at, each in self._points.items()
        )

    def at(self, point: str, batch_id: int | None = None) -> bool:
        """Strike if this is the point of the batch, by default of the one in work; whether so."""
        found = self._next(point, batch_id)
        if found is None or not self._is_first(found):
            return False
        if point.startswith("executors"):
            self._kill_executors(point)
        else:
            _strike(found, os.getpid())
        return True

    def in_tasks(self, task: Any, call: Callable[[], Any]) -> Any:
        """Call, and strike in one of the tasks if the point is in one."""
        found = self._points.get(self.running, "none")
        if not found.endswith("-a-task"):
            return call()
        whole = task.run
        victim = str(self._victim(found))
        task.run = _striking(whole, found, os.getpid(), victim)
        try:
            return call()
        finally:
            task.run = whole
            _say(f"{found}: {int(Path(victim).exists())} struck")

    def _next(self, point: str, batch_id: int | None = None) -> str | None:
        if point in ("claimed", "created", "group-commit"):
            # Of a start, or of another thread, when the next batch may be in work.
            found = [each for each in self._points.values() if _place(each) == point]
            return found[0] if found else None
        batch_id = self.running if batch_id is None else batch_id
        here = self._points.get(batch_id, "none")
        return here if _place(here) == point else None

    def _victim(self, point: str) -> Path:
        return self._struck / point

    def _is_first(self, point: str) -> bool:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._victim(point), os.O_CREAT | os.O_EXCL))
            return True
        return False

    def _kill_executors(self, point: str) -> None:
        family = psutil.Process().children(recursive=True)
        # The driver's own JVM is the one that executors come from.
        found = [each for each in family if _is_jvm(each) and each.parent() in family]
        for each in found:
            each.kill()
        _say(f"{point}: {len(found)} struck")


def _place(point: str) -> str:
    return point.rpartition(":")[2]


def _strike(point: str, driver: int) -> None:
    """Do what the point says, in the driver or in one of its tasks."""
    _say(f"{point}: 1 struck")
    if point.startswith("server:"):
        server = psutil.Process(int(Path(os.environ["CRASH_SERVER"]).read_text()))
        family = [*server.children(recursive=True), server]
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        while not all(map(_is_gone, family)):
            time.sleep(0.01)
    elif point.startswith("stop:"):
        root = psutil.Process(driver)
        for each in (*root.children(recursive=True), root):
            if each.pid != os.getpid():
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.suspend()
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1)  # it may come to another thread first, while this one goes on
    else:
        os.kill(driver, signal.SIGKILL)
        signal.pause()  # until the signal has come there, nothing goes on here


def _striking(run: Callable[..., Any], point: str, driver: int, victim: str) -> Callable[..., Any]:
    """Return a task that strikes once: when its first rows are on their way, or all is done."""
    who, _, when = point.partition("-")

    def strike():
        with contextlib.suppress(FileExistsError):
            os.close(os.open(victim, os.O_CREAT | os.O_EXCL))
            if who == "worker":
                os.kill(os.getpid(), signal.SIGKILL)
            elif who == "executor":
                jvm = next(each.pid for each in psutil.Process().parents() if _is_jvm(each))
                os.kill(jvm, signal.SIGKILL)
                signal.pause()
            else:
                _strike(point, driver)

    def striking(self, batches):
        def first_then_strike():
            for batch in batches:
                yield batch
                strike()

        if when != "after-a-task":
            yield from run(self, first_then_strike())
        else:
            answer = list(run(self, batches))
            strike()
            yield from answer

    return striking


def _is_gone(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def _is_jvm(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name() == "java"
    return False


def _say(text: str) -> None:
    print(f"crash: {text}", flush=True)  # noqa: T201 - what the test reads


if __name__ == "__main__":
    crash_points.arm(Crash(sys.argv[1], int(sys.argv[2])))
    sys.exit(main(sys.argv[3:]))
