"""The current state of a session as lines: brokers, topics, jobs, lag, addresses.

Each change of a job's state is also shown once as an event, so that a plain log has it too.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace_cli.up.monitor import read_job_metrics
from headrace_cli.up.views import describe_age, format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_cli.up.display import Display
    from headrace_cli.up.monitor import Sample
    from headrace_cli.up.views import JobView
    from headrace_operator.local.backend import LocalBackend
    from headrace_operator.plan import ObservedGroup

__all__ = ["Board"]


@dataclass(frozen=True, kw_only=True)
class _JobState:
    """A job's state, and details that change all the time."""

    name: str
    details: str = ""


class Board:
    """Shows the state of one backend on one display."""

    def __init__(self, backend: LocalBackend, display: Display) -> None:
        self._backend = backend
        self._display = display
        self._states: dict[str, str] = {}
        self._pages: dict[str, str | None] = {}
        self._trouble = ""

    async def show(self, jobs: Sequence[JobView], sample: Sample | None) -> None:
        """Refresh every line."""
        self._show_brokers(sample)
        if sample is not None:
            self._show_topics(sample)
        self._show_producers({job.name for job in jobs})
        for job in jobs:
            group = sample.groups.get(job.group or "") if sample else None
            await self._show_job(job, group)
        self._show_addresses(jobs)

    def _show_brokers(self, sample: Sample | None) -> None:
        nodes = self._backend.nodes
        running = [node for node in nodes if self._backend.is_broker_running(node.node_id)]
        state = f"{len(running)} of {len(nodes)} running"
        self._display.status("brokers", f"{state} · {self._backend.bootstrap_servers}")
        if sample is None:
            self._display.status("replicas", "the brokers do not answer now")
            return
        text = describe_replicas([node.node_id for node in nodes if node.is_broker], sample)
        self._display.status("replicas", text)
        problem = describe_trouble(sample)
        if problem != self._trouble:
            self._trouble = problem
            self._display.event(problem or "all partitions are in sync", is_problem=bool(problem))

    def _show_topics(self, sample: Sample) -> None:
        parts = [
            f"{topic}: {written:,} records in {sample.partitions[topic]} partitions"
            for topic, written in sample.written.items()
        ]
        self._display.status("topics", "\n".join(parts))

    def _show_producers(self, job_names: set[str]) -> None:
        parts = [
            f"{key[2]}: {'running' if process.is_running else 'restarting'}"
            for key, process in self._backend.applications.items()
            if key[2] not in job_names
        ]
        self._display.status("producer", "\n".join(parts) or None)

    async def _show_job(self, job: JobView, group: ObservedGroup | None) -> None:
        url = self._backend.metrics_of(job.key)
        values = await asyncio.to_thread(read_job_metrics, url) if url else {}
        state = _state_of(values, is_running=self._backend.applications[job.key].is_running)
        if self._states.get(job.name) != state.name:
            self._states[job.name] = state.name
            self._display.event(f"job {job.name}: {state.name}")
        pages = self._backend.spark_pages_of(job.key)
        if pages != self._pages.get(job.name):
            self._pages[job.name] = pages
            if pages is not None:
                self._display.event(f"job {job.name}: Spark's pages at {pages}")
        parts = [part for part in (state.name, state.details) if part]
        if group is not None and group.offsets:
            age = describe_age(group.lag_seconds)
            parts.append(f"lag of {job.group}: {group.lag_records:,} records, {age}")
        self._display.status(f"job {job.name}", " · ".join(parts))

    def _show_addresses(self, jobs: Sequence[JobView]) -> None:
        lines = [
            f"broker {node.node_id}: {node.http_url}/metrics  {node.http_url}/healthz"
            for node in self._backend.nodes
        ]
        lines += [
            f"job {job.name}: {url}"
            for job in jobs
            if (url := self._backend.metrics_of(job.key)) is not None
        ]
        self._display.status("metrics", "\n".join(lines))
        pages = [f"job {name}: {url}" for name, url in self._pages.items() if url is not None]
        self._display.status("Spark's pages", "\n".join(pages) or None)


def describe_replicas(node_ids: Sequence[int], sample: Sample) -> str:
    """Return how many partitions each broker leads, and whether all replicas are in sync."""
    counts = sample.replicas
    leaders = ", ".join(f"{counts.leaders[node_id]} on broker {node_id}" for node_id in node_ids)
    return f"leaders: {leaders} · {describe_trouble(sample) or 'all in sync'}"


def describe_trouble(sample: Sample) -> str:
    """Return how many partitions are leaderless, or not fully in sync; empty if none are."""
    counts = sample.replicas
    parts = []
    if counts.offline:
        parts.append(f"{counts.offline} partitions without a leader")
    if counts.under_replicated:
        parts.append(f"{counts.under_replicated} partitions under-replicated")
    return ", ".join(parts)


def _state_of(values: Mapping[str, float], *, is_running: bool) -> _JobState:
    if not is_running:
        return _JobState(name="not running")
    batches = values.get("headrace_job_batches_total", 0.0)
    if not batches:
        return _JobState(name="Spark is starting (some 10 to 20 s)")
    details = f"{batches:.0f} batches"
    behind = values.get("headrace_job_watermark_delay_seconds", 0.0)
    if behind:
        details += f" · watermark {format_seconds(behind)} behind"
    return _JobState(name="reading", details=details)
