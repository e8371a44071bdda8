"""Clients that never stop: producers that remember what was acknowledged when, and readers.

They retry fast, so that what they wait for is the cluster and not themselves.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

_STREAM_STRIDE = 1_000_000_000  # producer n sends the values from n strides on
_CONSUME_SECONDS = 0.2
_READ_SECONDS = 30
# Longer than everything that a client waits for when it closes.
_CLOSE_SECONDS = 60

# A client that meets a dead or a silent broker tries the next thing within milliseconds. A request
# to a paused broker is given up after a second: librdkafka waits for it before it sends to the new
# leader, because an idempotent producer may not overtake itself.
FAST_CLIENT: dict[str, str | int | float | bool] = {
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 50,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "topic.metadata.refresh.fast.interval.ms": 10,
    "socket.timeout.ms": 1500,
    "socket.connection.setup.timeout.ms": 1000,
    "socket.nagle.disable": True,
    "log_level": 0,
}
FAST_PRODUCER = {
    **FAST_CLIENT,
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 0,
    "request.timeout.ms": 1000,
    "delivery.timeout.ms": 120_000,
}
_LEADER_MOVED = frozenset(
    {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError._TRANSPORT}
)
# The producer gave up before the record was sent at all, or a broker refused it for good.
_NEVER_WRITTEN = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.TOPIC_AUTHORIZATION_FAILED}
)


@dataclass(slots=True, kw_only=True)
class Sent:
    """A record that was handed to the producer, and what became of it."""

    partition: int
    value: int
    is_acknowledged: bool = False
    is_never_written: bool = False
    offset: int | None = None
    at_seconds: float = 0.0  # of the acknowledgement, on the monotonic clock
    error: str | None = None


class ProducerStream:
    """A thread that sends numbers to partitions in turn until it is stopped."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: Sequence[int],
        *,
        number: int = 1,
        interval_seconds: float = 0.002,
    ) -> None:
        self.number = number
        self.sent: list[Sent] = []
        self.unanswered = 0
        self._topic, self._partitions = topic, list(partitions)
        self._interval_seconds = interval_seconds
        self._producer = Producer({**FAST_PRODUCER, "bootstrap.servers": bootstrap})
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(flush_seconds=0.1)

    def stop(self, flush_seconds: float = 60) -> None:
        """Send nothing more and wait for what was sent; `unanswered` counts what was in vain."""
        self._is_stopping.set()
        self._thread.join()
        self.unanswered = self._producer.flush(flush_seconds)

    def _run(self) -> None:
        count = 0
        while not self._is_stopping.is_set():
            partition = self._partitions[count % len(self._partitions)]
            record = Sent(partition=partition, value=self.number * _STREAM_STRIDE + count)
            try:
                self._producer.produce(
                    self._topic,
                    b"%d" % record.value,
                    partition=partition,
                    on_delivery=partial(self._delivered, record),
                )
            except BufferError:
                self._producer.poll(0.05)
                continue
            self.sent.append(record)
            count += 1
            self._producer.poll(self._interval_seconds)

    @staticmethod
    def _delivered(record: Sent, error: KafkaError | None, message: Message) -> None:
        if error is None:
            record.is_acknowledged = True
            record.offset = message.offset()
            record.at_seconds = time.monotonic()
        else:
            record.is_never_written = error.code() in _NEVER_WRITTEN
            record.error = str(error)

    @property
    def failures(self) -> list[str]:
        """The errors of the records that the producer gave up."""
        return [record.error for record in self.sent if record.error is not None]

    @property
    def acknowledged_count(self) -> int:
        return sum(record.is_acknowledged for record in self.sent)

    def acknowledged_since(self, since: float) -> set[int]:
        """Return the partitions with acknowledgements since, on the monotonic clock."""
        return {record.partition for record in list(self.sent) if record.at_seconds > since}

    def last_acknowledged(self) -> float:
        """Return when the latest acknowledgement came, on the monotonic clock."""
        return max((record.at_seconds for record in self.sent), default=0.0)

    def wait_acknowledged(self, count: int, seconds: float = 60) -> None:
        """Wait for `count` more acknowledgements than there are."""
        wanted = self.acknowledged_count + count
        deadline = time.monotonic() + seconds
        while self.acknowledged_count < wanted:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{count} acknowledgements did not come within {seconds} s")
            time.sleep(0.02)

    def longest_gap(self, since: float, until: float | None = None) -> float:
        """Return the longest time without an acknowledgement in any one partition.

        Counted are gaps that end after `since`; one that lasts still ends at `until` (now).
        """
        end = until or time.monotonic()
        times: dict[int, list[float]] = defaultdict(list)
        for record in list(self.sent):
            if record.is_acknowledged:
                times[record.partition].append(record.at_seconds)
        longest = 0.0
        for partition in self._partitions:
            marks = [*sorted(times[partition]), end]
            before = since
            for mark in marks:
                if mark > since:
                    longest = max(longest, mark - before)
                before = mark
        return longest


def is_closed(consumer: Consumer) -> bool:
    """Close a consumer; return False if its own locks hold it for ever, and leave it behind then.

    librdkafka (2.16.0, issue 5476) locks itself out where a broker goes while it checks a leader's
    epoch: one of its threads has the client's lock and waits for a partition's, another the other
    way round. It reads and answers nothing any more, and does not close.
    """
    closing = threading.Thread(target=consumer.close, daemon=True)
    closing.start()
    closing.join(_CLOSE_SECONDS)
    return not closing.is_alive()


class Reader:
    """A thread that reads until it is stopped, with another client where one locks itself out."""

    def __init__(self) -> None:
        self.reads: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.errors: list[str] = []
        self.locked_out = 0
        """How many clients locked themselves out (`is_closed`)."""
        self._start()

    def _consumer_of_its_own(self) -> Consumer:
        """Return a client that reads on from where this reader is."""
        raise NotImplementedError

    def _start(self) -> None:
        self._consumer = self._consumer_of_its_own()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> bool:
        """Stop reading; return False if the client had locked itself out."""
        if self._is_stopping.is_set():
            return True
        self._is_stopping.set()
        self._thread.join()
        if is_closed(self._consumer):
            return True
        self.locked_out += 1
        return False

    def replace_if_locked(self) -> bool:
        """Go on with another client if this one has locked itself out, else stop."""
        if self.stop():
            return False
        self._start()
        self._thread.start()
        return True

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            self._take(self._consumer.consume(500, timeout=_CONSUME_SECONDS))

    def _take(self, messages: Sequence[Message]) -> None:
        for message in messages:
            error = message.error()
            if error is None:
                read = (message.offset(), int(message.value()))
                self.reads[message.partition()].append(read)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self.errors.append(str(error))


class ConsumerStream(Reader):
    """Reads assigned partitions from their start."""

    def __init__(self, bootstrap: str, topic: str, partitions: Sequence[int]) -> None:
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        super().__init__()

    def _consumer_of_its_own(self) -> Consumer:
        consumer = Consumer(
            {
                **FAST_CLIENT,
                "bootstrap.servers": self._bootstrap,
                "group.id": "streams",
                "enable.auto.commit": False,
                # A reader that is sent back to the start would hide what it lost.
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
            }
        )
        consumer.assign([self._place(number) for number in self._partitions])
        return consumer

    def _place(self, number: int) -> TopicPartition:
        reads = self.reads[number]
        return TopicPartition(self._topic, number, reads[-1][0] + 1 if reads else 0)


def read_partition(bootstrap: str, topic: str, partition: int) -> list[tuple[int, int]]:
    """Return offset and value of every record of a partition up to its high watermark."""
    settings = {**FAST_CLIENT, "bootstrap.servers": bootstrap, "group.id": "final"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "auto.offset.reset": "error"})
    try:
        place = TopicPartition(topic, partition, 0)
        deadline = time.monotonic() + _READ_SECONDS
        end = _end_offset(consumer, place, deadline)
        consumer.assign([place])
        found: list[tuple[int, int]] = []
        while (found[-1][0] + 1 if found else 0) < end:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}-{partition}: {len(found)} of {end} records came")
            for message in consumer.consume(10_000, timeout=1):
                if (error := message.error()) is None:
                    found.append((message.offset(), int(message.value())))
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise KafkaException(error)
        return found
    finally:
        consumer.close()


def _end_offset(consumer: Consumer, place: TopicPartition, deadline: float) -> int:
    """Return the high watermark; the leadership may move while it is asked for."""
    while True:
        try:
            return int(consumer.get_watermark_offsets(place, timeout=_READ_SECONDS)[1])
        except KafkaException as error:
            if not error.args[0].retriable() and error.args[0].code() not in _LEADER_MOVED:
                raise
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
