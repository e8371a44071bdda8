"""A batch's records and its offsets in one transaction of the broker, seen by other consumers."""

import contextlib
import json
import threading
import uuid
from collections import Counter

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as ClientTopicPartition

from faults.disk import can_mount, fill, small_disk
from headrace_jobs.declaration import Job, Topic
from headrace_jobs.delivery import Delivery
from headrace_jobs.jobs.declared import parse_declared
from headrace_jobs.jobs.outputs import open_outputs
from headrace_jobs.jobs.reconcile import reconcile
from headrace_jobs.jobs.startup import JobError, prepare
from headrace_jobs.progress import offsets
from headrace_jobs.progress.generations import RESET_NOTE, Reset
from headrace_jobs.progress.group import GroupClient
from headrace_jobs.progress.stored import Batch, FencedError, GapError
from headrace_jobs.sinks import kafka_transactions
from headrace_jobs.sinks.kafka import KafkaSink
from headrace_jobs.sinks.kafka_transactions import _InDoubtError
from headrace_jobs.sinks.protocol import Run, SinkError
from support.headrace_broker import HeadraceBroker
from support.processes import wait_until

pytestmark = pytest.mark.spark


@pytest.fixture
def sink(new_topic):
    return KafkaSink(topic=new_topic(2), key_columns=("k",))


@pytest.fixture
def source(new_topic):
    return new_topic(2)


@pytest.fixture
def group():
    return f"job-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def open_sink(sink, source, group, broker):
    """Open the topic as a new driver does."""
    with contextlib.ExitStack() as stack:

        def open_it():
            writer = sink.open(
                Run(
                    job="orders",
                    generation=1,
                    delivery=Delivery.EXACTLY_ONCE,
                    bootstrap_servers=broker.bootstrap,
                    input_topics=(source,),
                    group=group,
                )
            )
            stack.callback(writer.close)
            return writer

        yield open_it


@pytest.fixture
def batch(source):
    """A function that returns a batch of ten records."""

    def make(batch_id):
        place = offsets.TopicPartition(source, 0)
        begin, end = {place: batch_id * 10}, {place: batch_id * 10 + 10}
        return Batch(batch_id=batch_id, checkpoint="c", begin=begin, end=end)

    return make


@pytest.fixture
def seen(broker, sink):
    """What a consumer with isolation.level=read_committed sees."""
    return lambda: committed(broker.bootstrap, sink.topic)


@pytest.fixture
def stands(group, group_offsets):
    """Where the job's own group stands."""
    return lambda: list(group_offsets(group).values())


def rows(spark, *values):
    return spark.createDataFrame([(value,) for value in values], "k STRING")


def committed(bootstrap, topic):
    """How often each key is there, to the topic's end."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": uuid.uuid4().hex,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, index, 0) for index in range(2)])
    found, ends = Counter(), set()
    while len(ends) < 2:
        record = consumer.poll(30)
        assert record is not None, f"no end of {topic}: {found}"
        if record.error():
            assert record.error().code() == KafkaError._PARTITION_EOF
            ends.add(record.partition())
        else:
            assert json.loads(record.value())["k"] == record.key().decode()
            found[record.key().decode()] += 1
    consumer.close()
    return found


def test_each_batch_is_seen_once_and_the_groups_offsets_come_with_it(
    spark, seen, stands, open_sink, batch
):
    writer = open_sink()
    writer.write(rows(spark, "a", "b"), batch(0))
    assert stands() == [10]
    writer.write(rows(spark, "c"), batch(1))
    writer.write(rows(spark, "c"), batch(1))
    successor = open_sink()
    assert successor.stored.batch_id == 1
    assert list(successor.stored.offsets.values()) == [20]
    successor.write(rows(spark, "c"), batch(1))
    successor.write(rows(spark), batch(2))
    assert seen() == Counter("abc")
    assert stands() == [30]
    with pytest.raises(GapError):
        successor.write(rows(spark, "x"), batch(4))


def test_progress_that_cannot_be_read_now_is_not_taken_for_none(
    spark, sink, open_sink, batch, broker, monkeypatch
):
    monkeypatch.setattr(kafka_transactions, "_TIMEOUT_SECONDS", 5)
    writer = open_sink()
    writer.write(rows(spark, "a"), batch(0))
    stranger = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "stranger"})
    stranger.init_transactions(30)
    stranger.begin_transaction()
    place = TopicPartition(sink.topic, 0, 1)
    member = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": writer._identity})
    group = member.consumer_group_metadata()
    stranger.send_offsets_to_transaction([place], group, 30)  # and it does not end it
    with pytest.raises(SinkError):
        open_sink()
    stranger.abort_transaction(30)
    member.close()
    assert open_sink().stored.batch_id == 0


def test_a_topic_that_is_not_there_is_named_and_not_read_from_its_beginning(
    spark, source, open_sink, batch, broker
):
    open_sink().write(rows(spark, "a"), batch(0))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([source])[source].result(30)
    with pytest.raises(SinkError, match=f"{source}.*Unknown topic"):
        open_sink()


def test_a_zombie_is_fenced_by_the_broker(spark, seen, open_sink, batch):
    zombie = open_sink()
    zombie.write(rows(spark, "a"), batch(0))
    successor = open_sink()
    with pytest.raises(FencedError):
        zombie.write(rows(spark, "zombie"), batch(1))
    successor.write(rows(spark, "b"), batch(1))
    assert seen() == Counter("ab")


def test_a_zombie_in_doubt_about_its_commit_leaves_its_successor_alone(
    spark, seen, open_sink, batch, monkeypatch
):
    """It hung in the commit for longer than that may take; to ask is to fence."""
    zombie = open_sink()
    zombie.write(rows(spark, "a"), batch(0))
    successors = []

    def hang():
        successors.append(open_sink())
        raise _InDoubtError("the client does not return")

    monkeypatch.setattr(zombie, "_commit", hang)
    with pytest.raises(FencedError):
        zombie.write(rows(spark, "zombie"), batch(1))
    successors[0].write(rows(spark, "b"), batch(1))
    assert seen() == Counter("ab")


def test_what_a_killed_driver_had_sent_is_never_seen(
    spark, seen, stands, open_sink, batch, monkeypatch
):
    writer = open_sink()
    writer.write(rows(spark, "a"), batch(0))
    before = stands()

    def killed():
        assert writer._producer.flush(30) == 0
        raise ZeroDivisionError

    monkeypatch.setattr(writer, "_commit", killed)
    with pytest.raises(ZeroDivisionError):
        writer.write(rows(spark, "b", "c"), batch(1))
    successor = open_sink()
    assert successor.stored.batch_id == 0
    assert stands() == before
    successor.write(rows(spark, "b", "c"), batch(1))
    assert seen() == Counter("abc")


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_lost_answer_to_the_commit_is_read_back(
    spark, seen, open_sink, batch, monkeypatch, is_committed
):
    writer = open_sink()
    writer.write(rows(spark, "a"), batch(0))
    commit, lost = writer._commit, []

    def lose_the_answer():
        if lost:
            return commit()
        lost.append(True)
        if is_committed:
            commit()
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(writer, "_commit", lose_the_answer)
    writer.write(rows(spark, "b"), batch(1))
    writer.write(rows(spark, "c"), batch(2))
    assert seen() == Counter("abc")


@pytest.mark.parametrize("when", ["sent", "before", "after"])
def test_a_broker_killed_around_the_commit_has_the_batch_once(spark, tmp_path, monkeypatch, when):
    with HeadraceBroker(tmp_path) as broker:
        run = new_run(broker)
        writer = KafkaSink(topic="out", key_columns=("k",)).open(run)
        writer.write(rows(spark, "a"), number(0))
        send, commit, killed = writer._send_offsets, writer._commit, []

        def kill():
            if not killed:
                killed.append(True)
                broker.kill()
                broker.restart()

        def kill_when_sent(progress, **more):
            assert writer._producer.flush(30) == 0
            kill()
            send(progress, **more)

        def kill_around():
            if when == "before":
                kill()
            commit()
            kill()

        if when == "sent":
            monkeypatch.setattr(writer, "_send_offsets", kill_when_sent)
        else:
            monkeypatch.setattr(writer, "_commit", kill_around)
        # It finds out how its transaction ended, or ends itself; then the next driver does.
        with contextlib.suppress(SinkError, FencedError):
            writer.write(rows(spark, "b", "c"), number(1))
        assert killed
        successor = KafkaSink(topic="out", key_columns=("k",)).open(run)
        successor.write(rows(spark, "b", "c"), number(1))
        successor.write(rows(spark, "d"), number(2))
        assert committed(broker.bootstrap, "out") == Counter("abcd")
        last = KafkaSink(topic="out", key_columns=("k",)).open(run)
        assert list(last.stored.offsets.values()) == [30]


def new_run(broker):
    """The run of a job on a broker of its own, with its topics."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(each, 2, 1) for each in ("in", "out")]).values():
        future.result(30)
    return Run(
        job="orders",
        generation=1,
        delivery=Delivery.EXACTLY_ONCE,
        bootstrap_servers=broker.bootstrap,
        input_topics=("in",),
    )


def number(batch_id):
    """A batch of ten records of that broker."""
    place = offsets.TopicPartition("in", 0)
    begin, end = {place: batch_id * 10}, {place: batch_id * 10 + 10}
    return Batch(batch_id=batch_id, checkpoint="c", begin=begin, end=end)


def test_a_broker_whose_disk_is_full_takes_the_batch_once_when_there_is_room(spark, tmp_path):
    if not can_mount():
        pytest.skip("NOT TESTED: mounting a small disk needs root")
    with small_disk(tmp_path / "data", 64) as disk, HeadraceBroker(tmp_path) as broker:
        run = new_run(broker)
        writer = KafkaSink(topic="out", key_columns=("k",)).open(run)
        writer.write(rows(spark, "a"), number(0))
        many = [f"{number}{'x' * 1000}" for number in range(200)]
        somebody_elses = fill(disk)
        writing = threading.Thread(target=writer.write, args=(rows(spark, *many), number(1)))
        writing.start()
        wait_until(lambda: not broker.is_running, 120, "the broker to give its full disk up")
        somebody_elses.unlink()
        broker.restart()
        writing.join(240)
        assert not writing.is_alive()
        assert committed(broker.bootstrap, "out") == Counter(["a", *many])
        successor = KafkaSink(topic="out", key_columns=("k",)).open(run)
        place = offsets.TopicPartition("in", 0)
        assert (successor.stored.batch_id, successor.stored.offsets) == (1, {place: 20})


@pytest.mark.parametrize("delivery", [Delivery.AT_LEAST_ONCE, Delivery.EXACTLY_ONCE])
def test_a_topics_own_limit_holds_and_not_the_clients(spark, broker, source, batch, delivery):
    """One that is lower than a client's batches, and one that is higher than its records."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def write(limit, frame):
        topic = f"limit-{uuid.uuid4().hex[:10]}"
        config = {"max.message.bytes": str(limit)}
        admin.create_topics([NewTopic(topic, 2, 1, config=config)])[topic].result(30)
        run = Run(
            job=topic,
            generation=1,
            delivery=delivery,
            bootstrap_servers=broker.bootstrap,
            input_topics=(source,),
        )
        with contextlib.closing(KafkaSink(topic=topic, key_columns=("k",)).open(run)) as writer:
            writer.write(frame, batch(0))
        return sum(committed(broker.bootstrap, topic).values())

    assert (
        write(20_000, spark.range(2_000).selectExpr("concat(id, repeat('x', 100)) AS k")) == 2_000
    )
    large = spark.range(1).selectExpr("repeat('x', 1000000) AS k")
    assert write(3_000_000, large) == 1
    if delivery is Delivery.EXACTLY_ONCE:
        with pytest.raises(SinkError, match=r"more than its max.message.bytes \(1000000\): raise"):
            write(1_000_000, large)


@pytest.fixture
def two_topics(broker, new_topic, source, group, tmp_path):
    """A job of two topics, and its settings."""
    sinks = tuple(KafkaSink(topic=new_topic(2), key_columns=("k",)) for _ in range(2))
    job = Job(
        name=f"two-{uuid.uuid4().hex[:8]}",
        sources=(Topic(source),),
        transform=lambda records: records,
        sinks=sinks,
        delivery=Delivery.EXACTLY_ONCE,
    )
    arguments = ["--bootstrap-servers", broker.bootstrap, "--group", group]
    arguments += ["--checkpoint", str(tmp_path / "checkpoint")]
    return parse_declared(job, arguments)[:2]


def test_the_group_waits_for_the_last_of_several_sinks(spark, broker, stands, batch, two_topics):
    job, settings = two_topics
    topics = [sink.topic for sink in job.sinks]

    def open_all(stack):
        outputs = open_outputs(job, settings, stack)
        outputs._batch = batch
        return outputs

    with contextlib.ExitStack() as stack:
        outputs = open_all(stack)
        outputs.write(rows(spark, "a"), 0)
        assert stands() == [10]
        last = outputs.writers[-1]
        # The driver dies between the first sink's step and the last one's.
        last.write = lambda *_: 1 / 0
        with pytest.raises(ZeroDivisionError):
            outputs.write(rows(spark, "b"), 1)
    found = [committed(broker.bootstrap, topic) for topic in topics]
    assert found == [Counter("ab"), Counter("a")]
    assert stands() == [10]
    with contextlib.ExitStack() as stack:
        outputs = open_all(stack)
        assert [each.stored.batch_id for each in outputs.stored()] == [1, 0]
        assert stands() == [10]
        outputs.write(rows(spark, "b"), 1)
    assert [committed(broker.bootstrap, topic) for topic in topics] == [Counter("ab")] * 2
    assert stands() == [20]


class Running:
    """A process that nobody asked to stop."""

    is_requested = False


def test_a_reset_that_is_refused_stays_in_the_group(spark, broker, source, batch, two_topics):
    job, settings = two_topics
    group = settings.group
    with contextlib.ExitStack() as stack:
        outputs = open_outputs(job, settings, stack)
        outputs._batch = batch
        outputs.write(rows(spark, "a"), 0)
    client = GroupClient(broker.bootstrap, client_id="reset")
    place = ClientTopicPartition(source, 0)
    noted = {place: OffsetAndMetadata(0, f"{RESET_NOTE}request-1", -1)}
    client._call(lambda admin: admin.alter_group_offsets(group, noted))
    for _ in range(2):
        with contextlib.ExitStack() as stack:
            start = prepare(settings, Running())
            stack.callback(start.client.close)
            outputs = open_outputs(job, settings, stack)
            with pytest.raises(JobError, match="the group was reset"):
                reconcile(settings, start, outputs, is_stateful=False)
        assert client.resets(group) == {offsets.TopicPartition(source, 0): Reset(0, "request-1")}
    client.close()
