"""Runs one streaming query as a process: waits for its brokers, starts, reports, stops.

Owns the order of these steps. Metrics are served first. Then it waits for brokers and topics (a JVM
starts only when there is something to read), and then come the session, the group's first commit
and the query. SIGTERM and SIGINT let the running batch finish. Whatever started the process is
responsible for restarts: a failure exits with status 1 and one message.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import signal
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import structlog

from headrace_jobs.delivery import Delivery
from headrace_jobs.durable import replace_file
from headrace_jobs.executors import follow_executor_target
from headrace_jobs.jars import JarError
from headrace_jobs.jobs.live import GroupFollower, as_readers_see
from headrace_jobs.jobs.mistakes import told
from headrace_jobs.jobs.outputs import open_outputs
from headrace_jobs.jobs.real_time import plan_refusals, start_real_time
from headrace_jobs.jobs.reconcile import reconcile
from headrace_jobs.jobs.startup import JobError, prepare, when_servers_answer
from headrace_jobs.progress.checkpoint import has_clock, local_folder
from headrace_jobs.progress.group import GroupProgress
from headrace_jobs.progress.metrics import JobMetrics, MetricsServer
from headrace_jobs.progress.offsets import offsets_of
from headrace_jobs.progress.stored import FencedError, GapError
from headrace_jobs.session import PAGES_ADDRESS_FILE, SessionError, open_session
from headrace_jobs.sinks.dead_letters import DeadLetters
from headrace_jobs.sinks.protocol import SinkError, whole_of
from headrace_jobs.sources.kafka import KafkaSource, read_stream

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from headrace_jobs.declaration import Job
    from headrace_jobs.jobs.arguments import JobSettings
    from headrace_jobs.jobs.outputs import Outputs
    from headrace_jobs.jobs.startup import Start
    from headrace_jobs.progress.listener import ProgressListener
    from headrace_jobs.sources.clock import Silence

__all__ = ["JobError", "explained", "run_query"]

_POLL_SECONDS = 0.2
# Spark's errors if the checkpoint's state or sources do not match the query.
_OF_ANOTHER_PROGRAM = (
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY",
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_INVALID_CONFIG_AFTER_RESTART",
    "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE",
    "CANNOT_LOAD_STATE_STORE",
    "STORE_BACKEND_NOT_SUPPORTED_FOR_TWS",
    "sources in the checkpoint offsets and now there are",
)

# How the stack of a Python worker begins, in the message of Spark's exception.
_STACK = "Traceback (most recent call last)"

_log = structlog.get_logger(__name__)


class _Stop:
    """Whether a signal asked this process to stop."""

    def __init__(self) -> None:
        self._event = threading.Event()

    @property
    def is_requested(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds)

    def install(self) -> None:
        """Handle SIGTERM and SIGINT; again after a session start: pyspark handles SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._event.set()
        _log.info("stopping: the running batch finishes first", signal=signal.Signals(number).name)


def run_query(job: Job, settings: JobSettings, parameters: Mapping[str, Any]) -> int:
    """Run the job's one query until it ends or is stopped. Returns the exit status."""
    stop = _Stop()
    stop.install()
    metrics = JobMetrics(
        settings.name,
        job.query_name,
        trigger_interval_seconds=settings.trigger_interval_seconds,
    )
    metrics.declared(
        delivery=settings.delivery.value,
        generation=settings.generation,
        is_shadow=settings.is_shadow,
    )
    try:
        with contextlib.ExitStack() as cleanup:
            _serve_metrics(settings, metrics, cleanup)
            seen = when_servers_answer(lambda: as_readers_see(job, settings), settings, stop)
            start = prepare(seen, stop) if seen is not None else None
            if seen is None or start is None:
                return 0
            settings = seen
            cleanup.callback(start.client.close)
            metrics.checkpoint_generation(start.generation.number)
            outputs = when_servers_answer(lambda: open_outputs(job, seen, cleanup), settings, stop)
            if outputs is None:
                return 0
            parts = _Parts(
                job=job,
                parameters=parameters,
                outputs=outputs,
                start=start,
                metrics=metrics,
                stop=stop,
            )
            _run_session(settings, parts)
    except (JobError, JarError, SessionError, SinkError, FencedError, GapError) as error:
        _log.error(str(error))
        return 1
    _log.info("stopped", job=settings.name)
    return 0


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What a session uses besides the settings."""

    job: Job
    parameters: Mapping[str, Any]
    outputs: Outputs
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
        try:
            server.write_address(settings.metrics_address_file)
        except OSError as error:
            raise JobError(
                f"argument --metrics-address-file: {settings.metrics_address_file} cannot be"
                f" written: {error.strerror or error}"
            ) from error
    _log.info("metrics served", url=server.url)


def _run_session(settings: JobSettings, parts: _Parts) -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    began = time.monotonic()
    try:
        session = open_session(settings.name, _session_settings(settings.delivery))
    except PySparkException as error:
        raise JobError(f"no Spark session: {_brief(error)}") from error
    parts.stop.install()
    _log.info("spark session started", seconds=round(time.monotonic() - began, 1))
    _say_where_pages_are(session.sparkContext.uiWebUrl, settings.metrics_address_file)
    try:
        with follow_executor_target(session):
            _run_started_query(session, settings, parts)
    except PySparkException as error:
        cause = parts.outputs.failure
        raise JobError(f"the query failed: {explained(cause or error)}") from error
    except (Py4JError, ConnectionError) as error:
        raise JobError(f"Spark's JVM is gone (out of memory?): {_brief(error)}") from error
    finally:
        # Whatever the state of the JVM, the process must end.
        with contextlib.suppress(Exception):
            session.stop()


def _say_where_pages_are(url: str | None, metrics_address_file: Path | None) -> None:
    """Log the address of Spark's own pages, and leave it beside that of the metrics."""
    if url is not None:
        _log.info("spark's own pages", url=url)
    if metrics_address_file is None:
        return
    path = metrics_address_file.with_name(PAGES_ADDRESS_FILE)
    with contextlib.suppress(OSError):  # the job does without
        if url is None:
            path.unlink(missing_ok=True)
        else:
            replace_file(path, f"{url}\n")


def _session_settings(delivery: Delivery) -> dict[str, str]:
    """Return settings; at most once must not retry, as part of a batch may have been written."""
    if delivery is not Delivery.AT_MOST_ONCE:
        return {}
    return {
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.speculation": "false",
    }


def _run_started_query(session: SparkSession, settings: JobSettings, parts: _Parts) -> None:
    from headrace_jobs.jobs.stateful import has_sparks_watermark, is_stateful, unbounded_joins
    from headrace_jobs.progress.listener import ProgressListener

    silence = _silence(session, settings, parts)
    results = _results(session, settings, parts)
    _refuse_unbounded(unbounded_joins(results))
    is_stateful_query = is_stateful(results)
    if is_stateful_query and has_sparks_watermark(results):
        _log.warning(
            "rows behind Spark's own watermark are dropped: it is one for all partitions, and"
            " nothing of them goes to the dead letters",
            instead="headrace_jobs.transforms.event_time.event_time_windows",
        )
    if not is_stateful_query:
        _warn_of_repeated_keys(parts.job)
    if is_stateful_query and settings.real_time_ms is None:
        _warn_without_clock(settings, silence)
    if settings.real_time_ms is not None:
        refused = plan_refusals(results, is_stateful=is_stateful_query)
        if refused:
            raise JobError("; ".join(refused))
    start = reconcile(settings, parts.start, parts.outputs, is_stateful=is_stateful_query)
    has_moved = start.starting_offsets != parts.start.starting_offsets
    parts = replace(parts, start=start)
    if has_moved:
        results = _results(session, settings, parts)
    parts.metrics.checkpoint_generation(start.generation.number)
    group = follower = None
    if settings.group is not None:
        group = GroupProgress(
            parts.start.client, settings.group, parts.metrics, parts.outputs.driver
        )
        group.start(parts.start.position)
        follower = GroupFollower(parts.job, settings, group)
    listener = ProgressListener(parts.metrics, group, silence)
    session.streams.addListener(listener)
    query = _start(results, settings, parts)
    _log.info("query started", query=parts.job.query_name, checkpoint=parts.start.generation.path)
    try:
        _follow(query, settings, parts, listener, follower)
        if settings.ends_input and silence is not None and not parts.stop.is_requested:
            silence.request_tick()
            _follow(_start(results, settings, parts), settings, parts, listener, follower)
    finally:
        if silence is not None:
            silence.close()
        parts.metrics.stopped()
        with contextlib.suppress(Exception):  # the JVM may be gone; its listeners with it
            session.streams.removeListener(listener)
        if group is not None:
            group.close()


def _follow(
    query: Any,
    settings: JobSettings,
    parts: _Parts,
    listener: ProgressListener,
    follower: GroupFollower | None,
) -> None:
    """Wait for the query's end, or stop it on request."""
    while not parts.stop.is_requested and not query.awaitTermination(_POLL_SECONDS):
        if settings.real_time_ms is not None:
            _end_if_replaced(parts.outputs)
        if follower is not None:
            follower.look()
    if parts.stop.is_requested:
        _stop_between_batches(query, settings.stop_timeout_seconds)
    for progress in query.recentProgress:
        listener.take(progress)


def _end_if_replaced(outputs: Outputs) -> None:
    """Look for a later driver: in real time no batch is written by us, which would see it."""
    try:
        if outputs.driver is not None:
            outputs.driver.check()
    except FencedError as error:
        raise JobError(str(error)) from error


def _warn_of_repeated_keys(job: Job) -> None:
    """Without state nothing makes one row of a key's records in a batch."""
    for sink in job.sinks:
        if getattr(whole_of(sink), "wants_each_key_once", False):
            _log.warning(
                "a batch in which a key has several rows will be refused: name `version`, or"
                " aggregate by the key",
                sink=sink.describe(),
            )


def _warn_without_clock(settings: JobSettings, silence: Silence | None) -> None:
    if silence is None and settings.ends_input:
        raise JobError(
            "--end-of-input needs a clock beside the topics, which the checkpoint of a program"
            " without one does not have: begin a new --generation"
        )
    if silence is None or settings.idle_timeout_seconds == 0:
        reason = "no clock" if silence is None else "--idle-timeout 0s"
        _log.warning("topics that are wholly silent close no windows", reason=reason)


def _silence(session: SparkSession, settings: JobSettings, parts: _Parts) -> Silence | None:
    """Return the detector of silence; queries built after this call have its clock."""
    from headrace_jobs.sources.clock import Silence

    is_never = settings.idle_timeout_seconds == 0
    path = parts.start.generation.path
    # Spark fixes the sources with the checkpoint, so a clock that never ticks is one of them, too.
    # Whether a checkpoint on another file system has one is not known: never means none there.
    if settings.real_time_ms is not None or (is_never and local_folder(path) is None):
        return None
    if not has_clock(path):
        return None
    idle_seconds = math.inf if is_never else settings.idle_timeout_seconds
    return Silence(session, idle_seconds=idle_seconds, topic=settings.input_topics[0])


def _refuse_unbounded(joins: list[str]) -> None:
    if joins:
        raise JobError(
            f"a join of two streams would keep their rows for ever ({'; '.join(joins)}): give both"
            " a watermark, and the condition a range of their times (a.at BETWEEN b.at AND b.at +"
            " INTERVAL 1 HOUR)"
        )


def _start(results: DataFrame, settings: JobSettings, parts: _Parts) -> Any:
    """Start the query. One frame may be started again: each query opens its sources for itself."""
    from headrace_jobs.progress.listener import OBSERVED_OUTPUT, observations
    from headrace_jobs.transforms import tagged

    parts.outputs.checkpoint = parts.start.generation.path
    parts.outputs.dead_letters = _dead_letters(settings, parts.start)
    parts.outputs.metrics = parts.metrics
    if settings.real_time_ms is not None or not tagged.is_tagged(results):
        results = results.observe(OBSERVED_OUTPUT, *observations(results))
    if settings.real_time_ms is not None:
        return start_real_time(results, parts.job, settings, parts.start.generation.path)
    writer = (
        results.writeStream.queryName(parts.job.query_name)
        .outputMode(settings.output_mode)
        .option("checkpointLocation", parts.start.generation.path)
        .foreachBatch(parts.outputs.write)
    )
    if settings.is_available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings.trigger_ms} milliseconds").start()


def _results(session: SparkSession, settings: JobSettings, parts: _Parts) -> DataFrame:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame

    frames = [
        read_stream(
            session,
            KafkaSource(
                bootstrap_servers=settings.bootstrap_servers,
                topic=topic,
                starting_offsets=offsets_of(topic, parts.start.starting_offsets),
                fail_on_data_loss=settings.fail_on_data_loss,
                max_offsets_per_trigger=settings.max_offsets_per_trigger,
            ),
        )
        for topic in settings.input_topics
    ]
    try:
        results = parts.job.transform(*frames, **parts.parameters)
    except PySparkException:
        raise
    except Exception as error:
        raise JobError(f"the transform failed: {told(error)}") from error
    if not isinstance(results, DataFrame):
        raise JobError(f"the transform returned no DataFrame but {results!r}")
    return results


def _dead_letters(settings: JobSettings, start: Start) -> DeadLetters | None:
    if settings.dead_letter_topic is None or start.dead_letter_bytes_max is None:
        return None
    return DeadLetters(
        bootstrap_servers=settings.bootstrap_servers,
        topic=settings.dead_letter_topic,
        job=settings.name,
        record_bytes_max=start.dead_letter_bytes_max,
    )


def _stop_between_batches(query: Any, timeout_seconds: float) -> None:
    """Stop when no batch runs, or after the timeout.

    A query with `--trigger 0s` is never idle. There a new progress report marks the boundary; the
    batch that has just begun has written nothing.
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


def explained(error: BaseException) -> str:
    """Return the message, with advice if the checkpoint belongs to another program."""
    text = str(error)
    if not any(each in text for each in _OF_ANOTHER_PROGRAM):
        return _brief(error)
    return (
        f"{_brief(error)} | The checkpoint is of another version of the program, whose state this"
        " one cannot go on with. Begin a new generation, which reads the past again: give"
        " --generation one number more. Or, where results may come a second time, delete the"
        " checkpoint's folder"
    )


def _brief(error: BaseException) -> str:
    """Return the first lines of Spark's message: what happened, without the JVM's stack."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    stack = [at for at, line in enumerate(lines) if line.startswith(_STACK)]
    if stack:
        # A worker's: the error itself is behind the places, which are indented.
        lines = list(itertools.dropwhile(lambda line: line[0] == " ", lines[stack[-1] + 1 :]))
    text = " ".join(line.strip() for line in lines[:3])[:1000]
    return text or type(error).__name__
