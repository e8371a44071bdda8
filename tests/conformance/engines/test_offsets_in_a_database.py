"""A Python consumer that keeps its offsets in its own database: exactly once without transactions.

It stores each batch's sums and the next offsets in one transaction of PostgreSQL, and begins where
the database says, never where its group is. It is killed again and again, at any point.
"""

import random
import sys
import time
import uuid
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.headrace_broker import HeadraceBroker
from support.postgres import running_postgres
from support.processes import ManagedProcess, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PARTITIONS = 3
KEYS = 20
RECORDS = 6000
KILLS = 6
SEED = 3


def consume(bootstrap: str, topic: str, dsn: str) -> None:
    """Run the consumer until it is killed: two of them share the partitions of one group."""
    with psycopg.connect(dsn) as database:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{topic}-database",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "isolation.level": "read_committed",
            }
        )

        def begin(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            for at in partitions:
                found = database.execute(
                    "SELECT next FROM offsets WHERE topic = %s AND at = %s",
                    (at.topic, at.partition),
                ).fetchone()
                at.offset = found[0] if found else OFFSET_BEGINNING
            database.commit()
            consumer.assign(partitions)

        consumer.subscribe([topic], on_assign=begin)
        while True:
            # In one order, so that one that lost its partitions and its successor do not deadlock.
            batch = sorted(consumer.consume(50, 0.2), key=lambda record: record.partition() or 0)
            for record in batch:
                assert not record.error(), record.error()
                key, number = record.key().decode(), int(record.value())
                # Whoever stored past this offset has it; this one has lost its partition.
                moved = database.execute(
                    "INSERT INTO offsets VALUES (%s, %s, %s) ON CONFLICT (topic, at) DO UPDATE"
                    " SET next = excluded.next WHERE offsets.next <= %s RETURNING next",
                    (topic, record.partition(), record.offset() + 1, record.offset()),
                ).fetchone()
                if moved is None:
                    continue
                database.execute(
                    "INSERT INTO sums VALUES (%s, %s, 1) ON CONFLICT (key) DO UPDATE SET"
                    " total = sums.total + excluded.total, records = sums.records + 1",
                    (key, number),
                )
            database.commit()


@pytest.fixture
def postgres():
    with running_postgres() as server:
        yield server


def produce(bootstrap: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in numbers:
        producer.produce(topic, str(number), key=f"k{number % KEYS}")
        producer.poll(0)
    assert producer.flush(60) == 0


def start(bootstrap: str, topic: str, dsn: str, log: Path) -> ManagedProcess:
    tests = str(Path(__file__).parents[2])
    command = [sys.executable, __file__, bootstrap, topic, dsn]
    return ManagedProcess(command, log, {"PYTHONPATH": tests})


def test_sums_are_exact_though_consumers_are_killed(tmp_path, postgres):
    rng = random.Random(SEED)
    postgres.query(
        "CREATE TABLE offsets (topic text, at int, next bigint, PRIMARY KEY (topic, at))"
    )
    postgres.query("CREATE TABLE sums (key text PRIMARY KEY, total bigint, records bigint)")
    with HeadraceBroker(tmp_path / "broker") as broker:
        topic = f"numbers-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)

        def stored() -> int:
            return postgres.query("SELECT coalesce(sum(records), 0) FROM sums")[0][0]

        running = []
        try:
            for number in range(2):
                log = tmp_path / f"consumer-{number}.log"
                running.append(start(broker.bootstrap, topic, postgres.dsn, log))
            for kill in range(KILLS):
                numbers = range(RECORDS * kill // KILLS, RECORDS * (kill + 1) // KILLS)
                produce(broker.bootstrap, topic, numbers)
                before = stored()
                wait_until(lambda before=before: stored() > before, 120, "more sums")
                time.sleep(rng.uniform(0, 0.2))
                running.pop(0).kill()
                log = tmp_path / f"consumer-{kill + 2}.log"
                running.append(start(broker.bootstrap, topic, postgres.dsn, log))
            wait_until(lambda: stored() >= RECORDS, 120, "all sums")
        finally:
            for process in running:
                process.kill()
    found = {key: (total, records) for key, total, records in postgres.query("SELECT * FROM sums")}
    numbers = {key: range(key, RECORDS, KEYS) for key in range(KEYS)}
    assert found == {f"k{key}": (sum(each), len(each)) for key, each in numbers.items()}
    ends = postgres.query("SELECT sum(next) FROM offsets")
    assert ends == [(RECORDS,)]


if __name__ == "__main__":
    consume(*sys.argv[1:])
