"""AllocateProducerIds (API key 67): hand a block of producer ids to a broker."""

from typing import Annotated

from headrace_broker.protocol.schema import Int16, Int32, Int64, Message, message


@message(api_key=67, versions="0", flexible="0+")
class AllocateProducerIdsRequest(Message):
    """Asks to hand a block of producer ids to a broker."""

    broker_id: Annotated[int, Int32("0+")] = 0
    broker_epoch: Annotated[int, Int64("0+")] = -1


@message(api_key=67, versions="0", flexible="0+")
class AllocateProducerIdsResponse(Message):
    """Answers ``AllocateProducerIdsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    producer_id_start: Annotated[int, Int64("0+")] = 0
    producer_id_len: Annotated[int, Int32("0+")] = 0
