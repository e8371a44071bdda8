"""Members of consumer groups: one in a thread of the test, and one in a process to be killed."""

import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from support.processes import ManagedProcess

PARTITIONS = 6
"""Of the topics that members share."""
_JOIN_SECONDS = 40
_FLUSH_SECONDS = 60
_ANY_PROTOCOL: dict[str, str | int | float | bool] = {"auto.offset.reset": "earliest"}
_SETTINGS: dict[str, str | int | float | bool] = {
    **_ANY_PROTOCOL,
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 500,
}


class Member:
    """A group member that polls in its own thread and says what it owned and read.

    It commits what it read whenever its last commit is answered. A commit a record would be sent
    faster than a loaded coordinator answers, and heartbeats wait behind them until its session
    is over.
    """

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        self.owned: set[int] = set()
        self.read: Counter[tuple[int, int]] = Counter()
        self.timestamps: list[int] = []
        self.rebalances = 0
        self.is_running = True
        self._failure: Exception | None = None
        self._uncommitted: dict[int, TopicPartition] = {}
        self._is_committing = False
        uses_consumer_protocol = settings.get("group.protocol") == "consumer"
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "on_commit": self._committed,
                # The broker sets the times of the consumer protocol (KIP-848).
                **(_ANY_PROTOCOL if uses_consumer_protocol else _SETTINGS),
                **settings,
            }
        )
        strategy = settings.get("partition.assignment.strategy", "")
        self._is_cooperative = uses_consumer_protocol or "cooperative" in strategy
        self._consumer.subscribe(
            [topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        self.owned |= {partition.partition for partition in partitions}
        if self._is_cooperative:
            consumer.incremental_assign(partitions)
        else:
            consumer.assign(partitions)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned -= {partition.partition for partition in partitions}
        for partition in partitions:
            last = self._uncommitted.pop(partition.partition, None)
            if last is not None:
                # Too late where the group has moved on: the next owner reads it again.
                with suppress(KafkaException):
                    consumer.commit(offsets=[last], asynchronous=False)
        if self._is_cooperative:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()

    def _committed(self, _error: KafkaError | None, _partitions: list[TopicPartition]) -> None:
        self._is_committing = False

    def _commit(self) -> None:
        if self._is_committing or not self._uncommitted:
            return
        offsets = list(self._uncommitted.values())
        self._uncommitted.clear()
        self._is_committing = True
        self._consumer.commit(offsets=offsets, asynchronous=True)

    def _run(self) -> None:
        try:
            while self.is_running:
                message = self._consumer.poll(0.1)
                self._commit()
                if message is None:
                    continue
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                self.read[message.partition(), message.offset()] += 1
                self.timestamps.append(message.timestamp()[1])
                self._uncommitted[message.partition()] = TopicPartition(
                    message.topic(), message.partition(), message.offset() + 1
                )
        except KafkaException as error:
            self._failure = error

    def stop(self, *, leave: bool = True) -> None:
        """Poll no more; raise what went wrong before."""
        self.is_running = False
        self._thread.join(_JOIN_SECONDS)
        if leave:
            self._consumer.close()
        if self._failure is not None:
            raise self._failure


def is_shared_out(*members: Member) -> bool:
    """Whether the members own every partition once, and none is without."""
    owners = [partition for member in members for partition in member.owned]
    return sorted(owners) == list(range(PARTITIONS)) and all(member.owned for member in members)


def fill(bootstrap: str, topic: str, count: int) -> None:
    """Write so many records, numbered, in turn to each partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for i in range(count):
        producer.produce(topic, b"%d" % i, partition=i % PARTITIONS)
    assert producer.flush(_FLUSH_SECONDS) == 0


_PROCESS = """
import sys
from confluent_kafka import Consumer
bootstrap, group, topic, session_ms, instance_id = sys.argv[1:]
settings = {"group.instance.id": instance_id} if instance_id else {}
consumer = Consumer({
    "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
    "session.timeout.ms": int(session_ms), "heartbeat.interval.ms": 500, **settings,
})
consumer.subscribe([topic], on_assign=lambda _, parts: print("assigned", len(parts), flush=True))
while True:
    consumer.poll(0.2)
"""


def start_member(
    log: Path, bootstrap: str, group: str, topic: str, *, session_ms: int, instance_id: str = ""
) -> ManagedProcess:
    """Start a librdkafka member as a process, which logs how many partitions it is assigned."""
    arguments = [bootstrap, group, topic, str(session_ms), instance_id]
    return ManagedProcess([sys.executable, "-c", _PROCESS, *arguments], log)
