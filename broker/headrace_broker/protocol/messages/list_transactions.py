"""ListTransactions (API key 66): list transactions by state, producer and age."""

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


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsRequest(Message):
    """Asks to list transactions by state, producer and age."""

    state_filters: Annotated[list[str], Array("0+", of=String)] = field(default_factory=list)
    producer_id_filters: Annotated[list[int], Array("0+", of=Int64)] = field(default_factory=list)
    duration_filter: Annotated[int, Int64("1+")] = -1
    transactional_id_pattern: Annotated[str | None, String("2+", nullable="2+")] = None


@struct
class TransactionState(Struct):
    """An element of ``ListTransactionsResponse.transaction_states``."""

    transactional_id: Annotated[str, String("0+")] = ""
    producer_id: Annotated[int, Int64("0+")] = 0
    transaction_state: Annotated[str, String("0+")] = ""


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsResponse(Message):
    """Answers ``ListTransactionsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    unknown_state_filters: Annotated[list[str], Array("0+", of=String)] = field(
        default_factory=list
    )
    transaction_states: Annotated[list[TransactionState], Array("0+")] = field(default_factory=list)
