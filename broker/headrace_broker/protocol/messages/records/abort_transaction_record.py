"""AbortTransactionRecord, a metadata record (type 25): that a metadata transaction was given up."""

from typing import Annotated

from headrace_broker.protocol.schema import Message, String, message


@message(api_key=25, versions="0", flexible="0+")
class AbortTransactionRecord(Message):
    """Says that a metadata transaction was given up."""

    reason: Annotated[str | None, String("0+", nullable="0+", tag=0)] = None
