"""Transactions through other people's clients: whole or not at all, once, and zombies fenced."""

import asyncio
import uuid
from collections.abc import Callable

import aiokafka
import kafka
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    KafkaException,
    Producer,
    TopicPartition,
)

SECONDS = 30


@pytest.fixture
def new_producer(bootstrap: str) -> Callable[..., Producer]:
    """Return a function that starts a transactional producer, which fences its predecessor."""

    def create(name: str, **settings: object) -> Producer:
        producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0, **settings}
        )
        producer.init_transactions(SECONDS)
        return producer

    return create


@pytest.fixture
def name() -> str:
    return f"transactional-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def read(bootstrap: str) -> Callable[..., list[bytes]]:
    """Return a function that reads a topic to its end, as one isolation level sees it."""

    def run(topic: str, isolation: str = "read_committed", partitions: int = 1) -> list[bytes]:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
            }
        )
        consumer.assign(
            [TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)]
        )
        found, ended = [], set()
        try:
            while len(ended) < partitions:
                message = consumer.poll(SECONDS)
                assert message is not None, f"no end of {topic} within {SECONDS} s"
                if message.error() is None:
                    found.append(message.value())
                else:
                    ended.add(message.partition())
        finally:
            consumer.close()
        return found

    return run


def send(producer: Producer, topic: str, *values: bytes, partition: int = 0) -> None:
    for value in values:
        producer.produce(topic, value, partition=partition)


def test_committed_records_are_seen_and_aborted_ones_are_not(new_producer, new_topic, read, name):
    topic = new_topic(2)
    producer = new_producer(name)
    for number in range(6):
        producer.begin_transaction()
        send(producer, topic, b"a%d" % number, partition=0)
        send(producer, topic, b"b%d" % number, partition=1)
        producer.flush(SECONDS)
        if number % 2:
            producer.abort_transaction(SECONDS)
        else:
            producer.commit_transaction(SECONDS)
    committed = [b"%s%d" % (letter, number) for letter in (b"a", b"b") for number in (0, 2, 4)]
    assert sorted(read(topic, partitions=2)) == sorted(committed)
    assert len(read(topic, "read_uncommitted", 2)) == 12


def test_an_open_transaction_holds_readers_of_what_is_committed_back(
    new_producer, new_topic, read, name, bootstrap
):
    topic = new_topic()
    producer = new_producer(name)
    producer.begin_transaction()
    send(producer, topic, b"open")
    producer.flush(SECONDS)
    plain = Producer({"bootstrap.servers": bootstrap})
    plain.produce(topic, b"plain")
    plain.flush(SECONDS)
    assert read(topic) == []
    assert read(topic, "read_uncommitted") == [b"open", b"plain"]
    producer.commit_transaction(SECONDS)
    assert read(topic) == [b"open", b"plain"]


def test_a_zombie_is_fenced(new_producer, new_topic, read, name):
    topic = new_topic()
    zombie = new_producer(name)
    zombie.begin_transaction()
    send(zombie, topic, b"zombie")
    zombie.flush(SECONDS)
    heir = new_producer(name)
    heir.begin_transaction()
    send(heir, topic, b"heir")
    heir.commit_transaction(SECONDS)
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(SECONDS)
    assert caught.value.args[0].fatal()
    assert read(topic) == [b"heir"]


def copy(consumer: Consumer, producer: Producer, target: str, count: int) -> None:
    """Copy records a few in each transaction with their offsets; each third is aborted."""
    copied = transactions = 0
    while copied < count:
        records = [each for each in consumer.consume(5, SECONDS) if each.error() is None]
        assert records, f"{copied} of {count} copied"
        producer.begin_transaction()
        for record in records:
            producer.produce(target, record.value(), partition=0)
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), SECONDS)
        transactions += 1
        if transactions % 3 == 0:
            producer.abort_transaction(SECONDS)
            for committed in consumer.committed(consumer.assignment(), SECONDS):
                consumer.seek(
                    TopicPartition(committed.topic, committed.partition, max(0, committed.offset))
                )
        else:
            producer.commit_transaction(SECONDS)
            copied += len(records)


def test_a_copier_copies_each_record_once(
    new_producer, new_topic, new_group, read, name, bootstrap
):
    source, target = new_topic(), new_topic()
    values = [b"%d" % number for number in range(60)]
    plain = Producer({"bootstrap.servers": bootstrap})
    send(plain, source, *values)
    plain.flush(SECONDS)
    group = new_group()
    for half in (30, 30):
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        consumer.subscribe([source])
        copy(consumer, new_producer(name), target, half)
        consumer.close()
    assert read(target) == values


def test_offsets_of_an_aborted_transaction_are_forgotten(
    new_producer, new_topic, new_group, name, bootstrap
):
    topic, group = new_topic(), new_group()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    producer = new_producer(name)
    metadata = consumer.consumer_group_metadata()
    for offset, commits in ((5, True), (9, False)):
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, offset)], metadata, SECONDS)
        (producer.commit_transaction if commits else producer.abort_transaction)(SECONDS)
        (committed,) = consumer.committed([TopicPartition(topic, 0)], SECONDS)
        assert committed.offset == 5
    consumer.close()


@pytest.mark.parametrize("what", ["offset", "group"])
def test_an_offset_that_is_deleted_amid_a_transaction_stays_away(
    new_producer, new_topic, admin, name, bootstrap, what
):
    topic, group = new_topic(), name
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    producer, place = new_producer(name), TopicPartition(topic, 0, 5)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), SECONDS)
    if what == "group":
        admin.delete_consumer_groups([group])[group].result(SECONDS)
    else:
        client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
        errors = client.delete_group_offsets(group, [kafka.TopicPartition(topic, 0)])
        client.close()
        assert [error.errno for error in errors.values()] == [0]
    producer.commit_transaction(SECONDS)
    (committed,) = consumer.committed([TopicPartition(topic, 0)], SECONDS)
    assert committed.offset == OFFSET_INVALID
    consumer.close()


def test_aiokafka_commits_and_aborts(new_topic, new_group, read, name, bootstrap):
    topic, group = new_topic(), new_group()

    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"committed")
                await producer.send_offsets_to_transaction(
                    {aiokafka.TopicPartition(topic, 0): 3}, group
                )
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"aborted")
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_and_wait(topic, b"again")

    asyncio.run(run())
    assert read(topic) == [b"committed", b"again"]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    (committed,) = consumer.committed([TopicPartition(topic, 0)], SECONDS)
    consumer.close()
    assert committed.offset == 3


def test_kafka_python_commits_and_aborts(new_topic, read, name, bootstrap):
    topic = new_topic()
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        producer.send(topic, b"%d" % number)
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()
    assert read(topic) == [b"0", b"2"]
