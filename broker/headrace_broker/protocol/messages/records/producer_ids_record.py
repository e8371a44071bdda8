"""ProducerIdsRecord, a metadata record (type 15): the next producer id that is free."""

from typing import Annotated

from headrace_broker.protocol.schema import Int32, Int64, Message, message


@message(api_key=15, versions="0", flexible="0+")
class ProducerIdsRecord(Message):
    """Says the next producer id that is free."""

    broker_id: Annotated[int, Int32("0+")] = 0
    broker_epoch: Annotated[int, Int64("0+")] = -1
    next_producer_id: Annotated[int, Int64("0+")] = 0
