"""The records of `__transaction_state`, in Kafka's own format.

Key version 0. Value version 0, or 1 (flexible, with tagged fields) from `transaction.version` 1 on
and for a transaction that began with version 2: after a downgrade its end must still be known.
Kafka's `DumpLogSegments --transaction-log-decoder` reads these records.
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Final

from headrace_broker.coordinator.transactions.states import TransactionStatus
from headrace_broker.coordinator.transactions.transaction import Transaction, TransactionVersion
from headrace_broker.protocol.codec import decode
from headrace_broker.protocol.errors import DecodeError
from headrace_broker.protocol.messages.records.transaction_log import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from headrace_broker.protocol.records import (
    decode_record_type,
    decode_record_value,
    encode_record_key,
    encode_record_value,
)
from headrace_broker.protocol.types import Buffer, ProducerEpoch, ProducerId, TimestampMs

_KEY_TYPE: Final = 0
_TYPE_SIZE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord:
    """A transactional id's state, or its tombstone."""

    transactional_id: str
    transaction: Transaction | None


def write_record(
    record: TransactionRecord, version: TransactionVersion
) -> tuple[bytes, bytes | None]:
    """Return the record's key and value as bytes of the log, at a level of the feature."""
    key = encode_record_key(TransactionLogKey(transactional_id=record.transactional_id))
    found = record.transaction
    if found is None:
        return key, None
    value = TransactionLogValue(
        producer_id=found.producer_id,
        producer_epoch=found.epoch,
        transaction_timeout_ms=found.timeout_ms,
        transaction_status=found.status,
        transaction_partitions=_partitions(found),
        transaction_last_update_timestamp_ms=found.updated_ms,
        transaction_start_timestamp_ms=found.start_ms,
    )
    value_version = min(max(version, found.client_version), TransactionVersion.TV_1)
    if value_version >= TransactionVersion.TV_1:
        value.previous_producer_id = found.previous_producer_id
        value.next_producer_id = found.next_producer_id
        value.client_transaction_version = found.client_version
    return key, encode_record_value(value, value_version)


def _partitions(transaction: Transaction) -> list[PartitionsSchema] | None:
    if transaction.status is TransactionStatus.EMPTY:
        return None
    return [
        PartitionsSchema(topic=topic, partition_ids=[index for _, index in group])
        for topic, group in groupby(sorted(transaction.partitions), key=lambda item: item[0])
    ]


def read_record(key: Buffer, value: Buffer | None) -> TransactionRecord | None:
    """Return the record, or None for a key of another type.

    Raises DecodeError for bytes that do not match their type.
    """
    if decode_record_type(key) != _KEY_TYPE:
        return None
    name = decode(TransactionLogKey, key, 0, _TYPE_SIZE)[0].transactional_id
    if value is None:
        return TransactionRecord(transactional_id=name, transaction=None)
    found = decode_record_value(TransactionLogValue, value)
    try:
        status = TransactionStatus(found.transaction_status)
        client_version = TransactionVersion(found.client_transaction_version)
    except ValueError as error:
        raise DecodeError(str(error)) from error
    transaction = Transaction(
        transactional_id=name,
        producer_id=ProducerId(found.producer_id),
        epoch=ProducerEpoch(found.producer_epoch),
        previous_producer_id=ProducerId(found.previous_producer_id),
        next_producer_id=ProducerId(found.next_producer_id),
        timeout_ms=found.transaction_timeout_ms,
        status=status,
        partitions=frozenset(
            (topic.topic, index)
            for topic in found.transaction_partitions or ()
            for index in topic.partition_ids
        ),
        start_ms=TimestampMs(found.transaction_start_timestamp_ms),
        updated_ms=TimestampMs(found.transaction_last_update_timestamp_ms),
        client_version=client_version,
    )
    return TransactionRecord(transactional_id=name, transaction=transaction)
