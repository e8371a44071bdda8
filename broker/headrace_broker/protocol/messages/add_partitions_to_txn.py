"""AddPartitionsToTxn (API key 24): let transactions write to partitions, or verify that they do."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    message,
    struct,
)


@struct
class AddPartitionsToTxnTopic(Struct):
    """An element of ``AddPartitionsToTxnTransaction.topics`` and others."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@struct
class AddPartitionsToTxnTransaction(Struct):
    """An element of ``AddPartitionsToTxnRequest.transactions``."""

    transactional_id: Annotated[str, String("4+")] = ""
    producer_id: Annotated[int, Int64("4+")] = 0
    producer_epoch: Annotated[int, Int16("4+")] = 0
    verify_only: Annotated[bool, Bool("4+")] = False
    topics: Annotated[list[AddPartitionsToTxnTopic], Array("4+")] = field(default_factory=list)


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest(Message):
    """Asks to let transactions write to partitions, or verify that they do."""

    transactions: Annotated[list[AddPartitionsToTxnTransaction], Array("4+")] = field(
        default_factory=list
    )
    v3_and_below_transactional_id: Annotated[str, String("0-3")] = ""
    v3_and_below_producer_id: Annotated[int, Int64("0-3")] = 0
    v3_and_below_producer_epoch: Annotated[int, Int16("0-3")] = 0
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], Array("0-3")] = field(
        default_factory=list
    )


@struct
class AddPartitionsToTxnPartitionResult(Struct):
    """An element of ``AddPartitionsToTxnTopicResult.results_by_partition``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    partition_error_code: Annotated[int, Int16("0+")] = 0


@struct
class AddPartitionsToTxnTopicResult(Struct):
    """An element of ``AddPartitionsToTxnResult.topic_results`` and others."""

    name: Annotated[str, String("0+")] = ""
    results_by_partition: Annotated[list[AddPartitionsToTxnPartitionResult], Array("0+")] = field(
        default_factory=list
    )


@struct
class AddPartitionsToTxnResult(Struct):
    """An element of ``AddPartitionsToTxnResponse.results_by_transaction``."""

    transactional_id: Annotated[str, String("4+")] = ""
    topic_results: Annotated[list[AddPartitionsToTxnTopicResult], Array("4+")] = field(
        default_factory=list
    )


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse(Message):
    """Answers ``AddPartitionsToTxnRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("4+", ignorable=True)] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], Array("4+")] = field(
        default_factory=list
    )
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], Array("0-3")] = (
        field(default_factory=list)
    )
