"""The job's group is that of the generation that readers see, also when a swap changes which."""

import uuid

import pytest
from confluent_kafka import Producer

from headrace_jobs.declaration import Job, Topic
from headrace_jobs.delivery import Delivery
from headrace_jobs.jobs.declared import parse_declared
from headrace_jobs.jobs.live import GroupFollower, as_readers_see
from headrace_jobs.progress.group import GroupClient, GroupProgress
from headrace_jobs.progress.metrics import JobMetrics
from headrace_jobs.progress.offsets import TopicPartition
from headrace_jobs.progress.stored import Batch
from headrace_jobs.sinks.postgres import PostgresTable
from headrace_jobs.sinks.protocol import Run
from support.processes import wait_until


@pytest.fixture
def job(postgres, new_topic):
    sink = PostgresTable(table=f"t_{uuid.uuid4().hex[:8]}", key=("k",), dsn=postgres.dsn)
    source = Topic(new_topic(1))
    return Job(name="orders", sources=(source,), transform=lambda it: it, sinks=(sink,))


@pytest.fixture
def settings(job, broker, tmp_path):
    """A function that returns what a driver of a generation is told."""
    group = f"orders-{uuid.uuid4().hex[:8]}"

    def make(*more):
        given = ["--bootstrap-servers", broker.bootstrap, "--group", group]
        return parse_declared(job, [*given, "--checkpoint", str(tmp_path), *more])[1]

    return make


def write(job, postgres, generation, *, is_shadow=False):
    """A generation's first batch, which has no rows."""
    (sink,) = job.sinks
    table = f"{sink.table}_g{generation}" if is_shadow else sink.table
    postgres.query(f"CREATE TABLE {table} (k TEXT PRIMARY KEY)")
    run = Run(
        job=job.name,
        generation=generation,
        delivery=Delivery.EXACTLY_ONCE,
        bootstrap_servers="",
        is_shadow=is_shadow,
    )
    writer = sink.open(run)
    at = TopicPartition(job.sources[0].topic, 0)
    writer._store.transact(Batch(batch_id=0, checkpoint="c", begin={at: 0}, end={at: 1}))
    writer.close()


def test_a_driver_that_is_started_after_a_swap_commits_to_the_live_group(job, settings, postgres):
    old, new = settings(), settings("--generation", "2", "--shadow")
    for each in (old, new):  # nothing is written yet
        assert as_readers_see(job, each).group == each.group
    write(job, postgres, 1)
    write(job, postgres, 2, is_shadow=True)
    assert as_readers_see(job, old).group == old.group
    assert as_readers_see(job, new).group == f"{old.group}-g2"
    job.sinks[0].output_generations(job.name).swap(2)
    assert as_readers_see(job, old).group == f"{old.group}-g1"
    assert as_readers_see(job, new).group == old.group
    job.sinks[0].output_generations(job.name).swap(1)
    assert as_readers_see(job, old).group == old.group
    assert as_readers_see(job, new).group == f"{old.group}-g2"


def test_a_running_driver_changes_its_group_with_a_swap(
    job, settings, postgres, broker, group_offsets
):
    (topic,) = (source.topic for source in job.sources)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(9):
        producer.produce(topic, b"v")
    assert producer.flush(30) == 0
    write(job, postgres, 1)
    write(job, postgres, 2, is_shadow=True)
    shadow = as_readers_see(job, settings("--generation", "2", "--shadow"))
    client = GroupClient(broker.bootstrap, client_id="test")
    metrics = JobMetrics(job.name, job.query_name, trigger_interval_seconds=1)
    group = GroupProgress(client, shadow.group, metrics)
    follower = GroupFollower(job, shadow, group)
    try:
        group.start({TopicPartition(topic, 0): 3})
        follower.look(now=True)
        wait_until(lambda: list(group_offsets(shadow.group).values()) == [3], 30, "the shadow's")
        assert group_offsets(shadow.live_group) == {}
        job.sinks[0].output_generations(job.name).swap(2)
        follower.look(now=True)
        wait_until(lambda: list(group_offsets(shadow.live_group).values()) == [3], 30, "the live")
        group.processed({TopicPartition(topic, 0): 9})
        wait_until(lambda: list(group_offsets(shadow.live_group).values()) == [9], 30, "the next")
        assert list(group_offsets(shadow.group).values()) == [3]
    finally:
        group.close()
        client.close()
