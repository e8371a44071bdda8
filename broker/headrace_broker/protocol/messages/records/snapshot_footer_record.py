"""SnapshotFooterRecord: the control record that ends a snapshot."""

from typing import Annotated

from headrace_broker.protocol.schema import Int16, Message, message


@message(versions="0", flexible="0+")
class SnapshotFooterRecord(Message):
    """The control record that ends a snapshot."""

    version: Annotated[int, Int16("0+")] = 0
