"""The job's own Prometheus endpoint.

Spark's PrometheusServlet puts the query's name into the metric's name and has no lag, so no
dashboard or alert could be written once for all jobs. Here every series is `headrace_job_*` with
the labels `job` and `query`; lag also has `topic`, and a source's watermark its partition.
"""

from __future__ import annotations

import os
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)

from headrace_jobs.progress.watermarks import SourceWatermarks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["BatchFacts", "JobMetrics", "MetricsServer"]

_LABELS = ("job", "query")
_BATCH_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

# Progress reports that may be behind the batch in work. A query keeps as many by default.
_REPORTS_MAX = 100


class BatchFacts(NamedTuple):
    """The values of a query's progress report; None if it has none."""

    batch_id: int
    input_rows: int = 0
    output_rows: int = 0
    counted_records: int = 0
    malformed_records: int = 0
    late_records: int = 0
    partly_late_records: int = 0
    duplicate_records: int = 0
    #: By Spark's own watermark, which counts after partial aggregation: not rows, and no late ones.
    dropped_groups: int = 0
    duration_seconds: float = 0.0
    #: By Spark's names: `latestOffset`, `queryPlanning`, `addBatch`, `walCommit`, `commitOffsets`…
    phase_seconds: Mapping[str, float] = MappingProxyType({})
    watermark_seconds: float | None = None
    state_rows: int = 0
    state_bytes: int = 0


class JobMetrics:
    """All series of one query."""

    def __init__(self, job: str, query: str, *, trigger_interval_seconds: float) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # a second series for each counter
        self.registry = CollectorRegistry()
        self._names = {"job": job, "query": query}
        self._trigger_interval_seconds = trigger_interval_seconds
        self._in_work: dict[int, Mapping[str, int]] = {}
        ProcessCollector(registry=self.registry)
        self._batches = self._counter("batches", "Batches that were committed.")
        self._input = self._counter("input_rows", "Rows read from the sources.")
        self._output = self._counter("output_rows", "Rows written to the sinks.")
        self._counted = self._counter("counted_records", "Records that are in a window.")
        self._malformed = self._counter("malformed_records", "Records set aside as malformed.")
        self._add_late()
        self._duplicates = self._counter(
            "duplicate_records", "Records left out because their event had come before."
        )
        self._dropped = self._counter("dropped_groups", "What Spark's own watermark dropped.")
        self._dead_letters = self._counter(
            "dead_letters", "Late and malformed records written to the dead-letter topic."
        )
        self._dead_letter_failures = self._counter(
            "dead_letter_failures", "Batches whose records the dead-letter topic did not take."
        )
        self._commits = self._counter("offset_commits", "Commits of offsets to the group.")
        self._commit_failures = self._counter(
            "offset_commit_failures", "Commits of offsets to the group that were given up."
        )
        self._duration = Histogram(
            "headrace_job_batch_duration_seconds",
            "How long batches took, from trigger to commit.",
            _LABELS,
            buckets=_BATCH_BUCKETS,
            registry=self.registry,
        ).labels(**self._names)
        self._trigger_interval = self._gauge("trigger_interval_seconds", "The trigger's interval.")
        self._trigger_interval.set(trigger_interval_seconds)
        self._trigger_delay = self._gauge(
            "trigger_delay_seconds", "By how much the last batch overran its trigger's interval."
        )
        self._watermark = self._gauge(
            "watermark_timestamp_seconds", "The event-time watermark; 0 before the first."
        )
        self._watermark_delay = self._gauge(
            "watermark_delay_seconds", "Age of the watermark now; 0 before the first."
        )
        self._state_rows = self._gauge("state_rows", "Rows in the state stores.")
        self._state_bytes = self._gauge("state_bytes", "Memory that the state stores use.")
        self._last_progress = self._gauge(
            "last_progress_timestamp_seconds", "When the query last reported progress."
        )
        self._running = self._gauge("running", "1 while the query runs.")
        self._generation = self._gauge(
            "checkpoint_generation", "The generation of the checkpoint; a reset begins another."
        )
        self._add_labelled()
        self._sources = SourceWatermarks()
        self._watermark_seconds = 0.0
        self._watermark_delay.set_function(self._watermark_age_seconds)

    def _add_late(self) -> None:
        self._late = self._counter(
            "late_records", "Records set aside because the watermark had passed their windows."
        )
        self._partly_late = self._counter(
            "partly_late_records", "Records that came too late for some of their windows."
        )

    def _add_labelled(self) -> None:
        self._lag_records = self._labelled_gauge(
            "lag_records", "Records not processed yet.", "topic"
        )
        self._lag_seconds = self._labelled_gauge(
            "lag_seconds", "Age of the oldest of them.", "topic"
        )
        self._source_watermark = self._labelled_gauge(
            "source_watermark_timestamp_seconds",
            "Its keys' lowest watermark.",
            "topic",
            "partition",
        )
        self._phases = self._labelled_gauge(
            "batch_phase_seconds", "How long the last batch's phases took.", "phase"
        )

    def batch_counted(self, batch_id: int, counts: Mapping[str, int]) -> None:
        """Keep what a batch in work came to (`tagged.counts`) until it is committed."""
        self._in_work[batch_id] = counts
        self._in_work.pop(batch_id - _REPORTS_MAX, None)

    def batch_finished(self, facts: BatchFacts) -> None:
        """Count one committed batch; `batch_counted`, where it was called, knows better."""
        counts = self._in_work.pop(facts.batch_id, None)
        if counts is not None:
            facts = facts._replace(
                output_rows=counts["rows"],
                counted_records=counts["counted"],
                late_records=counts["late"],
                partly_late_records=counts["partly_late"],
                malformed_records=counts["malformed"],
                duplicate_records=counts["duplicate"],
            )
        self._batches.inc()
        self._input.inc(facts.input_rows)
        self._output.inc(facts.output_rows)
        self._malformed.inc(facts.malformed_records)
        self._counted.inc(facts.counted_records)
        self._late.inc(facts.late_records)
        self._partly_late.inc(facts.partly_late_records)
        self._duplicates.inc(facts.duplicate_records)
        self._dropped.inc(facts.dropped_groups)
        self._duration.observe(facts.duration_seconds)
        for phase, seconds in facts.phase_seconds.items():
            self._phases.labels(**self._names, phase=phase).set(seconds)
        overrun_seconds = facts.duration_seconds - self._trigger_interval_seconds
        self._trigger_delay.set(
            max(0.0, overrun_seconds) if self._trigger_interval_seconds > 0 else 0.0
        )
        if facts.watermark_seconds is not None:
            self._set_watermark(facts.watermark_seconds)
        open_windows = self._sources.open_windows
        self._state_rows.set(facts.state_rows if open_windows is None else open_windows)
        self._state_bytes.set(facts.state_bytes)
        self.alive()

    def partitions_progressed(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Record the progress of a batch's groups and partitions (`tagged.progress`)."""
        self._sources.report(rows, now_seconds=time.monotonic())
        lowest = self._sources.by_partition()
        for (topic, partition), seconds in lowest.items():
            labels = {**self._names, "topic": topic, "partition": str(partition)}
            self._source_watermark.labels(**labels).set(seconds)
        if lowest:
            self._set_watermark(min(lowest.values()))

    def alive(self) -> None:
        """Note that the query reported, with or without a batch."""
        self._running.set(1)
        self._last_progress.set(time.time())

    def stopped(self) -> None:
        """Note that the query ended."""
        self._running.set(0)

    def dead_letters_written(self, count: int) -> None:
        """Count malformed records that were written to the dead-letter topic."""
        self._dead_letters.inc(count)

    def dead_letters_failed(self) -> None:
        """Count a batch whose malformed records were not written."""
        self._dead_letter_failures.inc()

    def declared(self, *, delivery: str, generation: int, is_shadow: bool = False) -> None:
        """Set the job's declared properties, as labels of a series that is always 1."""
        labels = {
            "delivery": delivery,
            "generation": str(generation),
            "shadow": str(is_shadow).lower(),
        }
        Gauge(
            "headrace_job_info",
            "What the job promises, and which generation of it this is.",
            (*_LABELS, *labels),
            registry=self.registry,
        ).labels(**self._names, **labels).set(1)

    def checkpoint_generation(self, number: int) -> None:
        """Set the checkpoint generation that the query uses."""
        self._generation.set(number)

    def offsets_committed(self) -> None:
        """Count a commit to the group."""
        self._commits.inc()

    def offset_commit_failed(self) -> None:
        """Count an abandoned commit."""
        self._commit_failures.inc()

    def lag(self, records: Mapping[str, int], seconds: Mapping[str, float]) -> None:
        """Set the lag of each topic."""
        for topic, count in records.items():
            self._lag_records.labels(**self._names, topic=topic).set(count)
        for topic, age in seconds.items():
            self._lag_seconds.labels(**self._names, topic=topic).set(age)

    def _set_watermark(self, seconds: float) -> None:
        self._watermark_seconds = seconds
        self._watermark.set(seconds)

    def _watermark_age_seconds(self) -> float:
        return max(0.0, time.time() - self._watermark_seconds) if self._watermark_seconds else 0.0

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"headrace_job_{name}", text, _LABELS, registry=self.registry)
        return counter.labels(**self._names)

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(f"headrace_job_{name}", text, _LABELS, registry=self.registry)
        return gauge.labels(**self._names)

    def _labelled_gauge(self, name: str, text: str, *more: str) -> Gauge:
        labels = (*_LABELS, *more)
        return Gauge(f"headrace_job_{name}", text, labels, registry=self.registry)


class MetricsServer:
    """Serves a registry over HTTP. `OSError` if the port is taken."""

    def __init__(self, registry: CollectorRegistry, *, address: str, port: int) -> None:
        self._server, self._thread = start_http_server(port, addr=address, registry=registry)
        host = "127.0.0.1" if address in ("", "0.0.0.0") else address  # noqa: S104 - compared only
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def write_address(self, path: Path) -> None:
        """Write the URL into a file, by rename: a reader sees all of it or no file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(f"{self.url}\n")
        partial.replace(path)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
