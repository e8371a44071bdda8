"""AddPartitionsToTxn and AddOffsetsToTxn: the partitions of a transaction, and their verification.

A partition's leader asks before the first record of a transaction (KIP-890): to add the partition
for the producer (Produce 12), or to verify that the producer added it itself.
"""

from collections.abc import Collection

from headrace_broker.coordinator.transactions.shard import (
    Circumstances,
    TransactionDecision,
    TransactionShard,
    check_transactional_id,
    concurrent_transactions,
    fenced,
    record_of,
    wrong_producer,
)
from headrace_broker.coordinator.transactions.states import TransactionStatus
from headrace_broker.coordinator.transactions.transaction import (
    Identity,
    TopicPartition,
    Transaction,
    TransactionVersion,
)
from headrace_broker.protocol.errors import ErrorCode


def decide_add(
    shard: TransactionShard,
    transactional_id: str,
    identity: Identity,
    partitions: Collection[TopicPartition],
    circumstances: Circumstances,
    client_version: TransactionVersion,
) -> TransactionDecision[None]:
    """Add partitions; the first ones begin the transaction. Known ones cost no record."""
    check_transactional_id(transactional_id)
    found = shard.find(transactional_id)
    # First: the pending record may contain the very epoch or id that the producer has
    # (KAFKA-18575).
    shard.check_not_pending(transactional_id)
    _check_identity(found, identity)
    if found.status.is_prepared:
        raise concurrent_transactions()
    if found.status is TransactionStatus.ONGOING and found.partitions.issuperset(partitions):
        return TransactionDecision(response=None)
    following = found.add(partitions, circumstances.now_ms, client_version)
    return TransactionDecision(response=None, record=record_of(following))


def verify(
    shard: TransactionShard,
    transactional_id: str,
    identity: Identity,
    partitions: Collection[TopicPartition],
) -> dict[TopicPartition, ErrorCode]:
    """Return for each partition whether it is in the open transaction: NONE or ABORTABLE.

    A pending transition is ignored: its marker will cancel the verification.
    """
    check_transactional_id(transactional_id)
    found = shard.find(transactional_id)
    _check_identity(found, identity)
    if found.status.is_prepared:
        raise concurrent_transactions()
    return {
        where: ErrorCode.NONE if where in found.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for where in partitions
    }


def _check_identity(found: Transaction, identity: Identity) -> None:
    if identity.producer_id != found.producer_id:
        raise wrong_producer(found)
    if identity.epoch != found.epoch:
        raise fenced(found)
