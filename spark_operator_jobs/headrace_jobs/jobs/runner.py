"""Runs one streaming query as a process: waits for its brokers, starts, reports, stops in order.

Owns the order of things. Metrics are served first, then brokers and topics are waited for (a JVM
is started only when there is something to read), then the session, the group's first commit and the
query. SIGTERM and SIGINT let the running batch finish. Restarting is for whoever started us: a
failure ends the process with status 1 and one message.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from headrace_jobs.executors import follow_executor_target
from headrace_jobs.jars import JarError
from headrace_jobs.jobs.startup import JobError, prepare
from headrace_jobs.progress.checkpoint import local_folder
from headrace_jobs.progress.group import GroupProgress
from headrace_jobs.progress.metrics import JobMetrics, MetricsServer
from headrace_jobs.session import SessionError, open_session
from headrace_jobs.sinks.console import ConsoleSink
from headrace_jobs.sinks.dead_letters import DeadLetters
from headrace_jobs.sinks.kafka import KafkaSink
from headrace_jobs.sources.kafka import KafkaSource, read_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from headrace_jobs.jobs.arguments import JobSettings
    from headrace_jobs.jobs.startup import Start

__all__ = ["JobError", "run_query"]

_POLL_SECONDS = 0.2

_log = structlog.get_logger(__name__)


class _Stop:
    """Whether somebody asked us to stop."""

    def __init__(self) -> None:
        self._event = threading.Event()

    @property
    def is_requested(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds)

    def install(self) -> None:
        """Take SIGTERM and SIGINT; again once a session started, because pyspark takes SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._event.set()
        _log.info("stopping: the running batch finishes first", signal=signal.Signals(number).name)


def run_query(
    settings: JobSettings,
    query_name: str,
    *,
    pipeline: Callable[[DataFrame], DataFrame],
    rejected: Callable[[DataFrame], DataFrame],
    key_columns: tuple[str, ...],
) -> int:
    """Run `pipeline` from the input topic to the output topic. Returns the exit status.

    `rejected` keeps the records that the pipeline leaves out as malformed, and adds `reason`.
    """
    stop = _Stop()
    stop.install()
    metrics = JobMetrics(
        settings.name, query_name, trigger_interval_seconds=settings.trigger_ms / 1000
    )
    try:
        with contextlib.ExitStack() as cleanup:
            _serve_metrics(settings, metrics, cleanup)
            start = prepare(settings, stop)
            if start is None:
                return 0
            cleanup.callback(start.client.close)
            metrics.checkpoint_generation(start.generation.number)
            parts = _Parts(
                pipeline=pipeline,
                rejected=rejected,
                key_columns=key_columns,
                start=start,
                metrics=metrics,
                stop=stop,
            )
            _run_session(settings, query_name, parts)
    except (JobError, JarError, SessionError) as error:
        _log.error(str(error))
        return 1
    _log.info("stopped", job=settings.name)
    return 0


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What a session needs besides the settings."""

    pipeline: Callable[[DataFrame], DataFrame]
    rejected: Callable[[DataFrame], DataFrame]
    key_columns: tuple[str, ...]
    start: Start
    metrics: JobMetrics
    stop: _Stop


def _serve_metrics(
    settings: JobSettings, metrics: JobMetrics, cleanup: contextlib.ExitStack
) -> None:
    try:
        server = MetricsServer(
            metrics.registry, address=settings.metrics_address, port=settings.metrics_port
        )
    except OSError as error:
        raise JobError(
            f"metrics cannot be served on {settings.metrics_address}:{settings.metrics_port}: "
            f"{error.strerror or error}; choose another --metrics-port (0 takes a free one)"
        ) from error
    cleanup.callback(server.close)
    if settings.metrics_address_file is not None:
        server.write_address(settings.metrics_address_file)
    _log.info("metrics served", url=server.url)


def _run_session(settings: JobSettings, query_name: str, parts: _Parts) -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    began = time.monotonic()
    try:
        session = open_session(settings.name)
    except PySparkException as error:
        raise JobError(f"no Spark session: {_brief(error)}") from error
    parts.stop.install()
    _log.info("spark session started", seconds=round(time.monotonic() - began, 1))
    try:
        with follow_executor_target(session):
            _run_started_query(session, settings, query_name, parts)
    except PySparkException as error:
        raise JobError(f"the query failed: {_brief(error)}") from error
    except (Py4JError, ConnectionError) as error:
        raise JobError(f"Spark's JVM is gone (out of memory?): {_brief(error)}") from error
    finally:
        # Whatever state the JVM is in, the process must end.
        with contextlib.suppress(Exception):
            session.stop()


def _run_started_query(
    session: SparkSession, settings: JobSettings, query_name: str, parts: _Parts
) -> None:
    from headrace_jobs.progress.listener import ProgressListener

    group = None
    if settings.group is not None:
        group = GroupProgress(parts.start.client, settings.group, parts.metrics)
        group.start(parts.start.position)
    listener = ProgressListener(parts.metrics, group)
    session.streams.addListener(listener)
    query = _start(session, settings, query_name, parts)
    _log.info("query started", query=query_name, checkpoint=parts.start.generation.path)
    try:
        while not parts.stop.is_requested and not query.awaitTermination(_POLL_SECONDS):
            pass
        if parts.stop.is_requested:
            _stop_between_batches(query, settings.stop_timeout_seconds)
        for progress in query.recentProgress:
            listener.take(progress)
    finally:
        parts.metrics.stopped()
        with contextlib.suppress(Exception):  # the JVM may be gone; its listeners with it
            session.streams.removeListener(listener)
        if group is not None:
            group.close()


def _start(session: SparkSession, settings: JobSettings, query_name: str, parts: _Parts) -> Any:
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

    from headrace_jobs.progress.listener import OBSERVED_OUTPUT

    records = read_stream(
        session,
        KafkaSource(
            bootstrap_servers=settings.bootstrap_servers,
            topic=settings.input_topic,
            starting_offsets=parts.start.starting_offsets,
            fail_on_data_loss=settings.fail_on_data_loss,
            max_offsets_per_trigger=settings.max_offsets_per_trigger,
        ),
    )
    sinks: list[KafkaSink | ConsoleSink] = [
        KafkaSink(
            bootstrap_servers=settings.bootstrap_servers,
            topic=settings.output_topic,
            key_columns=parts.key_columns,
        )
    ]
    if settings.has_console:
        sinks.append(ConsoleSink())
    writer = (
        parts.pipeline(records)
        .observe(OBSERVED_OUTPUT, F.count(F.lit(1)).alias("rows"))
        .writeStream.queryName(query_name)
        .outputMode(settings.output_mode)
        .option("checkpointLocation", parts.start.generation.path)
        .foreachBatch(_write_to(sinks, _dead_letters(session, settings, query_name, parts)))
    )
    if settings.is_available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings.trigger_ms} milliseconds").start()


def _dead_letters(
    session: SparkSession, settings: JobSettings, query_name: str, parts: _Parts
) -> DeadLetters | None:
    if settings.dead_letter_topic is None:
        return None
    checkpoint = local_folder(parts.start.generation.path)
    if checkpoint is None:
        raise JobError(
            "a dead-letter topic needs a checkpoint that is a folder of this machine:"
            f" {settings.checkpoint} does not say what a batch has read"
        )
    return DeadLetters(
        session=session,
        query_name=query_name,
        bootstrap_servers=settings.bootstrap_servers,
        topic=settings.dead_letter_topic,
        job=settings.name,
        checkpoint=checkpoint,
        rejected=parts.rejected,
        metrics=parts.metrics,
    )


def _write_to(
    sinks: Sequence[KafkaSink | ConsoleSink], dead_letters: DeadLetters | None
) -> Callable[[DataFrame, int], None]:
    def write(batch: DataFrame, batch_id: int) -> None:
        # Computed once: a second pass would touch the state store and count rows again.
        batch.persist()
        try:
            for sink in sinks:
                sink.write(batch, batch_id)
        finally:
            batch.unpersist()
        if dead_letters is not None:
            dead_letters.write(batch_id)

    return write


def _stop_between_batches(query: Any, timeout_seconds: float) -> None:
    """Stop when no batch runs, or after the timeout.

    A query with `--trigger 0s` is never idle; there a new progress report marks the boundary, and
    the batch that just began has written nothing.
    """
    deadline = time.monotonic() + timeout_seconds
    first = _batch_id(query)
    while query.isActive and query.status["isTriggerActive"] and _batch_id(query) == first:
        if time.monotonic() > deadline:
            _log.warning("the running batch did not finish; it will run again on the next start")
            break
        time.sleep(0.05)
    query.stop()


def _batch_id(query: Any) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress.batchId)


def _brief(error: BaseException) -> str:
    """Return the first lines of Spark's message: what happened, without the JVM's stack."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(line.strip() for line in lines[:3])[:1000]
