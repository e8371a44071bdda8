"""A writer that numbers its records, and a check that each is where it was acknowledged."""

import threading
import time
from collections import defaultdict
from typing import Self

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from support.processes import wait_until

RECORDS_PER_SECOND = 2000


class Writer:
    """An idempotent producer that numbers the records of each partition, in a thread."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.bootstrap, self.topic, self.partitions = bootstrap, topic, partitions
        self.acknowledged: dict[int, dict[int, int]] = defaultdict(dict)
        self.errors: list[KafkaError] = []
        self.sent = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        assert self._producer.flush(60) == 0

    @property
    def count(self) -> int:
        return sum(len(offsets) for offsets in list(self.acknowledged.values()))

    def wait_for_more(self, records: int = RECORDS_PER_SECOND) -> None:
        """Wait until so many more records are acknowledged."""
        goal = self.count + records
        wait_until(lambda: self.count >= goal, 60, f"{records} more acknowledged records")

    def _run(self) -> None:
        while not self._stopped.wait(0.05):
            for _ in range(RECORDS_PER_SECOND // 20):
                number, partition = divmod(self.sent, self.partitions)
                self._producer.produce(
                    self.topic, str(number), partition=partition, on_delivery=self._delivered
                )
                self.sent += 1
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
            return
        number = int(message.value())
        self.acknowledged[message.partition()][number] = message.offset()


def end_offset(consumer: Consumer, partition: TopicPartition) -> int:
    """Ask again when the leader moved between librdkafka's two requests: this call does not itself.

    Leaders return to their preferred broker 2 s after it is back, which is when the checks begin.
    """
    for _ in range(20):
        try:
            _, end = consumer.get_watermark_offsets(partition, timeout=30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
            time.sleep(0.5)
        else:
            return end
    raise AssertionError(f"partition {partition} has had no leader that answers for 10 s")


def read_all(bootstrap: str, topic: str, partitions: int) -> dict[int, list[tuple[int, int]]]:
    """Read every partition to its end: (offset, number), as they come."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "checker"})
    found: dict[int, list[tuple[int, int]]] = {}
    try:
        for partition in range(partitions):
            end = end_offset(consumer, TopicPartition(topic, partition))
            consumer.assign([TopicPartition(topic, partition, 0)])
            records = found.setdefault(partition, [])
            while len(records) < end:
                for message in consumer.consume(5000, timeout=0.3):
                    assert message.error() is None, message.error()
                    records.append((message.offset(), int(message.value())))
    finally:
        consumer.close()
    return found


def check(writer: Writer) -> None:
    """Nothing acknowledged is lost, moved, written twice or out of order; nothing failed."""
    assert writer.errors == []
    assert writer.count == writer.sent
    for partition, records in read_all(writer.bootstrap, writer.topic, writer.partitions).items():
        assert [offset for offset, _ in records] == list(range(len(records)))
        assert [number for _, number in records] == list(range(len(records)))
        acknowledged = writer.acknowledged[partition]
        assert {number: offset for offset, number in records} == acknowledged
