"""Where a job begins: never ahead of what Spark will read, never over a gap without being told."""

import contextlib
import dataclasses
import shutil
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from headrace_jobs.declaration import Job, Topic
from headrace_jobs.delivery import Delivery
from headrace_jobs.jobs.arguments import JobSettings
from headrace_jobs.jobs.declared import parse_declared
from headrace_jobs.jobs.outputs import open_outputs
from headrace_jobs.jobs.reconcile import reconcile
from headrace_jobs.jobs.startup import JobError, gaps, prepare
from headrace_jobs.progress.batches import read_batch
from headrace_jobs.progress.offsets import TopicPartition as At
from headrace_jobs.progress.offsets import parse_offsets
from headrace_jobs.progress.stored import FencedError
from headrace_jobs.sinks.files import FileTable
from headrace_jobs.sinks.kafka import KafkaSink
from headrace_jobs.sinks.postgres import PostgresTable
from headrace_jobs.sinks.protocol import SinkError
from support.processes import wait_until

NOON_MS = 1_769_860_800_000


class NeverStopped:
    is_requested = False

    def wait(self, seconds):
        raise AssertionError(f"nothing to wait {seconds} s for")


@pytest.fixture
def settings(broker, tmp_path, new_topic):
    return JobSettings(
        name="app",
        bootstrap_servers=broker.bootstrap,
        input_topics=(new_topic(2),),
        output_topics=(),
        delivery=Delivery.AT_LEAST_ONCE,
        generation=1,
        is_shadow=False,
        adopts_checkpoint=False,
        dead_letter_topic=None,
        group=f"group-{uuid.uuid4().hex[:8]}",
        checkpoint=str(tmp_path / "checkpoint"),
        trigger_ms=1000,
        real_time_ms=None,
        output_mode="append",
        is_available_now=False,
        ends_input=False,
        idle_timeout_seconds=60.0,
        has_console=False,
        starting_offsets="earliest",
        fail_on_data_loss=True,
        max_offsets_per_trigger=1000,
        metrics_address="127.0.0.1",
        metrics_port=0,
        metrics_address_file=None,
        startup_timeout_seconds=30.0,
        stop_timeout_seconds=1.0,
    )


@pytest.fixture
def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def produce(broker, topic, count, partition=0):
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        producer.produce(topic, str(number), partition=partition)
    assert producer.flush(30) == 0


def commit_batch(tmp_path, text, batch=0):
    for folder, content in (("offsets", text), ("commits", "v1\n{}")):
        (tmp_path / "checkpoint" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkpoint" / folder / str(batch)).write_text(content)


def started(settings):
    start = prepare(settings, NeverStopped())
    assert start is not None
    start.client.close()
    return start


def test_latest_is_named_for_spark_so_that_the_group_and_the_query_begin_at_one_place(
    settings, broker
):
    (topic,) = settings.input_topics
    produce(broker, topic, 5)
    start = started(dataclasses.replace(settings, starting_offsets="latest"))
    assert start.position == {(topic, 0): 5, (topic, 1): 0}
    assert parse_offsets(start.starting_offsets) == start.position


@pytest.fixture
def open_transaction(broker, settings):
    """A transaction in the topic's first partition that is open: records 5 and 6."""
    (topic,) = settings.input_topics
    produce(broker, topic, 5)
    names = {"bootstrap.servers": broker.bootstrap, "transactional.id": uuid.uuid4().hex}
    producer = Producer(names)
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(2):
        producer.produce(topic, b"open", partition=0)
    assert producer.flush(30) == 0
    return producer


def test_latest_is_before_a_transaction_that_is_open(settings, open_transaction):
    (topic,) = settings.input_topics
    start = started(dataclasses.replace(settings, starting_offsets="latest"))
    assert start.position == {(topic, 0): 5, (topic, 1): 0}
    open_transaction.abort_transaction(30)
    start = started(dataclasses.replace(settings, starting_offsets="latest"))
    assert start.position == {(topic, 0): 8, (topic, 1): 0}


def test_a_job_that_is_to_begin_behind_an_open_transaction_waits_for_its_end(
    settings, open_transaction, tmp_path
):
    """Its group was reset to the end of the topic: no record is gone."""
    (topic,) = settings.input_topics
    commit_batch(tmp_path, f'v1\n{{}}\n{{"{topic}":{{"0":7,"1":0}}}}')

    class Ending:
        is_requested = False

        def wait(self, _seconds):
            open_transaction.commit_transaction(30)

    start = prepare(settings, Ending())
    start.client.close()
    assert start.position == {(topic, 0): 7, (topic, 1): 0}


def test_with_latest_a_partition_that_was_added_begins_where_spark_begins_it(
    settings, broker, admin, tmp_path
):
    (topic,) = settings.input_topics
    produce(broker, topic, 5)
    commit_batch(tmp_path, f'v1\n{{}}\n{{"{topic}":{{"0":5,"1":0}}}}')
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    produce(broker, topic, 7, partition=2)
    start = started(dataclasses.replace(settings, starting_offsets="latest"))
    assert start.position == {(topic, 0): 5, (topic, 1): 0, (topic, 2): 0}


def test_a_time_begins_with_the_first_record_of_it_or_later_until_the_first_batch(
    settings, broker, tmp_path
):
    (topic,) = settings.input_topics
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for timestamp in (1000, 3000, 2000, 3000):  # not in order, as producers' clocks are
        producer.produce(topic, "x", partition=0, timestamp=NOON_MS + timestamp)
    producer.produce(topic, "x", partition=1, timestamp=NOON_MS)
    assert producer.flush(30) == 0
    timed = dataclasses.replace(settings, starting_offsets=NOON_MS + 2000)
    start = started(timed)
    assert start.position == {(topic, 0): 1, (topic, 1): 1}
    assert parse_offsets(start.starting_offsets) == start.position
    commit_batch(tmp_path, f'v1\n{{}}\n{{"{topic}":{{"0":3,"1":1}}}}')
    assert started(timed).position == {(topic, 0): 3, (topic, 1): 1}


def test_a_partition_added_to_a_job_that_began_with_a_time_is_read_from_its_beginning(
    settings, broker, admin, tmp_path
):
    (topic,) = settings.input_topics
    commit_batch(tmp_path, f'v1\n{{}}\n{{"{topic}":{{"0":0,"1":0}}}}')
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    produce(broker, topic, 7, partition=2)
    timed = dataclasses.replace(settings, starting_offsets=4_000_000_000_000)
    assert started(timed).position == {(topic, 0): 0, (topic, 1): 0, (topic, 2): 0}


DECLARED = Job(
    name="app", sources=(Topic("in"),), transform=lambda frame: frame, sinks=(FileTable(path="/t"),)
)
COMMON = ("--bootstrap-servers", "x:1", "--checkpoint", "/nowhere")


@pytest.mark.parametrize(
    ("text", "where"),
    [("Latest", "latest"), ("earliest", "earliest"), ("2026-01-31T12:00:00Z", NOON_MS)],
)
def test_a_job_begins_where_it_is_told(text, where):
    _, settings, _ = parse_declared(DECLARED, [*COMMON, "--from", text])
    assert settings.starting_offsets == where


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("noon", "neither earliest nor latest, and 'noon' is no moment: write ISO 8601"),
        ("2999-01-01T00:00:00Z", "is in the future: latest begins with"),
    ],
)
def test_what_is_no_place_to_begin_is_refused_with_what_to_write(text, reason, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_declared(DECLARED, [*COMMON, "--from", text])
    assert ended.value.code == 2
    assert reason in " ".join(capsys.readouterr().err.split())


def test_a_checkpoint_on_another_file_system_is_not_guessed(settings, broker):
    produce(broker, settings.input_topics[0], 5)
    remote = dataclasses.replace(
        settings, checkpoint="s3a://bucket/checkpoint", starting_offsets="latest"
    )
    assert started(remote).position == {}


@pytest.mark.parametrize("kind", ["garbage", "folder", "version"])
def test_a_checkpoint_that_cannot_be_read_is_not_taken_for_a_new_one(settings, tmp_path, kind):
    (topic,) = settings.input_topics
    commit_batch(tmp_path, "garbage" if kind == "garbage" else f'v9\n{{}}\n{{"{topic}":{{"0":5}}}}')
    if kind == "folder":
        path = tmp_path / "checkpoint" / "offsets" / "0"
        path.unlink()
        path.mkdir()
    with pytest.raises(JobError, match="offsets/0"):
        prepare(settings, NeverStopped())


def test_what_retention_took_stops_the_job_with_the_gap_named_unless_it_may_go_on(
    settings, broker, admin, tmp_path
):
    (topic,) = settings.input_topics
    produce(broker, topic, 60)
    commit_batch(tmp_path, f'v1\n{{}}\n{{"{topic}":{{"0":10,"1":0}}}}')
    for future in admin.delete_records([TopicPartition(topic, 0, 50)]).values():
        future.result(30)
    with pytest.raises(JobError, match=rf"{topic}-0: offsets 10 to 49 \(40 records\) are gone"):
        prepare(settings, NeverStopped())
    start = started(dataclasses.replace(settings, fail_on_data_loss=False))
    assert start.position == {(topic, 0): 50, (topic, 1): 0}


def test_a_gap_behind_what_a_sink_holds_is_named_where_the_checkpoint_is_lost(
    settings, broker, admin, postgres
):
    """The job goes on from its sink then, and retention overtook it, too."""
    (topic,) = settings.input_topics
    produce(broker, topic, 60)
    sink = PostgresTable(table=f"t_{uuid.uuid4().hex[:8]}", key=("k",), dsn=postgres.dsn)
    job = Job(name="app", sources=(Topic(topic),), transform=lambda it: it, sinks=(sink,))
    exactly_once = dataclasses.replace(settings, delivery=Delivery.EXACTLY_ONCE)
    for future in admin.delete_records([TopicPartition(topic, 0, 50)]).values():
        future.result(30)
    with contextlib.ExitStack() as cleanup:
        outputs = open_outputs(job, exactly_once, cleanup)
        (writer,) = outputs.writers
        held = {At(topic, 0): 10, At(topic, 1): 0}
        writer.rewind(dataclasses.replace(writer.stored, batch_id=3, checkpoint="x", offsets=held))
        writer._store.refresh()
        start = prepare(exactly_once, NeverStopped())
        cleanup.callback(start.client.close)
        with pytest.raises(JobError, match=rf"{topic}-0: offsets 10 to 49 \(40 records\) are gone"):
            reconcile(exactly_once, start, outputs, is_stateful=False)
        told = dataclasses.replace(exactly_once, fail_on_data_loss=False)
        # Where the sink stands, so that its next batch begins there: Spark skips what is gone.
        found = reconcile(told, start, outputs, is_stateful=False)
        assert parse_offsets(found.starting_offsets) == held


def test_a_partition_that_was_added_is_read_whole_where_the_checkpoint_is_lost(
    settings, broker, admin, postgres
):
    """Whatever a new query would do: its records have come since the job began."""
    (topic,) = settings.input_topics
    produce(broker, topic, 5)
    sink = PostgresTable(table=f"t_{uuid.uuid4().hex[:8]}", key=("k",), dsn=postgres.dsn)
    job = Job(name="app", sources=(Topic(topic),), transform=lambda it: it, sinks=(sink,))
    latest = dataclasses.replace(
        settings, delivery=Delivery.EXACTLY_ONCE, starting_offsets="latest"
    )
    with contextlib.ExitStack() as cleanup:
        outputs = open_outputs(job, latest, cleanup)
        (writer,) = outputs.writers
        # One partition has been added since, and another topic is not read any more.
        held = {At(topic, 0): 3, At(topic, 1): 0, At("former", 0): 9}
        writer.rewind(dataclasses.replace(writer.stored, batch_id=3, checkpoint="x", offsets=held))
        writer._store.refresh()
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
        produce(broker, topic, 7, partition=2)
        expected = {At(topic, 0): 3, At(topic, 1): 0, At(topic, 2): 0}
        # Again, as when the driver ends before its first batch.
        for _ in range(2):
            start = prepare(latest, NeverStopped())
            cleanup.callback(start.client.close)
            found = reconcile(latest, start, outputs, is_stateful=False)
            assert found.position == parse_offsets(found.starting_offsets) == expected


def test_a_topic_that_was_recreated_is_a_gap_too():
    at = At("t", 0)
    assert gaps({at: 9}, {at: 0}, {at: 4}) == ["t-0: ends at 4, and 9 was to be read next"]
    assert gaps({at: 4}, {at: 0}, {at: 4}) == []


def test_a_topic_that_was_made_again_is_noticed_however_many_records_it_has(
    settings, broker, admin, tmp_path
):
    (topic,) = settings.input_topics
    produce(broker, topic, 5)
    with contextlib.ExitStack() as cleanup:
        outputs = open_outputs(DECLARED_TOPIC, settings, cleanup)
        start = prepare(settings, NeverStopped())
        cleanup.callback(start.client.close)
        reconcile(settings, start, outputs, is_stateful=False)
    commit_batch(tmp_path, f'v1\n{{}}\n{{"{topic}":{{"0":5,"1":0}}}}')
    assert started(settings).position == {(topic, 0): 5, (topic, 1): 0}
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=5).topics, 30, "the topic's end")
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    produce(broker, topic, 50)
    with pytest.raises(JobError, match=rf"{topic}: was deleted and made again"):
        prepare(settings, NeverStopped())
    assert started(dataclasses.replace(settings, fail_on_data_loss=False)).position[topic, 0] == 5


@pytest.mark.parametrize("kind", ["postgres", "postgres-former", "topic"])
def test_a_topic_that_was_made_again_is_noticed_where_the_checkpoint_is_lost_too(
    settings, broker, admin, postgres, new_topic, kind
):
    """As after `headrace down --delete-data` beside a PostgreSQL that stays."""
    (topic,) = settings.input_topics
    produce(broker, topic, 5)
    sink = PostgresTable(table=f"t_{uuid.uuid4().hex[:8]}", key=("k",), dsn=postgres.dsn)
    if kind == "topic":
        sink = KafkaSink(topic=new_topic(1), key_columns=("k",))
    job = Job(name="app", sources=(Topic(topic),), transform=lambda it: it, sinks=(sink,))
    given = dataclasses.replace(settings, delivery=Delivery.EXACTLY_ONCE)
    folder = Path(settings.checkpoint)
    with contextlib.ExitStack() as cleanup:
        if kind == "postgres-former":
            open_outputs(job, given, cleanup)
            postgres.query("ALTER TABLE headrace_progress DROP COLUMN topics")
        outputs = open_outputs(job, given, cleanup)
        start = prepare(given, NeverStopped())
        cleanup.callback(start.client.close)
        reconcile(given, start, outputs, is_stateful=False)
        commit_batch(folder.parent, f'v1\n{{}}\n{{"{topic}":{{"0":5,"1":0}}}}')
        (writer,) = outputs.writers
        batch = dataclasses.replace(read_batch(folder, 0), checkpoint="lost")
        writer.rewind(writer.stored.after(batch))
        if kind != "topic":
            postgres.query(f"CREATE TABLE {sink.table} (k TEXT PRIMARY KEY)")
    shutil.rmtree(folder)
    if kind != "topic":  # whose offsets would go with the topic, and the job be refused for that
        admin.delete_topics([topic])[topic].result(30)
        wait_until(lambda: topic not in admin.list_topics(timeout=5).topics, 30, "the topic's end")
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
        produce(broker, topic, 50)
    with contextlib.ExitStack() as cleanup:
        outputs = open_outputs(job, given, cleanup)
        start = prepare(given, NeverStopped())
        cleanup.callback(start.client.close)
        if kind == "topic":
            assert outputs.writers[0].stored.topics == dict(start.topic_ids)
            start = dataclasses.replace(start, topic_ids={topic: "another"})
        with pytest.raises(JobError, match=rf"{topic}: was deleted and made again.*data-loss"):
            reconcile(given, start, outputs, is_stateful=False)
        told = dataclasses.replace(given, fail_on_data_loss=False)
        assert reconcile(told, start, outputs, is_stateful=False).position[topic, 0] == 5


DECLARED_TOPIC = dataclasses.replace(DECLARED, sinks=(KafkaSink(topic="o", key_columns=("k",)),))


def test_a_checkpoint_of_another_job_is_refused_and_its_driver_lives(settings, tmp_path):
    other = dataclasses.replace(DECLARED_TOPIC, name="other")
    second = dataclasses.replace(settings, generation=2)
    with contextlib.ExitStack() as cleanup:
        rightful = open_outputs(DECLARED_TOPIC, settings, cleanup)
        for job, given in ((other, settings), (DECLARED_TOPIC, second)):
            with pytest.raises(SinkError, match=r"is of the job app, generation 1, and this is"):
                open_outputs(job, given, cleanup)
        rightful.driver.check()
        renamed = dataclasses.replace(settings, adopts_checkpoint=True)
        open_outputs(other, renamed, cleanup)
        open_outputs(other, settings, cleanup)
        with pytest.raises(FencedError):
            rightful.driver.check()
    (tmp_path / "checkpoint" / "headrace.json").write_text("[")
    with pytest.raises(SinkError, match=r"headrace.json cannot be read"):
        open_outputs(other, settings, contextlib.ExitStack())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("--bootstrap-servers", "host"), "write host:port, with commas between several"),
        (("--bootstrap-servers", "$(HEADRACE_BOOTSTRAP)"), "write host:port"),
        (("--bootstrap-servers", " ,"), "write host:port"),
        (("--checkpoint", ""), "it is empty: name the folder"),
        (("--max-offsets-per-trigger", "many"), "'many' is not a positive number"),
        (("--metrics-port", "http"), "'http' is not a port: 0 to 65535"),
        (("--input-topic", "a,b"), "'a,b' is no name of a topic"),
        (("--input-topic", "name=topic"), "'name=topic' is no name of a topic"),
        (("--output-topic", "in"), "topic in is input and output"),
        (("--dead-letter-topic", "in"), "in is also the job's input or output"),
        (("--dead-letter-topic", "o"), "o is also the job's input or output"),
        (("--checkp", "/elsewhere"), "unrecognized arguments: --checkp"),
    ],
)
def test_a_wrong_argument_is_refused_at_once_with_what_to_write(change, reason, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_declared(DECLARED_TOPIC, [*COMMON, *change])
    assert ended.value.code == 2
    assert reason in " ".join(capsys.readouterr().err.split())


def test_servers_may_be_named_with_spaces_a_protocol_and_brackets():
    given = "a.b:9092, PLAINTEXT://c_d:1 ,[::1]:9092,"
    _, settings, _ = parse_declared(DECLARED, [*COMMON, "--bootstrap-servers", given])
    assert settings.bootstrap_servers == "a.b:9092,PLAINTEXT://c_d:1,[::1]:9092"
