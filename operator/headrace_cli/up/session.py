"""One run of a cluster on this machine: start in order, keep reconciling, stop in order.

Start order: brokers, topics and groups, producers and jobs, as in the plan. Stop order: jobs,
producers, brokers. A session owns its children; nothing it started outlives it unless it is killed
with SIGKILL, and then the next `up` or `down` ends the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace_cli.up.board import Board
from headrace_cli.up.monitor import Monitor, ResultWatcher
from headrace_cli.up.views import JobView, format_seconds, job_view
from headrace_operator.local.backend import BrokerNotReadyError, LocalBackend
from headrace_operator.local.desired import DesiredStore, desired_of
from headrace_operator.local.processes import ProcessEventKind, end_leftovers, last_line
from headrace_operator.local.reconcile import Reconciler, reconcile_lock
from headrace_operator.local.state import load_state
from headrace_operator.resources import Reason, SparkApplication

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from headrace_cli.up.display import Display
    from headrace_cli.up.monitor import Sample
    from headrace_cli.up.views import ResultRow
    from headrace_operator.local.layout import ClusterLayout
    from headrace_operator.local.processes import ProcessEvent
    from headrace_operator.plan import Action, Desired

__all__ = ["Session", "SessionOptions", "Summary"]

TICK_SECONDS = 1.0
# Manifests are read every tick; changes by other clients on the brokers, this often.
RESYNC_SECONDS = 15.0
FORCED_EXIT_STATUS = 130
LOG_LINE_SHOWN = 300
# While replicas move off a leaving broker, every tick checks whether they are gone; and the voters
# change one at a time.
DRAINING_REASONS = frozenset({Reason.WAITING_FOR_DRAIN, Reason.WAITING_FOR_VOTERS})


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """The options of one run."""

    cluster: str
    layout: ClusterLayout
    duration_seconds: float | None = None
    rate: float | None = None
    has_jobs: bool = True


@dataclass(kw_only=True)
class Summary:
    """The results of a run."""

    duration_seconds: float = 0.0
    brokers_ready_seconds: float | None = None
    first_result_seconds: float | None = None
    #: Records written in this run, by topic.
    written: dict[str, int] = field(default_factory=dict)
    #: Results that the jobs' output topics received in this run, by topic.
    results: dict[str, int] = field(default_factory=dict)
    #: By group; None: it never committed.
    lags: dict[str, int | None] = field(default_factory=dict)
    restarts: int = 0

    @property
    def has_results(self) -> bool:
        """Whether every job wrote something in this run; true if there is no job."""
        return all(self.results.values())


class Session:
    """Runs until the duration is over, a signal comes, or the start fails."""

    def __init__(self, options: SessionOptions, display: Display) -> None:
        self.summary = Summary()
        self._options = options
        self._display = display
        self._began = time.monotonic()
        self._stop = asyncio.Event()
        self._store = DesiredStore(options.layout)
        rate = ("--rate", str(options.rate)) if options.rate is not None else ()
        self._backend = LocalBackend(
            cluster=options.cluster,
            layout=options.layout,
            on_event=self._on_process,
            extra_arguments={"produce-cpu-load": rate},
        )
        self._reconciler = Reconciler(self._backend, self._store, on_action=self._on_action)
        self._board = Board(self._backend, display)
        self._watchers: dict[str, ResultWatcher] = {}
        self._monitor: Monitor | None = None
        self._written_before: dict[str, int] = {}
        self._is_stopping = False
        self._is_draining = False
        self._told: set[str] = set()

    async def run(self) -> None:
        """Run the whole session. Raises what prevented its start, after cleaning up."""
        self._install_signals()
        self._end_leftovers()
        try:
            if await self._unless_stopped(self._start):
                await self._watch()
        finally:
            await self._shut_down()

    def _install_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, signal.Signals(number))

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            self._backend.kill()
            self._display.event("forced: children were killed, not stopped", is_problem=True)
            self._display.close()
            os._exit(FORCED_EXIT_STATUS)
        self._display.event(f"{number.name}: stopping (again to force)")
        self._stop.set()

    def _end_leftovers(self) -> None:
        state = load_state(self._options.layout.state_file)
        for identity in end_leftovers(state.processes) if state else ():
            self._display.event(f"ended {identity.name} (pid {identity.pid}), left by a killed run")

    def _desired(self) -> Desired:
        desired = desired_of(self._store.load(), self._options.cluster)
        if self._options.has_jobs:
            return desired
        kept = tuple(
            each for each in desired.applications if not isinstance(each, SparkApplication)
        )
        return replace(desired, applications=kept)

    def _jobs(self) -> list[JobView]:
        return [
            job_view(application)
            for application in self._desired().applications
            if isinstance(application, SparkApplication)
            and application.key in self._backend.applications
        ]

    async def _start(self) -> None:
        desired = self._desired()
        self._display.event(
            f"cluster {self._options.cluster}: starting brokers; "
            f"data and logs in {self._options.layout.root}"
        )
        await self._reconciler.start_brokers(desired)
        self.summary.brokers_ready_seconds = time.monotonic() - self._began
        for node in self._backend.nodes:
            self._display.event(
                f"broker {node.node_id} ready in {self.summary.brokers_ready_seconds:.1f} s: "
                f"{node.address}, health and metrics at {node.http_url}"
            )
        self._monitor = Monitor(self._backend.bootstrap_servers)
        observed = await self._reconciler.observe(desired)
        wanted = [name for topic in desired.topics if (name := topic.topic_name) in observed.topics]
        before = await asyncio.to_thread(self._monitor.sample, wanted, {})
        self._written_before = dict(before.written) if before else {}
        await self._reconcile()

    async def _unless_stopped(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Do work, but only until a signal; return whether it was finished."""
        task = asyncio.ensure_future(work())
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return False
        task.result()
        return True

    async def _watch(self) -> None:
        revision, reconciled_at = self._store.revision(), time.monotonic()
        while not self._stop.is_set() and not self._is_over():
            if (
                self._store.revision() != revision
                or self._is_draining
                or time.monotonic() - reconciled_at > RESYNC_SECONDS
            ):
                revision, reconciled_at = self._store.revision(), time.monotonic()
                await self._unless_stopped(self._reconcile_or_tell)
            jobs = self._jobs()
            await self._board.show(jobs, await self._sample(jobs))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), TICK_SECONDS)

    def _is_over(self) -> bool:
        limit = self._options.duration_seconds
        return limit is not None and time.monotonic() - self._began >= limit

    async def _reconcile_or_tell(self) -> None:
        try:
            await self._reconcile()
        except BrokerNotReadyError as error:
            # A setting that was applied during this run: it can be corrected and applied again.
            self._display.event(str(error), is_problem=True)

    async def _reconcile(self) -> None:
        async with reconcile_lock(self._options.layout):
            outcome = await self._reconciler.reconcile(self._desired)
        waiting = [wait for wait in outcome.rest.waiting if wait.reason in DRAINING_REASONS]
        self._is_draining = bool(waiting)
        for wait in waiting:
            self._display.status("draining", wait.message)
        if not waiting:
            self._display.status("draining", None)
        for failure in outcome.failures:
            self._tell_once(failure)
        for problem in outcome.rest.problems:
            kind, _, name = problem.resource
            self._tell_once(f"{kind} {name}: {problem.reason}: {problem.message}")
        for (kind, _, name), reason in self._backend.skipped.items():
            self._tell_once(f"{kind} {name} is not run here: {reason}")
        for job in self._jobs():
            if job.output_topic is not None and job.output_topic not in self._watchers:
                self._watchers[job.output_topic] = await asyncio.to_thread(
                    ResultWatcher,
                    self._backend.bootstrap_servers,
                    job.output_topic,
                    self._results_handler(job.output_topic),
                )

    async def _sample(self, jobs: Sequence[JobView]) -> Sample | None:
        if self._monitor is None:
            return None
        topics = [topic.topic_name for topic in self._desired().topics]
        groups = {
            job.group: [job.input_topic]
            for job in jobs
            if job.group is not None and job.input_topic is not None
        }
        sample = await asyncio.to_thread(self._monitor.sample, topics, groups)
        if sample is not None:
            self.summary.lags = {
                name: group.lag_records if group.offsets else None
                for name, group in sample.groups.items()
            }
            self.summary.written = {
                topic: count - self._written_before.get(topic, 0)
                for topic, count in sample.written.items()
            }
        return sample

    async def _shut_down(self) -> None:
        self._is_stopping = True
        self._display.status("stopping", "jobs, then producers, then brokers")
        began = time.monotonic()
        self.summary.duration_seconds = began - self._began
        jobs = self._jobs()
        stopped = await self._backend.stop_applications()
        if stopped:
            self._display.event(f"stopped {', '.join(stopped)}")
        await self._sample(jobs)
        for topic, watcher in self._watchers.items():
            await asyncio.to_thread(watcher.stop)
            self.summary.results[topic] = watcher.count
        if self._monitor is not None:
            await asyncio.to_thread(self._monitor.close)
        await self._reconciler.close()
        await self._backend.stop_brokers()
        self._display.event(f"stopped brokers; all ended in {time.monotonic() - began:.1f} s")

    def _results_handler(self, topic: str) -> Callable[[Sequence[ResultRow]], None]:
        loop = asyncio.get_running_loop()

        def handle(rows: Sequence[ResultRow]) -> None:
            loop.call_soon_threadsafe(self._on_results, topic, rows)

        return handle

    def _on_results(self, topic: str, rows: Sequence[ResultRow]) -> None:
        if self.summary.first_result_seconds is None:
            self.summary.first_result_seconds = time.monotonic() - self._began
        self._display.results(topic, rows)

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._display.event(text, is_problem=True)

    def _on_action(self, action: Action) -> None:
        self._display.event(action.describe())

    def _on_process(self, event: ProcessEvent) -> None:
        if self._is_stopping:
            return
        match event.kind:
            case ProcessEventKind.STARTED:
                self._display.event(f"started {event.name} (pid {event.pid})")
            case ProcessEventKind.ENDED:
                log = self._backend.log_of(event.name)
                self._display.event(
                    f"{event.name} (pid {event.pid}) ended with status {event.exit_status}; "
                    f"the end of {log}: {last_line(log)[:LOG_LINE_SHOWN]}",
                    is_problem=True,
                )
            case ProcessEventKind.RESTARTING:
                self.summary.restarts += 1
                self._display.event(f"restarting {event.name} in {event.delay_seconds:g} s")


def describe_summary(summary: Summary) -> list[str]:
    """Print the results of a run in a few lines."""
    ran = [f"ran {format_seconds(summary.duration_seconds)}"]
    if summary.brokers_ready_seconds is not None:
        ran.append(f"brokers ready after {summary.brokers_ready_seconds:.1f} s")
    if summary.first_result_seconds is not None:
        ran.append(f"first results after {summary.first_result_seconds:.0f} s")
    if summary.restarts:
        ran.append(f"{summary.restarts} restarts")
    lines = [", ".join(ran)]
    lines += [f"  {count:>9,} records written to {name}" for name, count in summary.written.items()]
    lines += [f"  {count:>9,} results read from {name}" for name, count in summary.results.items()]
    lines += [
        f"  {'no' if lag is None else f'{lag:,}':>9} "
        + ("commit yet by" if lag is None else "records of lag left to")
        + f" {group}"
        for group, lag in summary.lags.items()
    ]
    return lines
