"""A deterministic event loop in virtual time, shared by all simulated processes.

Owns the order of everything: which process runs next, when a timer or a simulated thread is due.
All of it comes from one seeded `random.Random`; within one process callbacks keep asyncio's order
(first in, first out), because code may rely on it. A process is what dies, stops and goes on
together: every callback carries its process in a context variable, so that a kill can drop exactly
that process's callbacks and tasks, and a pause hold them back.
"""

import asyncio
import contextlib
import contextvars
import heapq
import random
import zlib
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

CURRENT: contextvars.ContextVar["Process | None"] = contextvars.ContextVar("process", default=None)

_TASKS_BEFORE_PRUNING = 256
_TURNS_PER_INSTANT_MAX = 100_000
_NEVER = float("inf")
STEPS_BETWEEN_CHECKS = 25


class ProcessEnded(BaseException):
    """Raised inside a simulated process that died in the middle of a disk operation."""


class Stalled(Exception):  # noqa: N818 - what happened
    """Nothing can happen any more, or time stands still."""


class Process:
    """Everything that lives and dies together."""

    def __init__(self, name: str, host: str, number: int) -> None:
        self.name = name
        self.host = host
        self.number = number
        self.ready: deque[asyncio.Handle] = deque()
        self.is_dead = False
        self.is_paused = False
        self.must_end: Callable[[], None] | None = None
        """Set by a disk in whose middle of an operation the process dies; called after the step."""
        self.busy_until = 0.0
        """Blocked in a system call until then: nothing of it runs, nothing of it is sent."""
        self.tasks: list[asyncio.Task[Any]] = []
        self.on_end: list[Callable[[], None]] = []
        self.context = contextvars.copy_context()
        self.context.run(CURRENT.set, self)
        self.executors: dict[int, float] = {}

    def __repr__(self) -> str:
        return f"{self.name}.{self.number}"


class SimulatedLoop(asyncio.AbstractEventLoop):
    """`asyncio`'s loop for code that uses only the loop: no threads, no sockets, no real time."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.network: Any = None
        self.steps = 0
        self.trace = 0
        self.root = b"\0"
        """The run's own folder, whose name is another one each time."""
        self.unhandled: list[dict[str, Any]] = []
        self.check: Callable[[], None] = lambda: None
        self.is_enough: Callable[[], bool] = lambda: False
        """Asked after every check: whether the run may end here."""
        self.thread_delay: Callable[[Process], float] = lambda _process: 0.0
        """How much later than usual a thread of a process gets to its work: its disk is slow."""
        self.thread_lag: Callable[[Process], float] = lambda _process: 0.0
        """How much later than usual the process hears that a thread's work is done."""
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.Handle, Process]] = []
        self._sequence = 0
        self._processes: list[Process] = []
        self._started = 0
        self._turns_at_instant = 0
        self._checked_at = 0
        self.kernel = self.process("kernel", "")

    # ---- processes

    def process(self, name: str, host: str) -> Process:
        """Make a process; it runs what `spawn` gives it."""
        self._started += 1
        process = Process(name, host, self._started)
        self._processes.append(process)
        return process

    def spawn(self, process: Process, callback: Callable[..., object], *args: Any) -> None:
        """Have `process` call something, as its own next callback."""
        if not process.is_dead:
            process.ready.append(asyncio.Handle(callback, args, self, process.context))

    def start_task(
        self, process: Process, coroutine: Coroutine[Any, Any, Any]
    ) -> "asyncio.Task[Any]":
        """Start a task that belongs to `process`."""
        return self.create_task(coroutine, context=process.context.copy())

    def end(self, process: Process) -> None:
        """Kill: no callback, no task of it ever runs again; its finalisers see a dead process."""
        if process.is_dead:
            return
        process.is_dead = True
        process.ready.clear()
        self._processes.remove(process)
        self.note(f"end {process.name}")
        for end in process.on_end:
            end()
        for task in process.tasks:
            if task.done():
                task._log_traceback = False  # type: ignore[attr-defined]  # nobody is left to ask it
            else:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task)
        process.tasks.clear()

    def unfinished(self) -> list[str]:
        """Name the clients that have not come to their end."""
        return [
            f"{process.name} {task.get_coro().__qualname__}"  # type: ignore[union-attr]  # ours
            for process in self._processes
            for task in process.tasks
            if not task.done() and process.host.startswith("host-")
        ]

    def note(self, fact: str, data: bytes = b"") -> None:
        """Mix facts into the trace's hash; equal seeds must give equal traces."""
        if self.root in data:
            data = data.replace(self.root, b"")
        self.trace = zlib.crc32(data, zlib.crc32(f"{self._now:.9f} {fact}".encode(), self.trace))

    # ---- running

    def run(self, main: Coroutine[Any, Any, Any], *, limit_seconds: float) -> Any:
        """Run `main` as a process of its own until it returns; raise Stalled where it cannot.

        Where what was found so far is enough, it ends there.
        """
        process = self.process("main", "")
        asyncio._set_running_loop(self)
        try:
            task = self.start_task(process, main)
            while not task.done():
                if self._checked_at != (checked := self.steps // STEPS_BETWEEN_CHECKS):
                    self._checked_at = checked
                    if self.is_enough():
                        return None
                if self._now > limit_seconds:
                    raise Stalled(f"not done after {limit_seconds} simulated seconds")
                self._step()
            return task.result()
        finally:
            for left in list(self._processes):
                self.end(left)
            asyncio._set_running_loop(None)

    def _step(self) -> None:
        """Let one process run what is ready, as an event loop of its own would in one turn."""
        now = self._now
        runnable = [
            process
            for process in self._processes
            if process.ready and not process.is_paused and process.busy_until <= now
        ]
        if not runnable:
            self._advance()
            return
        process = runnable[0] if len(runnable) == 1 else self.rng.choice(runnable)
        ready = process.ready
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            self.steps += 1
            handle._run()
            if process.must_end is not None:
                process.must_end()
            if not self.steps % STEPS_BETWEEN_CHECKS:
                self.check()
            # A callback may end, stop or hold up its own process.
            if not ready or process.is_paused or process.busy_until > now:
                break
        self._turns_at_instant += 1
        if self._turns_at_instant > _TURNS_PER_INSTANT_MAX:
            raise Stalled(f"{process} never waits: {handle!r}")

    def _advance(self) -> None:
        """Move time to the next timer, or to the end of somebody's system call."""
        now = self._now
        due = _NEVER
        for process in self._processes:
            if process.ready and now < process.busy_until < due:
                due = process.busy_until
        timers = self._timers
        while timers and (timers[0][2]._cancelled or timers[0][3].is_dead):
            heapq.heappop(timers)
        if timers and timers[0][0] < due:
            due = timers[0][0]
        if due == _NEVER:
            raise Stalled("no timer is left")
        self._now = now = max(now, due)
        self._turns_at_instant = 0
        while timers and timers[0][0] <= now:
            _, _, handle, process = heapq.heappop(timers)
            if not handle._cancelled and not process.is_dead:
                process.ready.append(handle)

    # ---- asyncio's interface

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback, *args, context=None):
        if context is None:
            context = contextvars.copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        process = context.get(CURRENT) or self.kernel
        if not process.is_dead:
            process.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay, callback, *args, context=None):
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when, callback, *args, context=None):
        if context is None:
            context = contextvars.copy_context()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        process = context.get(CURRENT) or self.kernel
        if not process.is_dead:
            self._sequence += 1
            heapq.heappush(self._timers, (when, self._sequence, timer, process))
        return timer

    def _timer_handle_cancelled(self, handle) -> None:
        """Cancelled timers are dropped when they are due."""

    def call_in(self, process: Process, delay: float, callback, *args) -> asyncio.TimerHandle:
        """`call_later` on behalf of a process (or of the kernel)."""
        return self.call_at(self._now + delay, callback, *args, context=process.context)

    def create_future(self):
        return asyncio.Future(loop=self)

    def create_task(self, coro, *, name=None, context=None):
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        process = (context.get(CURRENT) if context else CURRENT.get()) or self.kernel
        if process.is_dead:
            task._log_destroy_pending = False
            _close(task)
            return task
        process.tasks.append(task)
        if len(process.tasks) > _TASKS_BEFORE_PRUNING:
            process.tasks = [item for item in process.tasks if _may_report(item)]
        return task

    def get_task_factory(self):
        return None

    def call_exception_handler(self, context) -> None:
        process = CURRENT.get()
        is_dying = process is not None and (process.is_dead or process.must_end is not None)
        if not is_dying and not isinstance(context.get("exception"), ProcessEnded):
            self.unhandled.append(context)

    def default_exception_handler(self, context) -> None:
        self.call_exception_handler(context)

    def run_in_executor(self, executor, func, *args):
        """Run `func` at one later moment, and tell its result at another; one at a time each."""
        process = CURRENT.get() or self.kernel
        future = self.create_future()
        key = id(executor)
        begin = max(self._now, process.executors.get(key, 0.0)) + self.rng.expovariate(5000)
        begin += self.thread_delay(process)
        end = begin + self.rng.expovariate(2000) + self.thread_lag(process)
        process.executors[key] = end
        self.call_in(process, begin - self._now, self._run_in_thread, future, func, args, end)
        return future

    def _run_in_thread(self, future, func, args, end: float) -> None:
        if future.cancelled():
            return
        process = CURRENT.get() or self.kernel
        busy = process.busy_until
        try:
            result, error = func(*args), None
        except ProcessEnded:
            raise
        except BaseException as caught:  # noqa: BLE001 - a thread gives its error to who waits
            result, error = None, caught
        # A system call that took long held up this thread, and not the event loop.
        end += max(0.0, process.busy_until - self._now)
        process.busy_until = busy
        self.call_in(process, end - self._now, _settle, future, result, error)

    async def create_server(self, protocol_factory, host=None, port=None, **options):
        return self.network.listen(protocol_factory, host, port, **options)

    async def create_connection(self, protocol_factory, host=None, port=None, **_options):
        return await self.network.connect(protocol_factory, host, port)


def _settle(future, result, error) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _may_report(task: "asyncio.Task[Any]") -> bool:
    """Whether it runs, or has failed and nobody has asked it yet: a kill must silence it."""
    return not task.done() or bool(task._log_traceback)  # type: ignore[attr-defined]  # asyncio's


def _close(task: "asyncio.Task[Any]") -> None:
    """Unwind a coroutine that will never run again, as far as it lets itself be unwound."""
    # Whatever a dead process's finalisers raise, nobody hears it.
    with contextlib.suppress(ProcessEnded, Exception):
        task.get_coro().close()
