"""What a query writes, in order: the job's sinks, the terminal, the dead letters.

Owns the delivery guarantee where a sink cannot give it alone: with at most once, no batch is begun
twice; and a driver that was replaced writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from headrace_jobs.delivery import Delivery
from headrace_jobs.durable import replace_file
from headrace_jobs.progress.batches import read_batch
from headrace_jobs.progress.checkpoint import CheckpointError, local_folder
from headrace_jobs.progress.drivers import DriverEpoch
from headrace_jobs.progress.owner import claim_checkpoint
from headrace_jobs.progress.resume import OpenSink
from headrace_jobs.progress.stored import NO_BATCH, Batch
from headrace_jobs.sinks.console import ConsoleSink
from headrace_jobs.sinks.protocol import ProgressWriter, Run, SinkError
from headrace_jobs.transforms import tagged

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from headrace_jobs.declaration import Job
    from headrace_jobs.jobs.arguments import JobSettings
    from headrace_jobs.progress.metrics import JobMetrics
    from headrace_jobs.sinks.dead_letters import DeadLetters
    from headrace_jobs.sinks.protocol import SinkWriter

__all__ = ["Outputs", "fitting", "open_outputs"]

_log = structlog.get_logger(__name__)

# In the checkpoint: the last batch that was begun.
_BEGUN = "begun"


@dataclass(kw_only=True)
class Outputs:
    """The open sinks of a query. Spark calls `write` with each batch."""

    writers: Sequence[SinkWriter]
    delivery: Delivery
    driver: DriverEpoch | None
    #: The query's checkpoint; set before it starts.
    checkpoint: str = ""
    dead_letters: DeadLetters | None = None
    metrics: JobMetrics | None = None
    #: A sink's exception: Spark would show its own, with the stack of the JVM.
    failure: Exception | None = field(default=None, init=False)

    def progress(self) -> dict[str, ProgressWriter]:
        """Return the sinks that keep progress, by name."""
        return {
            each.describe(): each
            for each in self.writers
            if each.keeps_progress and isinstance(each, ProgressWriter)
        }

    def stored(self) -> list[OpenSink]:
        """Return the stored progress of the sinks that keep progress."""
        return [
            OpenSink(name=name, stored=each.stored, can_rewind=each.can_rewind)
            for name, each in self.progress().items()
        ]

    def write(self, frame: DataFrame, batch_id: int) -> None:
        """Write a batch's results to every sink, then the records that are not in the results."""
        # Computed once: a second computation would touch the state store and count rows again.
        frame.persist()
        try:
            if self.driver is not None:
                self.driver.check()
            batch = self._batch(batch_id)
            is_repeated = self._is_repeated(batch_id)
            results = tagged.results(frame) if tagged.is_tagged(frame) else frame
            for writer in self.writers:
                if writer.keeps_progress or not is_repeated:
                    writer.write(fitting(writer, results), batch)
            # At most once, what a batch that was begun before left out is not written again either.
            dead_letters = None if is_repeated else self.dead_letters
            if tagged.is_tagged(frame):
                self._write_beside(frame, batch_id, dead_letters)
            self._set_aside_unfit(frame, results, batch_id, dead_letters)
        except Exception as error:
            self.failure = error
            raise
        finally:
            frame.unpersist()

    def _write_beside(
        self, frame: DataFrame, batch_id: int, dead_letters: DeadLetters | None
    ) -> None:
        """Report the batch's progress, and write its late and malformed records."""
        if self.metrics is None:
            raise AssertionError("the outputs of a query that starts have its metrics")
        came_to, counts = tagged.collect_progress(frame)
        self.metrics.batch_counted(batch_id, counts)
        self.metrics.partitions_progressed(came_to)
        rejected = tagged.rejected(frame)
        has_rejected = any(
            each["late"] + (each["partly_late"] or 0) + each["malformed"] for each in came_to
        )
        # A transform without state has no such rows: then use the batch itself.
        if not came_to:
            has_rejected = not rejected.isEmpty()
        if dead_letters is not None and has_rejected:
            dead_letters.write(rejected, batch_id, self.metrics)

    def _set_aside_unfit(
        self,
        frame: DataFrame,
        results: DataFrame,
        batch_id: int,
        dead_letters: DeadLetters | None,
    ) -> None:
        """Write the rows that a sink can never take to the dead letters."""
        for writer in self.writers:
            reason = writer.unfit(results)
            if reason is None:
                continue
            rows = tagged.unfit(frame, results.columns, reason)
            counts = rows.groupBy("reason").count().collect()
            if not counts:
                continue
            _log.warning(
                "rows that a sink can never take were left out",
                batch=batch_id,
                reasons={row["reason"]: row["count"] for row in counts},
            )
            if dead_letters is not None and self.metrics is not None:
                dead_letters.write(rows, batch_id, self.metrics)

    def _batch(self, batch_id: int) -> Batch:
        if not any(each.keeps_progress for each in self.writers):
            return Batch(batch_id=batch_id)
        return read_batch(Path(local_folder(self.checkpoint) or ""), batch_id)

    def _is_repeated(self, batch_id: int) -> bool:
        """Whether the batch was begun before. Only at most once: then record it durably."""
        if self.delivery is not Delivery.AT_MOST_ONCE:
            return False
        path = Path(local_folder(self.checkpoint) or "") / _BEGUN
        begun = int(path.read_text()) if path.exists() else NO_BATCH
        if batch_id <= begun:
            return True
        replace_file(path, str(batch_id))
        return False


def fitting(writer: SinkWriter, results: DataFrame) -> DataFrame:
    """Return the rows that a sink can take."""
    reason = writer.unfit(results)
    return results if reason is None else results.where(reason.isNull())


def open_outputs(job: Job, settings: JobSettings, cleanup: contextlib.ExitStack) -> Outputs:
    """Open the job's sinks, which fences an earlier driver. Raises `SinkError`."""
    run = Run(
        job=job.name,
        generation=settings.generation,
        delivery=settings.delivery,
        bootstrap_servers=settings.bootstrap_servers,
        output_topic=settings.output_topic,
        input_topics=settings.input_topics,
        group=settings.group,
        is_shadow=settings.is_shadow,
    )
    folder = local_folder(settings.checkpoint)
    try:
        if folder is not None:
            # Before the epoch, which ends the driver of whose checkpoint it is.
            claim_checkpoint(
                folder, job.name, settings.generation, adopt=settings.adopts_checkpoint
            )
        driver = None if folder is None else DriverEpoch(folder)
    except CheckpointError as error:
        raise SinkError(str(error)) from error
    except OSError as error:
        raise SinkError(f"the checkpoint {folder} cannot be written: {error}") from error
    writers: list[SinkWriter] = []
    for sink in job.sinks:
        # The group is behind every sink: the last one's step may move it.
        writer = sink.open(run if sink is job.sinks[-1] else replace(run, group=None))
        cleanup.callback(writer.close)
        if folder is None and writer.keeps_progress:
            raise SinkError(
                f"{sink.describe()} stores offsets with its rows, and {settings.checkpoint}"
                " does not say what a batch has read: the checkpoint has to be a folder"
            )
        writers.append(writer)
    if folder is None and settings.delivery is Delivery.AT_MOST_ONCE:
        raise SinkError(
            f"at-most-once notes in the checkpoint which batch was begun: {settings.checkpoint} has"
            " to be a folder"
        )
    if settings.has_console:
        writers.append(ConsoleSink())
    return Outputs(writers=writers, delivery=settings.delivery, driver=driver)
