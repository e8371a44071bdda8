"""SnapshotHeaderRecord: the control record that starts a snapshot."""

from typing import Annotated

from headrace_broker.protocol.schema import Int16, Int64, Message, message


@message(versions="0", flexible="0+")
class SnapshotHeaderRecord(Message):
    """The control record that starts a snapshot."""

    version: Annotated[int, Int16("0+")] = 0
    last_contained_log_timestamp: Annotated[int, Int64("0+")] = 0
