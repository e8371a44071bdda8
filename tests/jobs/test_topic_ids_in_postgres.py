"""The ids of topics beside a job's progress, in a table that a former version made."""

import contextlib
import uuid
from dataclasses import replace

import pytest

from headrace_jobs.delivery import Delivery
from headrace_jobs.progress.offsets import TopicPartition
from headrace_jobs.progress.stored import Batch
from headrace_jobs.sinks.postgres import PostgresTable
from headrace_jobs.sinks.protocol import Run

P0 = TopicPartition("in", 0)
RUN = Run(job="poor", generation=1, delivery=Delivery.EXACTLY_ONCE, bootstrap_servers="")


@pytest.fixture
def sinks(postgres):
    """One table as its owner has it, and as a user has it who may only read and write."""
    poor = f"poor_{uuid.uuid4().hex[:8]}"
    postgres.query(f"CREATE ROLE {poor} LOGIN")
    owners = PostgresTable(table=f"t_{uuid.uuid4().hex[:8]}", key=("k",), dsn=postgres.dsn)
    with contextlib.closing(owners.open(replace(RUN, job="rich"))):
        pass  # which makes the progress table, where no test did before
    postgres.query(f"CREATE TABLE {owners.table} (k text PRIMARY KEY)")
    postgres.query(f"GRANT SELECT, INSERT, UPDATE ON headrace_progress, {owners.table} TO {poor}")
    postgres.query("ALTER TABLE headrace_progress DROP COLUMN topics")
    return owners, replace(owners, dsn=owners.dsn.replace("user=headrace", f"user={poor}"))


def stored_after_a_batch(sink, batch_id):
    begin, end = {P0: batch_id * 10}, {P0: batch_id * 10 + 10}
    batch = Batch(batch_id=batch_id, checkpoint="c", begin=begin, end=end, topics={"in": "AAE"})
    with contextlib.closing(sink.open(RUN)) as writer:
        writer._store.transact(batch)
    with contextlib.closing(sink.open(RUN)) as writer:
        return writer.stored


def test_who_does_not_own_the_table_goes_on_without_ids_until_its_owner_adds_them(sinks, capsys):
    owners, theirs = sinks
    stored = stored_after_a_batch(theirs, 0)
    assert (stored.batch_id, stored.offsets, stored.topics) == (0, {P0: 10}, {})
    told = capsys.readouterr()
    assert "ADD COLUMN topics" in told.out + told.err
    with contextlib.closing(owners.open(replace(RUN, job="rich"))):
        pass
    assert stored_after_a_batch(theirs, 1).topics == {"in": "AAE"}


def test_a_batch_that_holds_the_table_does_not_hold_up_a_start(sinks):
    owners, theirs = sinks
    with contextlib.closing(theirs.open(RUN)) as writer, writer._store._connection.transaction():
        writer._store.refresh()
        assert stored_after_a_batch(owners, 0).topics == {}
    assert stored_after_a_batch(owners, 1).topics == {"in": "AAE"}
