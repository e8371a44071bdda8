"""Transactions for an administrator (KIP-664): listing, finding hanging ones, aborting them.

A transaction hangs in a partition if it is open there but its coordinator does not know that: no
timeout will ever end it, and read_committed consumers wait there forever. Clients from before
transaction.version 2 could leave such transactions. Blocking; the requests are kafka-python's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

__all__ = [
    "HANGING_AFTER_MS",
    "OpenTransaction",
    "Partition",
    "find_hanging",
    "hanging_among",
    "is_known_to_coordinator",
    "mark_aborted",
    "open_transactions",
]

Partition = tuple[str, int]
#: As in Kafka's tool: the default of transaction.max.timeout.ms.
HANGING_AFTER_MS = 900_000


@dataclass(frozen=True, kw_only=True)
class OpenTransaction:
    """A transaction that is open in a partition, according to the partition's leader.

    `coordinator_epoch` is -1 if the producer has no marker there yet.
    """

    partition: Partition
    start_offset: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp_ms: int


def find_hanging(
    admin: Any, *, now_ms: int, topic: str | None = None, after_ms: int = HANGING_AFTER_MS
) -> list[OpenTransaction]:
    """Return transactions that are open for more than `after_ms` and unknown to their coordinator.

    In one topic, or in all. Raises `kafka.errors.KafkaError`.
    """
    names = None if topic is None else [topic]
    partitions = [
        (str(each["name"]), int(partition["partition_index"]))
        for each in admin.describe_topics(names)
        for partition in each["partitions"]
    ]
    found = open_transactions(admin, partitions)
    suspects = [each for each in found if now_ms - each.last_timestamp_ms > after_ms]
    return hanging_among(suspects, _known_partitions(admin, {s.producer_id for s in suspects}))


def open_transactions(admin: Any, partitions: Iterable[Partition]) -> list[OpenTransaction]:
    """Ask the leaders of partitions for their open transactions; sorted.

    Raises `kafka.errors.KafkaError`, also if a partition does not exist.
    """
    from kafka import TopicPartition

    answers = admin.describe_producers([TopicPartition(*each) for each in partitions])
    return sorted(
        (
            OpenTransaction(
                partition=(partition.topic, partition.partition),
                start_offset=producer.current_transaction_start_offset,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                coordinator_epoch=producer.coordinator_epoch,
                last_timestamp_ms=producer.last_timestamp,
            )
            for partition, answer in answers.items()
            for producer in answer.active_producers
            if producer.current_transaction_start_offset >= 0
        ),
        key=lambda each: (each.partition, each.start_offset),
    )


def hanging_among(
    suspects: Iterable[OpenTransaction], known: Mapping[int, Collection[Partition]]
) -> list[OpenTransaction]:
    """Keep those whose partition is not in their coordinator's transaction.

    `known`: of each producer id that a coordinator knows, the partitions of its transaction.
    """
    return [each for each in suspects if each.partition not in known.get(each.producer_id, ())]


def is_known_to_coordinator(admin: Any, transaction: OpenTransaction) -> bool:
    """Whether its coordinator will end it. Raises `kafka.errors.KafkaError`."""
    known = _known_partitions(admin, {transaction.producer_id})
    return not hanging_among([transaction], known)


def _known_partitions(admin: Any, producer_ids: set[int]) -> dict[int, set[Partition]]:
    if not producer_ids:
        return {}
    listed = admin.list_transactions(producer_id_filters=sorted(producer_ids))
    names = {each.transactional_id for listings in listed.values() for each in listings}
    return {
        each.producer_id: {(p.topic, p.partition) for p in each.topic_partitions}
        for each in admin.describe_transactions(sorted(names)).values()
    }


def mark_aborted(admin: Any, transaction: OpenTransaction) -> None:
    """Write an abort marker without the coordinator. Raises `kafka.errors.KafkaError`."""
    from kafka import TopicPartition
    from kafka.admin import AbortTransactionSpec

    # As in Kafka's tool: a partition without a marker of this producer gets epoch 0.
    spec = AbortTransactionSpec(
        TopicPartition(*transaction.partition),
        transaction.producer_id,
        transaction.producer_epoch,
        max(0, transaction.coordinator_epoch),
    )
    admin.abort_transaction(spec)
