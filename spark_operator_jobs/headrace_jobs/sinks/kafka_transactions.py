"""Writes results to a topic, exactly once: one transaction has a batch's records and offsets.

There is one writer, in the driver, for the job's whole life. Transactions of several executors do
not commit together, and every reader would have to know a marker that joined them. One
transaction's commit is a decision of the broker, which every read_committed consumer follows. The
price is the throughput of one producer: the results of a batch pass through the driver.

The transactional id belongs to (job, generation, topic). The process that initialises it is the
driver: the broker fences the previous one. The transaction commits, for a group with that name, a
marker (an offset of the output topic's partition 0 with the progress as metadata) and the batch's
end offsets; in the job's last sink also the end offsets for the job's own group. A driver that only
takes its epoch leaves that group alone: a reset noted there may still be refused. A new driver
reads them back, so the outcome of a commit is never guessed: initialising ends a pending
transaction, and then the group shows it.

A group without members loses its offsets after `offsets.retention.minutes` (a week): a job that was
down for longer finds no progress, and needs `--adopt-checkpoint`.
"""

from __future__ import annotations

import json
import queue
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace_jobs.progress.offsets import TopicPartition
from headrace_jobs.progress.stored import NO_BATCH, FencedError, StoredProgress, Verdict, judge
from headrace_jobs.sinks.kafka_pieces import arrow_batches
from headrace_jobs.sinks.protocol import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

    from headrace_jobs.progress.stored import Batch
    from headrace_jobs.sinks.protocol import Run

__all__ = ["RECORD_BYTES_MAX", "TransactionalWriter"]

#: Kafka's default of `max.message.bytes`.
RECORD_BYTES_MAX = 1_048_588

_TIMEOUT_SECONDS = 60.0
# Longer than sending a batch's records takes: the broker ends an older transaction.
_TRANSACTION_TIMEOUT_MS = 300_000
# This long after its own timeout, a call of librdkafka counts as one that never returns.
_GRACE_SECONDS = 10.0
_POLL_RECORDS = 10_000
# Beside the driver's JVM; the client's own 1 GiB is more than a driver's pod has.
_QUEUE_KIB = 65_536
_COMMIT_ATTEMPTS = 5


class TransactionalWriter:
    """A topic that is open for one driver."""

    keeps_progress = True
    can_rewind = False

    def __init__(
        self,
        run: Run,
        topic: str,
        as_records: Callable[[DataFrame], DataFrame],
        *,
        record_bytes_max: int = RECORD_BYTES_MAX,
    ) -> None:
        """Fence the previous driver, and read what it committed. Raises `SinkError`.

        `as_records` turns results into `key, value`; `record_bytes_max` is the topic's
        `max.message.bytes`.
        """
        self._record_bytes_max = record_bytes_max
        self._topic = topic
        self._as_records = as_records
        self._group = run.group
        self._identity = f"headrace.{run.job}.{run.generation}.{topic}"
        self._servers = {"bootstrap.servers": run.bootstrap_servers}
        self._inputs = run.input_topics
        self._producer: Any = None
        self._stored = StoredProgress(epoch=0)
        self._epoch = 0
        self._begin()
        self._claim()

    @property
    def stored(self) -> StoredProgress:
        """The progress that the group had when it was read."""
        return self._stored

    def describe(self) -> str:
        """Return what it is, for messages."""
        return f"topic {self._topic}"

    def rewind(self, progress: StoredProgress) -> None:
        """Store where the next batch must start."""
        self._transact(progress, (), moves_group=False)

    def unfit(self, frame: DataFrame) -> Column | None:  # noqa: ARG002 - every sink's shape
        """Return None: a record's key and value are bytes."""
        return None

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """Write a batch. Raises `FencedError`, `GapError`, `SinkError`."""
        if judge(self._stored, self._epoch, batch) is Verdict.SKIP:
            return
        # As bytes: Arrow refuses a text that is not UTF-8.
        records = self._as_records(frame).selectExpr(
            "CAST(key AS BINARY) AS key", "CAST(value AS BINARY) AS value"
        )
        after = self._stored.after(batch)
        try:
            self._transact(after, arrow_batches(records))
        except _InDoubtError:
            # Whoever initialises fences the one before, which may be this driver's successor.
            self._refuse_replaced(self._looked_up())
            # Initialising ends the transaction, one way or the other; the group then shows which.
            self._begin()
            self._refuse_replaced(self._stored)
            if judge(self._stored, self._epoch, batch) is Verdict.APPLY:
                self._transact(after, arrow_batches(records))

    def close(self) -> None:
        """Close the connections. The next driver ends an open transaction."""
        self._producer = None

    def _begin(self) -> None:
        """Initialise the transactional id, then read the progress."""
        try:
            from confluent_kafka import KafkaException, Producer
        except ImportError as error:
            raise SinkError(
                "exactly once into a topic needs confluent-kafka: pip install 'headrace[sinks]'"
            ) from error
        settings = {
            "transactional.id": self._identity,
            "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS,
            "linger.ms": 20,
            # Of a record and of a batch: librdkafka splits no batch that the topic refuses.
            "message.max.bytes": min(max(self._record_bytes_max, 1_000), 1_000_000_000),
            # Room for two records of any size: a queue without it would be full for ever.
            "queue.buffering.max.kbytes": min(
                max(_QUEUE_KIB, self._record_bytes_max // 512 + 1), 2_147_483_647
            ),
            # Uncompressed, as with at least once: every client can read it, while some need a
            # package for lz4. The topic's `compression.type` decides how it is stored.
            # The partitioner of Kafka's own clients, and of Spark's sink.
            "partitioner": "murmur2_random",
        }
        self._producer = Producer(self._servers | settings)
        try:
            self._producer.init_transactions(_TIMEOUT_SECONDS)
            self._stored = self._read()
        except KafkaException as error:
            raise SinkError(f"{self.describe()} takes no transactions: {error}") from error

    def _looked_up(self) -> StoredProgress:
        """Read the progress beside a transaction that is pending. Raises `SinkError`."""
        from confluent_kafka import KafkaException

        try:
            # Otherwise the answer would wait for that transaction's end.
            return self._read("read_uncommitted")
        except KafkaException as error:
            raise SinkError(f"{self.describe()}: {error}") from error

    def _refuse_replaced(self, stored: StoredProgress) -> None:
        if stored.epoch != self._epoch:
            raise FencedError(f"another driver has epoch {stored.epoch}") from None

    def _read(self, isolation_level: str = "read_committed") -> StoredProgress:
        """Read the progress. Raises `SinkError`, and `KafkaException` where it is not known now."""
        from confluent_kafka import Consumer, KafkaException
        from confluent_kafka import TopicPartition as Place

        consumer = Consumer(
            self._servers
            | {
                "group.id": self._identity,
                "enable.auto.commit": False,
                "isolation.level": isolation_level,
            }
        )
        try:
            metadata = consumer.list_topics(timeout=_TIMEOUT_SECONDS)
            places = [Place(self._topic, 0)]
            for topic in self._inputs:
                known = metadata.topics.get(topic)
                # A topic without partitions would be read from its beginning when it has them.
                if known is None or known.error is not None:
                    said = "Unknown topic or partition" if known is None else known.error.str()
                    raise SinkError(f"the progress of {topic} cannot be read: {said}")
                places += [Place(topic, index) for index in known.partitions]
            found = consumer.committed(places, timeout=_TIMEOUT_SECONDS)
            for place in found:
                if place.error is not None:
                    raise KafkaException(place.error)
        finally:
            consumer.close()
        marker, *inputs = found
        if marker.offset < 0:
            return StoredProgress(epoch=0)
        try:
            noted: dict[str, Any] = json.loads(marker.metadata or "")
            return StoredProgress(
                epoch=int(noted["epoch"]),
                batch_id=int(noted["batch"]),
                checkpoint=str(noted["checkpoint"]),
                reset=str(noted["reset"]),
                offsets={
                    TopicPartition(at.topic, at.partition): at.offset
                    for at in inputs
                    if at.offset >= 0
                },
                topics={at.topic: at.metadata for at in inputs if at.offset >= 0 and at.metadata},
            )
        except (TypeError, KeyError, ValueError) as error:
            raise SinkError(
                f"group {self._identity} is not a job's progress: {marker.metadata!r}"
            ) from error

    def _claim(self) -> None:
        claimed = replace(self._stored, epoch=self._stored.epoch + 1)
        self._epoch = claimed.epoch
        try:
            self._transact(claimed, (), moves_group=False)
        except _InDoubtError as error:
            raise SinkError(f"{self.describe()}: {error}") from error

    def _transact(
        self, progress: StoredProgress, batches: Any, *, moves_group: bool = True
    ) -> None:
        """Commit records and progress. Raises `FencedError`, `_InDoubtError`, `SinkError`."""
        from confluent_kafka import KafkaError, KafkaException

        try:
            self._producer.begin_transaction()
            self._produce(batches)
            self._send_offsets(progress, moves_group=moves_group)
            self._commit()
        except KafkaException as error:
            reason = error.args[0]
            if reason.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                raise SinkError(
                    f"{self.describe()} does not take a record of this batch, which has more than"
                    f" its max.message.bytes ({self._record_bytes_max}): raise that; the next"
                    " driver writes the batch"
                ) from error
            if reason.fatal():
                raise FencedError(
                    f"another driver writes to {self._topic} ({reason}): this one is fenced"
                ) from error
            raise _InDoubtError(str(reason)) from error
        self._stored = progress

    def _produce(self, batches: Any) -> None:
        for batch in batches:
            keys, values = (batch.column(name).to_pylist() for name in ("key", "value"))
            for index, (key, value) in enumerate(zip(keys, values, strict=True)):
                while True:
                    try:
                        self._producer.produce(self._topic, value, key)
                    except BufferError:
                        self._producer.poll(0.5)
                    else:
                        break
                if index % _POLL_RECORDS == 0:
                    self._producer.poll(0)

    def _send_offsets(self, progress: StoredProgress, *, moves_group: bool) -> None:
        from confluent_kafka import Consumer
        from confluent_kafka import TopicPartition as Place

        noted = {
            "epoch": progress.epoch,
            "batch": progress.batch_id,
            "checkpoint": progress.checkpoint,
            "reset": progress.reset,
        }
        marker = Place(self._topic, 0, progress.batch_id - NO_BATCH, json.dumps(noted))
        # The topic's id is with each of its offsets: all in one would be too long for a metadata.
        noted_ends = [
            Place(at.topic, at.partition, end, progress.topics.get(at.topic, ""))
            for at, end in progress.offsets.items()
        ]
        groups = [(self._identity, [marker, *noted_ends])]
        ends = [Place(at.topic, at.partition, end) for at, end in progress.offsets.items()]
        if self._group is not None and moves_group and ends:
            groups.append((self._group, ends))
        for group, offsets in groups:
            # The group has no members: the metadata has no generation.
            consumer = Consumer(self._servers | {"group.id": group})
            try:
                members = consumer.consumer_group_metadata()
            finally:
                consumer.close()
            _within_its_time(
                self._producer.send_offsets_to_transaction, offsets, members, _TIMEOUT_SECONDS
            )

    def _commit(self) -> None:
        from confluent_kafka import KafkaException

        for attempt in range(_COMMIT_ATTEMPTS):
            try:
                _within_its_time(self._producer.commit_transaction, _TIMEOUT_SECONDS)
            except KafkaException as error:
                if not error.args[0].retriable() or attempt == _COMMIT_ATTEMPTS - 1:
                    raise
            else:
                return


class _InDoubtError(SinkError):
    """It is unknown whether the transaction was committed."""


def _within_its_time(call: Callable[..., Any], *arguments: Any) -> None:
    """Call a function whose last argument is a timeout in seconds. Raises what it raises.

    Raises `_InDoubtError` if the timeout passes without an answer: librdkafka 2.16 waits forever in
    `send_offsets_to_transaction` if the group's coordinator was killed and came back. The thread
    stays with its producer, which the next producer's initialisation fences.
    """
    outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            call(*arguments)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            outcome.put(error)
        else:
            outcome.put(None)

    threading.Thread(target=run, name="transaction", daemon=True).start()
    try:
        error = outcome.get(timeout=arguments[-1] + _GRACE_SECONDS)
    except queue.Empty:
        raise _InDoubtError("the client does not return from a call that is over time") from None
    if error is not None:
        raise error
