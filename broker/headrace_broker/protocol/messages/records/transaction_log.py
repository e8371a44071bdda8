"""TransactionLog, a coordinator's record (type 0): the state of a transactional id."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    message,
    struct,
)


@message(api_key=0, versions="0")
class TransactionLogKey(Message):
    """Key of the record that says the state of a transactional id."""

    transactional_id: Annotated[str, String("0")] = ""


@struct
class PartitionsSchema(Struct):
    """An element of ``TransactionLogValue.transaction_partitions``."""

    topic: Annotated[str, String("0+")] = ""
    partition_ids: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@message(api_key=0, versions="0-1", flexible="1+")
class TransactionLogValue(Message):
    """Value of the record that says the state of a transactional id."""

    producer_id: Annotated[int, Int64("0+")] = 0
    previous_producer_id: Annotated[int, Int64("1+", tag=0)] = -1
    next_producer_id: Annotated[int, Int64("1+", tag=1)] = -1
    producer_epoch: Annotated[int, Int16("0+")] = 0
    next_producer_epoch: Annotated[int, Int16("1+", tag=3)] = -1
    transaction_timeout_ms: Annotated[int, Int32("0+")] = 0
    transaction_status: Annotated[int, Int8("0+")] = 0
    transaction_partitions: Annotated[list[PartitionsSchema] | None, Array("0+", nullable="0+")] = (
        field(default_factory=list)
    )
    transaction_last_update_timestamp_ms: Annotated[int, Int64("0+")] = 0
    transaction_start_timestamp_ms: Annotated[int, Int64("0+")] = 0
    client_transaction_version: Annotated[int, Int16("1+", tag=2)] = 0
