"""UnfenceBrokerRecord, a metadata record (type 8): that a broker is no longer fenced."""

from typing import Annotated

from headrace_broker.protocol.schema import Int32, Int64, Message, message


@message(api_key=8, versions="0", flexible="0+")
class UnfenceBrokerRecord(Message):
    """Says that a broker is no longer fenced."""

    id: Annotated[int, Int32("0+")] = 0
    epoch: Annotated[int, Int64("0+")] = 0
