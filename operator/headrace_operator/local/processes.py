"""Supervision of child processes: start, restart with backoff, stop in order.

Each child leads its own session. So Ctrl-C in the terminal reaches only the supervisor, which then
stops the children in the right order; and the whole session (a JVM, its Python workers) can be
ended even when the child itself is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import psutil

from headrace_operator.local.state import ProcessIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "ProcessEvent",
    "ProcessEventKind",
    "ProcessSpec",
    "RestartPolicy",
    "SupervisedProcess",
    "end_leftovers",
    "last_line",
    "log_tail",
]

BACKOFF_SECONDS_MIN = 0.5
BACKOFF_SECONDS_MAX = 30.0
# A process that ran this long was healthy: its next restart gets the shortest delay.
HEALTHY_AFTER_SECONDS = 60.0
KILLED_TIMEOUT_SECONDS = 2.0
LOG_TAIL_LINES = 4
LOG_LINE_SHOWN = 400


class RestartPolicy(Enum):
    """When an exited process is restarted; the names are those of SparkApplication."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


class ProcessEventKind(Enum):
    """What happened to a child."""

    STARTED = "started"
    ENDED = "ended"
    RESTARTING = "restarting"


@dataclass(frozen=True, kw_only=True)
class ProcessEvent:
    """What happened to a child, for the screen and the log."""

    kind: ProcessEventKind
    name: str
    pid: int
    exit_status: int | None = None
    delay_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """How to run a child."""

    name: str
    command: Sequence[str]
    log_path: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    restart: RestartPolicy = RestartPolicy.ALWAYS
    #: Exit statuses after which a restart would fail the same way (wrong settings).
    final_statuses: frozenset[int] = frozenset()
    stop_grace_seconds: float = 10.0


class SupervisedProcess:
    """A child that is kept running until it is stopped."""

    def __init__(self, spec: ProcessSpec, on_event: Callable[[ProcessEvent], None]) -> None:
        self.spec = spec
        self.identity: ProcessIdentity | None = None
        self.restarts = 0
        self._on_event = on_event
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def is_running(self) -> bool:
        """Whether the child runs now."""
        return self._process is not None and self._process.returncode is None

    @property
    def is_over(self) -> bool:
        """Whether it ended and will not be restarted."""
        return self._keeper is not None and self._keeper.done()

    async def start(self) -> None:
        """Start the child and keep it running. `OSError` when the command cannot be run."""
        await self._spawn()
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {self.spec.name}")

    async def stop(self) -> None:
        """Ask the child to stop, wait, then end the rest of its session."""
        self._stopping = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), self.spec.stop_grace_seconds)
        await self._end_session(process)

    def kill(self) -> None:
        """End the child's session now, without asking (the second Ctrl-C)."""
        self._stopping = True
        if self._process is not None:
            _kill_session(self._process.pid)

    async def _spawn(self) -> None:
        self.spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.spec.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.spec.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | dict(self.spec.environment),
                start_new_session=True,
            )
        with contextlib.suppress(psutil.NoSuchProcess):
            self.identity = ProcessIdentity.of(self.spec.name, self._process.pid)
        self._report(ProcessEventKind.STARTED)

    async def _keep(self) -> None:
        delay_seconds = BACKOFF_SECONDS_MIN
        while self._process is not None:
            began = time.monotonic()
            status = await self._process.wait()
            if self._stopping:
                return
            # Children of a dead child would keep its ports and its checkpoint.
            await self._end_session(self._process)
            self._report(ProcessEventKind.ENDED, exit_status=status)
            if status in self.spec.final_statuses or not _wants_restart(self.spec.restart, status):
                return
            if time.monotonic() - began > HEALTHY_AFTER_SECONDS:
                delay_seconds = BACKOFF_SECONDS_MIN
            self._report(ProcessEventKind.RESTARTING, delay_seconds=delay_seconds)
            await asyncio.sleep(delay_seconds)
            delay_seconds = min(delay_seconds * 2, BACKOFF_SECONDS_MAX)
            self.restarts += 1
            await self._spawn()

    async def _end_session(self, process: asyncio.subprocess.Process) -> None:
        await asyncio.to_thread(_kill_session, process.pid)
        await process.wait()

    def _report(
        self,
        kind: ProcessEventKind,
        *,
        exit_status: int | None = None,
        delay_seconds: float = 0.0,
    ) -> None:
        pid = self._process.pid if self._process is not None else 0
        self._on_event(
            ProcessEvent(
                kind=kind,
                name=self.spec.name,
                pid=pid,
                exit_status=exit_status,
                delay_seconds=delay_seconds,
            )
        )


def end_leftovers(
    processes: Sequence[ProcessIdentity], *, grace_seconds: float = 10.0
) -> list[ProcessIdentity]:
    """End processes that a killed `up` left behind; return those that were running.

    In the given order, each with its session; only processes that `up` certainly started.
    """
    ended = []
    for identity in processes:
        process = identity.find()
        if process is None:
            continue
        ended.append(identity)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(grace_seconds)
        _kill_session(identity.pid)
    return ended


def last_line(log: Path) -> str:
    """Return the last non-empty line of a log: mostly why a process ended."""
    lines = log.read_text(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "(empty)")


def log_tail(log: Path) -> str:
    """Return the last lines of a log, each once, indented."""
    lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    # The same start may have failed several times, so the same lines may be there several times.
    shown = dict.fromkeys(line[:LOG_LINE_SHOWN] for line in lines)
    return "\n".join(f"  {line}" for line in shown) or "  (empty)"


def _wants_restart(policy: RestartPolicy, exit_status: int) -> bool:
    if policy is RestartPolicy.ALWAYS:
        return True
    return policy is RestartPolicy.ON_FAILURE and exit_status != 0


def _kill_session(leader_pid: int) -> None:
    """Kill the rest of the session that this child led, and wait until it is gone.

    Sessions, not process groups: Spark's Python daemon creates its own process group.
    """
    members = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getsid(pid) == leader_pid:
                members.append(psutil.Process(pid))
                os.kill(pid, signal.SIGKILL)
    # The process that started the child reaps it.
    others = [member for member in members if member.pid != leader_pid]
    psutil.wait_procs(others, timeout=KILLED_TIMEOUT_SECONDS)
