"""Turns Spark's progress reports into commits to the group and metrics.

Spark reports a batch after it has written the batch into the checkpoint's commit log
(`MicroBatchExecution`: `markMicroBatchEnd`, then `finishTrigger`), so offsets committed from here
never run ahead of the checkpoint. A listener must neither throw nor wait: it would block all
listeners of the session.
"""

from __future__ import annotations

import threading
from datetime import datetime
from typing import TYPE_CHECKING, Any

import structlog
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use
from pyspark.sql.streaming.listener import StreamingQueryListener

from headrace_jobs.progress.metrics import BatchFacts
from headrace_jobs.progress.offsets import end_offsets, is_tick, span
from headrace_jobs.transforms import tagged

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

    from headrace_jobs.progress.group import GroupProgress
    from headrace_jobs.progress.metrics import JobMetrics
    from headrace_jobs.progress.offsets import TopicPartition
    from headrace_jobs.sources.clock import Silence

__all__ = ["OBSERVED_OUTPUT", "ProgressListener", "batch_facts", "observations"]

# The name of the observation (`DataFrame.observe`) of a query's output.
OBSERVED_OUTPUT = "headrace_output"

_log = structlog.get_logger(__name__)


class ProgressListener(StreamingQueryListener):
    """Follows the queries of one session; Headrace runs one query in a session."""

    def __init__(
        self, metrics: JobMetrics, group: GroupProgress | None, silence: Silence | None = None
    ) -> None:
        self._metrics = metrics
        self._group = group
        self._silence = silence
        self._lock = threading.Lock()
        self._run = ""
        self._last_batch = -1

    def onQueryStarted(self, event: Any) -> None:  # noqa: ARG002, N802 - Spark's interface
        """Note that the query is alive."""
        self._metrics.alive()

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's interface
        """Process one batch's report."""
        self.take(event.progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: ARG002, N802 - Spark's interface
        """Note that the query is alive, and that its last trigger found nothing."""
        self._metrics.alive()
        if self._silence is not None:
            self._silence.idle()

    def onQueryTerminated(self, event: Any) -> None:  # noqa: ARG002, N802 - Spark's interface
        """Note that the query ended."""
        self._metrics.stopped()

    def take(self, progress: Any) -> None:
        """Process a progress report once, whether it came as an event or from the query at its end.

        Events are delivered asynchronously, so the last ones may be missing when a query has ended;
        the code that ends the query passes its recent reports here.
        """
        try:
            run, batch_id = str(progress.runId), int(progress.batchId)
            with self._lock:
                if run == self._run and batch_id <= self._last_batch:
                    self._metrics.alive()
                    return
                self._run, self._last_batch = run, batch_id
            # Whatever becomes of the metrics.
            if self._group is not None:
                self._group.processed(_kafka_end_offsets(progress.sources))
            facts = batch_facts(progress)
            self._metrics.batch_finished(facts)
            if facts.dropped_groups:
                _log.warning(
                    "Spark's own watermark dropped rows",
                    batch=facts.batch_id,
                    groups=facts.dropped_groups,
                )
            if self._silence is not None and facts.input_rows:
                self._silence.heard()
        except Exception:  # noqa: BLE001 - Spark would log a Java stack and go on
            _log.exception("a progress report was not understood")


def observations(out: DataFrame) -> list[Column]:
    """Return the observations, named `OBSERVED_OUTPUT`, of the rows that leave a query."""
    return tagged.counts() if tagged.is_tagged(out) else [F.count(F.lit(1)).alias("rows")]


def batch_facts(progress: Any) -> BatchFacts:
    """Extract the metrics from a `StreamingQueryProgress`."""
    observed = progress.observedMetrics or {}
    out = observed.get(OBSERVED_OUTPUT)
    operators = progress.stateOperators
    return BatchFacts(
        batch_id=int(progress.batchId),
        input_rows=sum(_input_rows(source) for source in progress.sources),
        output_rows=_observation(out, "rows"),
        counted_records=_observation(out, "counted"),
        malformed_records=_observation(out, "malformed"),
        late_records=_observation(out, "late"),
        partly_late_records=_observation(out, "partly_late"),
        duplicate_records=_observation(out, "duplicate"),
        dropped_groups=sum(int(operator.numRowsDroppedByWatermark) for operator in operators),
        duration_seconds=float(progress.batchDuration) / 1000,
        phase_seconds={
            name: int(milliseconds) / 1000 for name, milliseconds in progress.durationMs.items()
        },
        watermark_seconds=_epoch_seconds((progress.eventTime or {}).get("watermark")),
        state_rows=sum(int(operator.numRowsTotal) for operator in operators),
        state_bytes=sum(int(operator.memoryUsedBytes) for operator in operators),
    )


def _input_rows(source: Any) -> int:
    """Return how many rows a batch has of a source; what the clock gave is none.

    Spark counts rows that it reads again, for executors that were lost, again.
    """
    rows = int(source.numInputRows)
    if _is_kafka(source):
        return min(rows, span(source.startOffset, source.endOffset))
    return 0 if is_tick(source.endOffset or "") else rows


def _is_kafka(source: Any) -> bool:
    return str(source.description).startswith("Kafka")


def _kafka_end_offsets(sources: Iterable[Any]) -> dict[TopicPartition, int]:
    """Merge the end offsets of the Kafka sources; other sources have no group."""
    return end_offsets(source.endOffset for source in sources if _is_kafka(source))


def _observation(row: Any, name: str) -> int:
    """Read a sum; over no rows it is null."""
    return int(row[name] or 0) if row is not None and name in row else 0


def _epoch_seconds(text: str | None) -> float | None:
    """Spark's watermark as Unix time; its initial value, 1970, is no watermark."""
    if not text:
        return None
    seconds = datetime.fromisoformat(text).timestamp()
    return seconds if seconds > 0 else None
