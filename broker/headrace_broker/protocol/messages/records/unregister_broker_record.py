"""UnregisterBrokerRecord, a metadata record (type 1): that a broker's registration is gone."""

from typing import Annotated

from headrace_broker.protocol.schema import Int32, Int64, Message, message


@message(api_key=1, versions="0", flexible="0+")
class UnregisterBrokerRecord(Message):
    """Says that a broker's registration is gone."""

    broker_id: Annotated[int, Int32("0+")] = 0
    broker_epoch: Annotated[int, Int64("0+")] = 0
