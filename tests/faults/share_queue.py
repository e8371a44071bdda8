"""A queue: a share group's members work off what a producer sends, whatever fails (KIP-932).

Each number that was acknowledged as sent must end as accepted, rejected, or delivered as often as
the group allows; one whose ACCEPT or REJECT was answered with success is never delivered again.
Clients are librdkafka's.
"""

import random
import threading
import time
from typing import Any, Self

from confluent_kafka import AcknowledgeType, KafkaException, Producer, ShareConsumer

from support.streams import FAST_CLIENT, FAST_PRODUCER

PARTITIONS = 3
DELIVERIES_MAX = 10
LOCK_MS = 2_000
_WORKERS = 3
_RECORDS_PER_SECOND = 100
_COMMIT_SECONDS = 20.0


class Ledger:
    """What members said and heard of each number; all methods from any thread."""

    def __init__(self) -> None:
        self.said: set[int] = set()
        """ACCEPT or REJECT was sent; its outcome may be unknown."""
        self.done: dict[int, float] = {}
        """When ACCEPT or REJECT was answered with success."""
        self.exhausted: set[int] = set()
        """It was delivered as often as may be."""
        self.again: list[tuple[int, float, float]] = []
        """Delivered after it was done: number, when that was, when the poll began."""
        self._lock = threading.Lock()

    def delivered(self, message: Any, began_at: float) -> int:
        """Take a delivery; return its number."""
        number = int(message.value())
        with self._lock:
            done_at = self.done.get(number)
            if done_at is not None and done_at < began_at:
                self.again.append((number, done_at, began_at))
            if (message.delivery_count() or 0) >= DELIVERIES_MAX:
                self.exhausted.add(number)
        return number

    def says(self, number: int) -> None:
        """Note that ACCEPT or REJECT is about to be sent."""
        with self._lock:
            self.said.add(number)

    def heard(self, numbers: list[int]) -> None:
        """Note that ACCEPT or REJECT was answered with success."""
        now = time.monotonic()
        with self._lock:
            for number in numbers:
                self.done.setdefault(number, now)

    def is_over(self, number: int) -> bool:
        """Whether nothing more is to come of it."""
        return number in self.said or number in self.exhausted


class _Sender:
    """Sends numbers, one after the other."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: set[int] = set()
        self._bootstrap, self._topic = bootstrap, topic

    def run(self, stopping: threading.Event) -> None:
        producer = Producer({**FAST_PRODUCER, "bootstrap.servers": self._bootstrap})
        number = 0

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged.add(int(message.value()))

        while not stopping.wait(1 / _RECORDS_PER_SECOND):
            producer.produce(
                self._topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=delivered
            )
            number += 1
            producer.poll(0)
        producer.flush(120)


class _Worker:
    """Accepts most, releases and rejects some, is slow at times, and comes back as another."""

    def __init__(self, bootstrap: str, topic: str, ledger: Ledger, rng: random.Random) -> None:
        self.accepts_all = False
        self.lives = 0
        self._bootstrap, self._topic, self._ledger = bootstrap, topic, ledger
        self._rng = rng

    def run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self.lives += 1
            consumer = ShareConsumer(
                {
                    **FAST_CLIENT,
                    "bootstrap.servers": self._bootstrap,
                    "group.id": f"{self._topic}-workers",
                    "share.acknowledgement.mode": "explicit",
                }
            )
            consumer.subscribe([self._topic])
            try:
                while not stopping.is_set() and (self.accepts_all or self._rng.random() > 0.01):
                    self._work(consumer)
            except KafkaException:
                time.sleep(0.1)
            finally:
                consumer.close()

    def _work(self, consumer: ShareConsumer) -> None:
        began_at = time.monotonic()
        messages = [each for each in consumer.poll(0.5) if each.error() is None]
        if not messages:
            return
        ended: dict[int, list[int]] = {}
        numbers = [self._ledger.delivered(message, began_at) for message in messages]
        if not self.accepts_all and self._rng.random() < 0.03:
            time.sleep(LOCK_MS / 1000 * 1.2)  # beyond its locks
        for message, number in zip(messages, numbers, strict=True):
            kind = self._choose()
            if kind is not AcknowledgeType.RELEASE:
                self._ledger.says(number)
                ended.setdefault(message.partition(), []).append(number)
            consumer.acknowledge(message, kind)
        outcomes = consumer.commit_sync(_COMMIT_SECONDS)
        for where, error in outcomes.items():
            if error is None:
                self._ledger.heard(ended.get(where.partition, []))

    def _choose(self) -> AcknowledgeType:
        drawn = self._rng.random()
        if self.accepts_all or drawn < 0.85:
            return AcknowledgeType.ACCEPT
        return AcknowledgeType.RELEASE if drawn < 0.95 else AcknowledgeType.REJECT


class Queue:
    """The sender and the workers of one topic; a context manager."""

    def __init__(self, bootstrap: str, topic: str, rng: random.Random) -> None:
        self.ledger = Ledger()
        self.errors: list[BaseException] = []
        self._sender = _Sender(bootstrap, topic)
        self._workers = [
            _Worker(bootstrap, topic, self.ledger, random.Random(rng.random()))
            for _ in range(_WORKERS)
        ]
        self._sending, self._working = threading.Event(), threading.Event()
        self._threads = [
            self._thread(self._sender.run, self._sending),
            *(self._thread(worker.run, self._working) for worker in self._workers),
        ]

    def _thread(self, run: Any, stopping: threading.Event) -> threading.Thread:
        def guarded() -> None:
            try:
                run(stopping)
            except BaseException as error:  # noqa: BLE001 - the test's own thread shows it
                self.errors.append(error)

        return threading.Thread(target=guarded, daemon=True)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sending.set()
        self._working.set()
        for thread in self._threads:
            thread.join(120)

    def __str__(self) -> str:
        ledger = self.ledger
        return (
            f"{len(self._sender.acknowledged)} sent, {len(ledger.said)} said, "
            f"{len(ledger.done)} done, {len(ledger.exhausted)} exhausted, "
            f"lives {[worker.lives for worker in self._workers]}"
        )

    def wait_progress(self, records: int, seconds: float = 120) -> None:
        """Wait until so many more records are done."""
        wanted = len(self.ledger.done) + records
        deadline = time.monotonic() + seconds
        while len(self.ledger.done) < wanted:
            assert not self.errors, self.errors
            assert time.monotonic() < deadline, f"not {wanted} are done: {self}"
            time.sleep(0.1)

    def assert_worked_off(self, seconds: float = 150) -> None:
        """Send no more, accept all that is left, and judge."""
        self._sending.set()
        self._threads[0].join(130)
        for worker in self._workers:
            worker.accepts_all = True
        deadline = time.monotonic() + seconds
        while left := [it for it in self._sender.acknowledged if not self.ledger.is_over(it)]:
            assert not self.errors, self.errors
            assert time.monotonic() < deadline, f"never delivered: {sorted(left)[:10]}; {self}"
            time.sleep(0.1)
        self._working.set()
        for thread in self._threads:
            thread.join(120)
        assert not self.errors, self.errors
        assert len(self.ledger.done) > len(self._sender.acknowledged) / 2, str(self)
