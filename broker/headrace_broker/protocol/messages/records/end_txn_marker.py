"""EndTxnMarker: the value of the control record that ends a transaction."""

from typing import Annotated

from headrace_broker.protocol.schema import Int32, Message, message


@message(versions="0")
class EndTxnMarker(Message):
    """The value of the control record that ends a transaction."""

    coordinator_epoch: Annotated[int, Int32("0+")] = 0
