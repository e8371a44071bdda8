"""Producers and readers under faults, and the history of what they saw."""

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from faults.checker import History, Outcome, Read, Send, check
from support.clusters import Cluster, ClusterNode
from support.evidence import describe_batches
from support.processes import wait_until
from support.streams import FAST_CLIENT, ConsumerStream, ProducerStream, Sent, read_partition

_CREATE_SECONDS = 30
_AROUND = 20


def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int,
    factor: int = 3,
    *,
    through: ClusterNode | None = None,
    assignment: list[list[int]] | None = None,
    **config: str,
) -> None:
    """Create a topic and wait until every replica is in sync; keys are `min_insync_replicas`."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    bootstrap = cluster.bootstrap if through is None else through.bootstrap
    placed: dict[str, Any] = (
        {"replication_factor": factor} if assignment is None else {"replica_assignment": assignment}
    )
    topic = NewTopic(name, partitions, config=settings, **placed)
    deadline = time.monotonic() + _CREATE_SECONDS
    while True:
        # A new client each time: one that knows a controller which is cut off asks no other.
        admin = AdminClient({**FAST_CLIENT, "bootstrap.servers": bootstrap})
        try:
            admin.create_topics([topic], request_timeout=5)[name].result(10)
            break
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                break  # the answer to an attempt that was made
            if time.monotonic() > deadline:
                raise
    cluster.wait_in_sync(name)


class Workload:
    """Two idempotent producers and a reader on every partition of a topic of its own."""

    def __init__(
        self, cluster: Cluster, topic: str, *, partitions: int = 3, producers: int = 2
    ) -> None:
        self.cluster, self.topic = cluster, topic
        numbers = range(partitions)
        self.partitions: Sequence[int] = numbers
        self.producers = [
            ProducerStream(cluster.bootstrap, topic, numbers, number=number)
            for number in range(1, producers + 1)
        ]
        self.reader = ConsumerStream(cluster.bootstrap, topic, numbers)
        self._end = ExitStack()

    def __enter__(self) -> Self:
        for stream in (*self.producers, self.reader):
            self._end.enter_context(stream)
        self.progress()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()

    def progress(self, count: int = 100, seconds: float = 60) -> None:
        """Wait until every producer got `count` more acknowledgements."""
        for producer in self.producers:
            producer.wait_acknowledged(count, seconds)

    def progress_everywhere(self, seconds: float = 60) -> None:
        """Wait until every producer got something acknowledged in every partition, from now on."""
        began = time.monotonic()
        for producer in self.producers:
            wait_until(
                lambda producer=producer: (
                    producer.acknowledged_since(began) >= set(self.partitions)
                ),
                seconds,
                f"an acknowledgement in each partition of producer {producer.number}'s",
            )

    def longest_gap(self, since: float) -> float:
        return max(producer.longest_gap(since) for producer in self.producers)

    @property
    def failures(self) -> list[str]:
        return [failure for producer in self.producers for failure in producer.failures]

    def history(self) -> History:
        """Stop, let the reader catch up, read everything once more from the start."""
        for producer in self.producers:
            producer.stop()
        final = {
            number: read_partition(self.cluster.bootstrap, self.topic, number)
            for number in self.partitions
        }
        with suppress(TimeoutError):
            wait_until(lambda: self._has_caught_up(final), 10)
        while self.reader.replace_if_locked():
            with suppress(TimeoutError):
                wait_until(lambda: self._has_caught_up(final), 60)
        return History(
            sends=[
                _send(producer.number, sent)
                for producer in self.producers
                for sent in producer.sent
            ],
            polls={("reader", place): _reads(reads) for place, reads in self.reader.reads.items()},
            final={place: _reads(reads) for place, reads in final.items()},
        )

    def _has_caught_up(self, final: dict[int, list[tuple[int, int]]]) -> bool:
        return all(
            not reads or (self.reader.reads[place] and self.reader.reads[place][-1] >= reads[-1])
            for place, reads in final.items()
        )

    def assert_nothing_is_lost(self) -> None:
        """End the workload and judge its history."""
        history = self.history()
        unanswered = [producer.unanswered for producer in self.producers]
        where = self.cluster.partitions(self.topic)
        assert not any(unanswered), f"{unanswered} writes hang: {where}"
        violations = check(history)
        shown = "\n".join(map(str, violations[:20]))
        assert not violations, f"{len(violations)} violations:\n{shown}\n{self._batches(history)}"
        assert self.reader.errors == []
        for place, reads in history.final.items():
            assert len(history.polls["reader", place]) == len(reads), "the reader stopped early"

    def _batches(self, history: History) -> str:
        """Describe the batches around the first records that are there twice."""
        described = []
        for place, reads in history.final.items():
            seen: dict[object, int] = {}
            twice = [
                (seen[read.value], read.offset)
                for read in reads
                if seen.setdefault(read.value, read.offset) != read.offset
            ]
            for first, last in twice[:1]:
                lines = describe_batches(
                    self.cluster.bootstrap, self.topic, place, first - _AROUND, last + _AROUND
                )
                described.append(f"partition {place}, where {first} and {last} are one:\n{lines}")
        return "\n".join(described)


def _reads(reads: list[tuple[int, int]]) -> list[Read]:
    return [Read(offset, value) for offset, value in reads]


def _send(producer: int, sent: Sent) -> Send:
    outcome = Outcome.ACKNOWLEDGED if sent.is_acknowledged else Outcome.UNKNOWN
    return Send(
        producer=producer,
        partition=sent.partition,
        value=sent.value,
        outcome=Outcome.FAILED if sent.is_never_written else outcome,
        offset=sent.offset,
    )
