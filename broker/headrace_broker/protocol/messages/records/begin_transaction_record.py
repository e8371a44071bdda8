"""BeginTransactionRecord, a metadata record (type 23): that a metadata transaction starts."""

from typing import Annotated

from headrace_broker.protocol.schema import Message, String, message


@message(api_key=23, versions="0", flexible="0+")
class BeginTransactionRecord(Message):
    """Says that a metadata transaction starts."""

    name: Annotated[str | None, String("0+", nullable="0+", tag=0)] = None
