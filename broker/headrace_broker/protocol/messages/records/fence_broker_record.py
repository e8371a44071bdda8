"""FenceBrokerRecord, a metadata record (type 7): that a broker is fenced."""

from typing import Annotated

from headrace_broker.protocol.schema import Int32, Int64, Message, message


@message(api_key=7, versions="0", flexible="0+")
class FenceBrokerRecord(Message):
    """Says that a broker is fenced."""

    id: Annotated[int, Int32("0+")] = 0
    epoch: Annotated[int, Int64("0+")] = 0
