"""DescribeTransactions (API key 65): describe transactions by their id."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    message,
    struct,
)


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsRequest(Message):
    """Asks to describe transactions by their id."""

    transactional_ids: Annotated[list[str], Array("0+", of=String)] = field(default_factory=list)


@struct
class TopicData(Struct):
    """An element of ``TransactionState.topics``."""

    topic: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@struct
class TransactionState(Struct):
    """An element of ``DescribeTransactionsResponse.transaction_states``."""

    error_code: Annotated[int, Int16("0+")] = 0
    transactional_id: Annotated[str, String("0+")] = ""
    transaction_state: Annotated[str, String("0+")] = ""
    transaction_timeout_ms: Annotated[int, Int32("0+")] = 0
    transaction_start_time_ms: Annotated[int, Int64("0+")] = 0
    producer_id: Annotated[int, Int64("0+")] = 0
    producer_epoch: Annotated[int, Int16("0+")] = 0
    topics: Annotated[list[TopicData], Array("0+")] = field(default_factory=list)


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsResponse(Message):
    """Answers ``DescribeTransactionsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    transaction_states: Annotated[list[TransactionState], Array("0+")] = field(default_factory=list)
