"""A bank: transfers are booked exactly once by transactions of librdkafka's, whatever fails.

Orders to transfer money are read from one topic; tellers book two entries for each, in the
accounts' partitions of another, and move their group's offsets in the same transaction. A reader
of what is committed must find a balance of nothing, and each order that was acknowledged booked
once, both halves.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from support.streams import FAST_CLIENT, FAST_PRODUCER

ACCOUNTS = 12
PARTITIONS = 3
_TELLERS = 2
_ORDERS_PER_SECOND = 100
_BATCH = 40
_TIMEOUT = 30
_READ_COMMITTED = {
    **FAST_CLIENT,
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
}

Entry = tuple[int, int, int]
"""An order's number, the account, and what it gets."""


def entries_of(order: int) -> tuple[Entry, Entry]:
    """Return what an order books: from one account to another."""
    payer, payee = order % ACCOUNTS, (order * 7 + 5) % ACCOUNTS
    amount = 1 + order % 97
    return (order, payer, -amount), (order, payee, amount)


def encode(entry: Entry) -> bytes:
    return b"%d %d %d" % entry


def decode(value: bytes) -> Entry:
    order, account, amount = map(int, value.split())
    return order, account, amount


class _Thread:
    """A client that goes on until it is stopped; its errors are kept."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.errors: list[BaseException] = []
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the test's own thread shows it
            self.errors.append(error)

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(120)


class _Customer(_Thread):
    """Sends orders, each with the next number."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(self._send)
        self.acknowledged: set[int] = set()
        self.sent = 0
        self._bootstrap, self._topic = bootstrap, topic

    def _send(self) -> None:
        producer = Producer({**FAST_PRODUCER, "bootstrap.servers": self._bootstrap})

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged.add(int(message.value()))

        while not self.stopping.wait(1 / _ORDERS_PER_SECOND):
            producer.produce(
                self._topic,
                b"%d" % self.sent,
                partition=self.sent % PARTITIONS,
                on_delivery=delivered,
            )
            self.sent += 1
            producer.poll(0)
        producer.flush(120)


class _Teller(_Thread):
    """Books orders in transactions; after a fatal error it starts over."""

    def __init__(self, bootstrap: str, orders: str, entries: str, number: int) -> None:
        super().__init__(self._book)
        self.committed = self.aborted = self.lives = 0
        self._bootstrap, self._orders, self._entries = bootstrap, orders, entries
        self._number = number

    def _book(self) -> None:
        while not self.stopping.is_set():
            consumer = Consumer(
                {
                    **_READ_COMMITTED,
                    "bootstrap.servers": self._bootstrap,
                    "group.id": f"{self._orders}-tellers",
                    "session.timeout.ms": 6000,
                    "heartbeat.interval.ms": 500,
                }
            )
            try:
                self._live(consumer)
            except KafkaException:
                time.sleep(0.2)
            finally:
                consumer.close()

    def _live(self, consumer: Consumer) -> None:
        self.lives += 1
        producer = Producer(
            {
                **FAST_PRODUCER,
                "bootstrap.servers": self._bootstrap,
                "transactional.id": f"{self._orders}-teller-{self._number}",
                "transaction.timeout.ms": 10_000,
                "delivery.timeout.ms": 9_000,
            }
        )
        _retried(lambda: producer.init_transactions(_TIMEOUT))
        consumer.subscribe([self._orders])
        while not self.stopping.is_set():
            messages = [each for each in consumer.consume(_BATCH, 0.3) if each.error() is None]
            if messages and not self._transact(consumer, producer, messages):
                return  # what the group has committed tells where to go on

    def _transact(self, consumer: Consumer, producer: Producer, messages: list[Any]) -> bool:
        producer.begin_transaction()
        try:
            for message in messages:
                for entry in entries_of(int(message.value())):
                    producer.produce(self._entries, encode(entry), partition=entry[1] % PARTITIONS)
            ends: dict[int, int] = {}
            for message in messages:
                ends[message.partition()] = message.offset() + 1
            places = [TopicPartition(self._orders, number, end) for number, end in ends.items()]
            group = consumer.consumer_group_metadata()
            _retried(lambda: producer.send_offsets_to_transaction(places, group, _TIMEOUT))
            _retried(lambda: producer.commit_transaction(_TIMEOUT))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.aborted += 1
            _retried(lambda: producer.abort_transaction(_TIMEOUT))
            return False
        self.committed += 1
        return True


def _retried(call: Callable[[], None]) -> None:
    """Repeat a call while librdkafka says that it may be repeated."""
    while True:
        try:
            call()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return


class _Auditor(_Thread):
    """Reads what is committed, while it is being committed."""

    def __init__(self, bootstrap: str, entries: str) -> None:
        super().__init__(self._read)
        self.seen: dict[tuple[int, int], bytes] = {}
        self._bootstrap, self._entries = bootstrap, entries

    def _read(self) -> None:
        config = {**_READ_COMMITTED, "bootstrap.servers": self._bootstrap, "group.id": "auditor"}
        consumer = Consumer(config)
        consumer.assign([TopicPartition(self._entries, number, 0) for number in range(PARTITIONS)])
        while not self.stopping.is_set():
            for message in consumer.consume(1000, 0.2):
                if message.error() is None:
                    self.seen[message.partition(), message.offset()] = message.value()
        consumer.close()


class Bank:
    """The customer, the tellers and the auditor of two topics; a context manager."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.orders, self.entries = f"{topic}-orders", f"{topic}-entries"
        self._bootstrap = bootstrap
        self.customer = _Customer(bootstrap, self.orders)
        self.tellers = [
            _Teller(bootstrap, self.orders, self.entries, number) for number in range(_TELLERS)
        ]
        self.auditor = _Auditor(bootstrap, self.entries)

    def __enter__(self) -> Self:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.stopping.set()
        for client in self._clients:
            client.stop()

    @property
    def _clients(self) -> list[_Thread]:
        return [self.customer, *self.tellers, self.auditor]

    def wait_progress(self, transactions: int, seconds: float = 90) -> None:
        """Wait until so many more transactions are committed."""
        wanted = self._committed + transactions
        deadline = time.monotonic() + seconds
        while self._committed < wanted:
            self._check_clients()
            assert time.monotonic() < deadline, (
                f"{self._committed} transactions are committed, not {wanted}: {self}"
            )
            time.sleep(0.1)

    @property
    def _committed(self) -> int:
        return sum(teller.committed for teller in self.tellers)

    def __str__(self) -> str:
        lives = [(teller.lives, teller.committed, teller.aborted) for teller in self.tellers]
        return f"{len(self.customer.acknowledged)} orders; lives, commits, aborts: {lives}"

    def _check_clients(self) -> None:
        errors = [error for client in self._clients for error in client.errors]
        assert not errors, errors

    def assert_balanced(self, seconds: float = 120) -> None:
        """Send no more orders, wait until all are booked, and judge the books."""
        self.customer.stop()
        wanted = {entry for order in self.customer.acknowledged for entry in entries_of(order)}
        deadline = time.monotonic() + seconds
        while True:
            self._check_clients()
            with suppress(KafkaException):
                books = self._read_books()
                if wanted <= {decode(value) for value in books.values()}:
                    break
            assert time.monotonic() < deadline, f"not all is booked: {self}"
        for teller in self.tellers:
            teller.stop()
        self.auditor.stop()
        self._check_clients()
        booked = Counter(map(decode, self._read_books().values()))
        twice = [entry for entry, count in booked.items() if count > 1]
        assert not twice, f"booked twice: {twice[:10]}"
        assert wanted <= booked.keys()
        unknown = {order for order, _, _ in booked} - self.customer.acknowledged
        assert all(order < self.customer.sent for order in unknown)
        for order in unknown:  # not acknowledged, but there: both halves
            assert all(booked[entry] == 1 for entry in entries_of(order)), f"half of {order}"
        assert sum(amount for _, _, amount in booked) == 0
        strange = {
            place: value for place, value in self.auditor.seen.items() if books.get(place) != value
        }
        assert not strange, f"read while it was not committed: {list(strange.items())[:5]}"

    def _read_books(self) -> dict[tuple[int, int], bytes]:
        """Read all entries that are committed, to the end of each partition."""
        config = {**_READ_COMMITTED, "bootstrap.servers": self._bootstrap, "group.id": "books"}
        consumer = Consumer({**config, "enable.partition.eof": True})
        places = [TopicPartition(self.entries, number, 0) for number in range(PARTITIONS)]
        found: dict[tuple[int, int], bytes] = {}
        try:
            consumer.assign(places)
            at_end: set[int] = set()
            while len(at_end) < PARTITIONS:
                messages = consumer.consume(1000, 10)
                if not messages:
                    break
                for message in messages:
                    if message.error() is None:
                        found[message.partition(), message.offset()] = message.value()
                    else:
                        at_end.add(message.partition())
        finally:
            consumer.close()
        return found
