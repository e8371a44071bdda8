"""EndTransactionRecord, a metadata record (type 24): that a metadata transaction is complete."""

from headrace_broker.protocol.schema import Message, message


@message(api_key=24, versions="0", flexible="0+")
class EndTransactionRecord(Message):
    """Says that a metadata transaction is complete."""
