"""AddOffsetsToTxn (API key 25): let a transaction include the offsets of a consumer group."""

from typing import Annotated

from headrace_broker.protocol.schema import Int16, Int32, Int64, Message, String, message


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest(Message):
    """Asks to let a transaction include the offsets of a consumer group."""

    transactional_id: Annotated[str, String("0+")] = ""
    producer_id: Annotated[int, Int64("0+")] = 0
    producer_epoch: Annotated[int, Int16("0+")] = 0
    group_id: Annotated[str, String("0+")] = ""


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse(Message):
    """Answers ``AddOffsetsToTxnRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
