"""NoOpRecord, a metadata record (type 20): nothing; it moves the high watermark."""

from headrace_broker.protocol.schema import Message, message


@message(api_key=20, versions="0", flexible="0+")
class NoOpRecord(Message):
    """Says nothing; it moves the high watermark."""
