"""Kafka Streams with exactly_once_v2: an application that counts and joins, killed twice."""

import struct
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.headrace_broker import HeadraceBroker
from support.kafka_peer import engine_jar_directory, java_command
from support.processes import ManagedProcess, wait_until

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]

SOURCE = Path(__file__).parent / "CountAndJoin.java"
ONE_BROKER = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
PARTITIONS = 3
CUSTOMERS = [f"c{number}" for number in range(50)]
ORDERS = 6000
SECONDS = 180


class Committed:
    """Reads a topic from its start, what is committed only."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.records: list[tuple[str, bytes]] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{topic}-readers",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])

    def read(self, timeout_seconds: float = 0.2) -> int:
        """Take what has come; return how many records there are by now."""
        for message in self._consumer.consume(1000, timeout_seconds):
            assert message.error() is None, message.error()
            self.records.append((message.key().decode(), message.value()))
        return len(self.records)

    def wait_for(self, count: int, writer: ManagedProcess) -> None:
        def is_there() -> bool:
            assert writer.is_running, writer.output_tail()
            return self.read() >= count

        wait_until(is_there, SECONDS, f"{count} committed records")

    def close(self) -> None:
        self._consumer.close()


def order(producer: Producer, numbers: range) -> None:
    for number in numbers:
        customer = CUSTOMERS[number * 7 % len(CUSTOMERS)]
        producer.produce("orders", str(number), key=customer)
        producer.poll(0)
    producer.flush(60)


def start_application(bootstrap: str, directory: Path) -> ManagedProcess:
    arguments = [str(SOURCE), bootstrap, str(directory / "state")]
    jvm = ["-Xmx512M", "-XX:TieredStopAtLevel=1"]
    command = java_command(jvm, *arguments, jars=engine_jar_directory())
    return ManagedProcess(command, directory / "streams.log")


def test_streams_counts_and_joins_exactly_once_though_it_is_killed(tmp_path: Path):
    with HeadraceBroker(tmp_path / "broker", ONE_BROKER) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topics = [NewTopic(name, PARTITIONS, 1) for name in ("orders", "counts", "joined")]
        topics.append(NewTopic("customers", PARTITIONS, 1, config={"cleanup.policy": "compact"}))
        for made in admin.create_topics(topics).values():
            made.result(30)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        for customer in CUSTOMERS:
            producer.produce("customers", f"name of {customer}", key=customer)
        producer.flush(60)
        order(producer, range(ORDERS // 3))
        joined = Committed(broker.bootstrap, "joined")
        counts = Committed(broker.bootstrap, "counts")
        running = start_application(broker.bootstrap, tmp_path)
        try:
            for step in (1, 2):
                wanted = ORDERS * (2 * step - 1) // 6
                joined.wait_for(wanted, running)
                running.kill()
                order(producer, range(ORDERS * step // 3, ORDERS * (step + 1) // 3))
                running = start_application(broker.bootstrap, tmp_path)
            for topic in (joined, counts):
                topic.wait_for(ORDERS, running)
                assert topic.read(5) == ORDERS, "nothing comes after that"
        finally:
            running.stop()
            joined.close()
            counts.close()
    each = Counter(joined.records)
    wanted_joins = {
        (customer, f"{number}:name of {customer}".encode())
        for number in range(ORDERS)
        for customer in [CUSTOMERS[number * 7 % len(CUSTOMERS)]]
    }
    assert set(each) == wanted_joins
    assert set(each.values()) == {1}
    counted: defaultdict[str, list[int]] = defaultdict(list)
    for customer, value in counts.records:
        counted[customer].append(struct.unpack(">q", value)[0])
    assert counted == {
        customer: list(range(1, ORDERS // len(CUSTOMERS) + 1)) for customer in CUSTOMERS
    }
