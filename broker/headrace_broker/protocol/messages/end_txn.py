"""EndTxn (API key 26): commit or abort a transaction."""

from typing import Annotated

from headrace_broker.protocol.schema import Bool, Int16, Int32, Int64, Message, String, message


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnRequest(Message):
    """Asks to commit or abort a transaction."""

    transactional_id: Annotated[str, String("0+")] = ""
    producer_id: Annotated[int, Int64("0+")] = 0
    producer_epoch: Annotated[int, Int16("0+")] = 0
    committed: Annotated[bool, Bool("0+")] = False


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnResponse(Message):
    """Answers ``EndTxnRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    producer_id: Annotated[int, Int64("5+", ignorable=True)] = -1
    producer_epoch: Annotated[int, Int16("5+", ignorable=True)] = -1
