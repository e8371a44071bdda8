"""Corrects late records: `python -m headrace_jobs.jobs.replay_late MODULE [the job's arguments]`.

A late record cannot be sent again: it would be late again. Instead its results are recomputed. The
job's transform over the late records alone shows which results they affect; over the whole input it
gives their correct values. These replace the former ones where a sink replaces rows by key. In
files they are appended, and the greatest `revision` of a key is the correct one.

The job may run meanwhile: it has closed these results. At the end, the position in the dead letters
is committed to the group `JOB.late`. A sink notes with its rows which replay they are of: the same
one, repeated after a crash, is skipped where it is, and every other one is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import structlog
from kafka.errors import KafkaError

from headrace_jobs import logs
from headrace_jobs.delivery import Delivery
from headrace_jobs.jars import JarError
from headrace_jobs.jobs.declared import parse_declared
from headrace_jobs.jobs.outputs import fitting
from headrace_jobs.jobs.run import DeclarationError, load_job
from headrace_jobs.jobs.runner import explained
from headrace_jobs.jobs.startup import JobError
from headrace_jobs.progress.group import GroupClient
from headrace_jobs.progress.offsets import TopicPartition, format_offsets
from headrace_jobs.progress.stored import Batch, FencedError, GapError, StoredProgress
from headrace_jobs.session import SessionError, open_session
from headrace_jobs.sinks.generations import shadowing
from headrace_jobs.sinks.protocol import LATE, Run, SinkError, layers_of
from headrace_jobs.sources.kafka import ISOLATION_LEVEL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from headrace_jobs.declaration import Job
    from headrace_jobs.jobs.arguments import JobSettings
    from headrace_jobs.sinks.protocol import Sink, SinkWriter

__all__ = ["main", "replay_late"]

USAGE = "usage: headrace_jobs.jobs.replay_late MODULE [ARGUMENTS of the job; --help lists them]"

_log = structlog.get_logger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay the late records. Returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0].startswith("-"):
        print(USAGE, file=sys.stderr)  # noqa: T201 - a command line
        return 2
    try:
        job, settings, parameters = parse_declared(load_job(given[0]), given[1:])
    except DeclarationError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command line
        return 2
    logs.configure()
    from pyspark.errors import PySparkException

    try:
        replay_late(job, settings, parameters)
    except (JobError, JarError, SessionError, SinkError, FencedError, GapError) as error:
        _log.error(str(error))
        return 1
    except PySparkException as error:
        _log.error(f"nothing was replayed: {explained(error)}")
        return 1
    return 0


def replay_late(job: Job, settings: JobSettings, parameters: Mapping[str, Any]) -> None:
    """Recompute the results of late records and write them. Raises `JobError`, `SinkError`."""
    topic = settings.dead_letter_topic
    if not job.result_key:
        raise JobError(
            f"job {job.name} does not say which columns identify its results"
            " (result_key), so none of them can be computed alone. Begin a new generation, which"
            " reads all of the past again"
        )
    if len(job.sources) > 1:
        raise JobError(
            f"job {job.name} reads several topics, and late records of one of them do not say which"
            " of its results they belong to. Begin a new generation, which reads all of the past"
            " again"
        )
    if topic is None:
        raise JobError("give --dead-letter-topic: late records are read from there")
    with contextlib.ExitStack() as cleanup:
        client = GroupClient(settings.bootstrap_servers, client_id=f"{settings.name}.late")
        cleanup.callback(client.close)
        try:
            begin, end = _letters(client, topic, f"{settings.name}.late")
        except (KafkaError, OSError) as error:
            raise JobError(
                f"no broker answers at {settings.bootstrap_servers} ({error})"
            ) from error
        if begin == end:
            _log.info("no dead letters came since the last replay", topic=topic)
            return
        from headrace_jobs.transforms.missed import missed_watermarks

        session = open_session(f"{settings.name}.late")
        cleanup.callback(session.stop)
        found = _late_records(_read(session, settings, begin, end), settings.name).persist()
        late = found.drop("watermark")
        count = late.count()
        if count:
            records = _whole_input(session, settings, client)
            late = _whole_records(late, records)
            # Of a record that is late for some windows the job still owns the others.
            with missed_watermarks(found):
                touched = job.transform(late, **parameters)
            right = _of_keys(job.transform(records, **parameters), touched, job.result_key)
            _check_sinks(job, right)
            topics = client.topic_ids({topic, *settings.input_topics})
            _write(job, settings, right, _Replay(begin=begin, end=end, topics=topics))
        client.commit(f"{settings.name}.late", end)
        _log.info("late records were put right", records=count, dead_letters=format_offsets(end))


def _letters(
    client: GroupClient, topic: str, group: str
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return which dead letters to read: from the committed position to the end."""
    found = client.partitions([topic])
    if not found:
        raise JobError(f"topic {topic} does not exist: which one has the job's dead letters?")
    places = [TopicPartition(topic, index) for index in range(found[topic])]
    earliest, end = client.end_offsets(places, earliest=True), client.end_offsets(places)
    committed = client.committed(group)
    begin = {at: min(max(committed.get(at, 0), earliest[at]), end[at]) for at in places}
    return begin, end


def _read(
    session: SparkSession,
    settings: JobSettings,
    begin: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
) -> DataFrame:
    """Return the records between two positions of topics, as Kafka's columns."""
    return (
        session.read.format("kafka")
        .option("kafka.bootstrap.servers", settings.bootstrap_servers)
        .option("subscribe", ",".join(sorted({at.topic for at in begin})))
        .option("startingOffsets", format_offsets(begin))
        .option("endingOffsets", format_offsets(end))
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", ISOLATION_LEVEL)
        .load()
    )


def _late_records(letters: DataFrame, job: str) -> DataFrame:
    """Return a job's late records as Kafka's columns, without duplicates, and `watermark`."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

    def header(name: str) -> Column:
        own = F.filter("headers", lambda each: each["key"] == f"headrace.{name}")
        return F.try_element_at(own, F.lit(-1))["value"].cast("string")

    return (
        letters.where((header("job") == job) & header("watermark").isNotNull())
        .withColumn("topic", header("topic"))
        .withColumn("partition", header("partition").cast("int"))
        .withColumn("offset", header("offset").cast("long"))
        .withColumn("watermark", header("watermark").cast("timestamp"))
        .dropDuplicates(["topic", "partition", "offset"])
    )


def _whole_records(late: DataFrame, records: DataFrame) -> DataFrame:
    """Return late records as they are in the input.

    A dead letter has the time at which it was written, more headers, and is cut if it was too
    large. Records that are in the input no more are returned as their letters have them, without a
    time, unless they were cut.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as above

    place = ["topic", "partition", "offset"]
    whole = records.join(F.broadcast(late.select(place)), place, "semi").select(late.columns)
    whole = whole.persist()
    gone = late.join(F.broadcast(whole.select(place)), place, "anti").where(
        ~F.exists("headers", lambda each: each["key"] == "headrace.original-bytes")
    )
    no_time = F.lit(None).cast("timestamp")
    return whole.unionByName(gone.select(late.columns).withColumn("timestamp", no_time))


def _whole_input(session: SparkSession, settings: JobSettings, client: GroupClient) -> DataFrame:
    """Return all records of the input. Raises `JobError` if retention removed some of them."""
    counts = client.partitions(settings.input_topics)
    places = [TopicPartition(topic, index) for topic in counts for index in range(counts[topic])]
    earliest, latest = client.end_offsets(places, earliest=True), client.end_offsets(places)
    gone = {at: offset for at, offset in earliest.items() if offset > 0}
    if gone and settings.fail_on_data_loss:
        raise JobError(
            f"the input begins at {format_offsets(gone)}: retention took records, and a result that"
            " some of them belonged to would be computed without them. --no-fail-on-data-loss says"
            " that those of the late records' results are all still there"
        )
    return _read(session, settings, earliest, latest)


def _of_keys(results: DataFrame, touched: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the results whose key is among those of `touched`; null is a part of a key, too."""
    from pyspark.sql import functions as F  # noqa: N812 - as above

    names = {name: f"_touched_{name}" for name in key}
    keys = touched.select(*(F.col(name).alias(names[name]) for name in key)).distinct()
    is_touched = [F.col(name).eqNullSafe(F.col(names[name])) for name in key]
    return results.join(keys, reduce(and_, is_touched), "semi")


def _say_unfit(sink: str, results: DataFrame, reason: Column) -> None:
    """Log how many corrected results a sink can never take, and why."""
    counts = results.select(reason.alias("reason")).groupBy("reason").count().collect()
    reasons = {row["reason"]: row["count"] for row in counts if row["reason"] is not None}
    if reasons:
        _log.warning("corrected results that a sink can never take", sink=sink, reasons=reasons)


def _check_sinks(job: Job, results: DataFrame) -> None:
    """Refuse sinks whose readers could not tell a correction from the value it corrects."""
    for sink in job.sinks:
        reason = sink.refusal(Delivery.AT_LEAST_ONCE, "update")
        if reason is not None and "revision" not in _columns_of(sink, results):
            raise JobError(
                f"{sink.describe()} cannot be corrected: {reason}. With a column `revision` readers"
                " could tell"
            )


def _columns_of(sink: Sink, results: DataFrame) -> Sequence[str]:
    """Return the columns that a sink gets, which may be a part (`Only`)."""
    *parts, _ = layers_of(sink)
    innermost: Any = parts[-1] if parts else results
    columns: Sequence[str] = innermost.columns
    return columns


@dataclass(frozen=True, kw_only=True)
class _Replay:
    """Which dead letters are replayed."""

    begin: Mapping[TopicPartition, int]
    end: Mapping[TopicPartition, int]
    topics: Mapping[str, str]

    def batch(self, writer: SinkWriter, live: int | None) -> Batch | None:
        """Return the replay as the next batch of a sink; None if the sink has it already.

        `live`: the generation that readers see there, whose results are corrected.
        """
        if not writer.keeps_progress:
            return Batch(batch_id=0)
        places = [format_offsets(self.begin), format_offsets(self.end)]
        text = json.dumps([*places, sorted(self.topics.items()), live])
        # In place of a checkpoint's id: what a sink has of another replay says nothing of this one.
        identity = f"late-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
        stored: StoredProgress = writer.stored  # type: ignore[attr-defined] # it keeps progress
        if stored.checkpoint == identity:
            return None
        return Batch(batch_id=stored.batch_id + 1, checkpoint=identity, end=self.end)


def _live_generation(job: Job, sink: Sink) -> int | None:
    """Return which generation's results readers see in a sink; None if it has none."""
    found = shadowing(sink)
    every = [] if found is None else found.output_generations(job.name).all()
    return next((each.generation for each in every if each.is_live), None)


def _write(job: Job, settings: JobSettings, results: DataFrame, replay: _Replay) -> None:
    """Write corrected results to each sink, with progress separate from the job's own."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

    if "revision" in results.columns:
        # Greater than any revision by the job itself.
        results = results.withColumn("revision", F.lit(int(time.time())).cast("long"))
    results = results.persist()
    run = Run(
        job=f"{job.name}{LATE}",
        generation=1,
        delivery=Delivery.AT_LEAST_ONCE,
        bootstrap_servers=settings.bootstrap_servers,
        output_topic=settings.output_topic,
        input_topics=tuple({at.topic for at in replay.end}),
    )
    for sink in job.sinks:
        writer = sink.open(run)
        try:
            batch = replay.batch(writer, _live_generation(job, sink))
            if batch is None:
                _log.info("the sink has these corrections already", sink=sink.describe())
                continue
            reason = writer.unfit(results)
            if reason is not None:
                _say_unfit(sink.describe(), results, reason)
            writer.write(fitting(writer, results), batch)
        finally:
            writer.close()
        _log.info("results were corrected", sink=sink.describe(), rows=results.count())


if __name__ == "__main__":
    sys.exit(main())
