"""InitProducerId (API key 22).

Get a producer id and epoch, fencing older producers of a transactional id.
"""

from typing import Annotated

from headrace_broker.protocol.schema import Bool, Int16, Int32, Int64, Message, String, message


@message(api_key=22, versions="0-6", flexible="2+", unstable=True)
class InitProducerIdRequest(Message):
    """Asks to get a producer id and epoch, fencing older producers of a transactional id."""

    transactional_id: Annotated[str | None, String("0+", nullable="0+")] = ""
    transaction_timeout_ms: Annotated[int, Int32("0+")] = 0
    producer_id: Annotated[int, Int64("3+")] = -1
    producer_epoch: Annotated[int, Int16("3+")] = -1
    enable2_pc: Annotated[bool, Bool("6+")] = False
    keep_prepared_txn: Annotated[bool, Bool("6+")] = False


@message(api_key=22, versions="0-6", flexible="2+")
class InitProducerIdResponse(Message):
    """Answers ``InitProducerIdRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+", ignorable=True)] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    producer_id: Annotated[int, Int64("0+")] = -1
    producer_epoch: Annotated[int, Int16("0+")] = 0
    ongoing_txn_producer_id: Annotated[int, Int64("6+")] = -1
    ongoing_txn_producer_epoch: Annotated[int, Int16("6+")] = -1
