"""ClearElrRecord, a metadata record (type 28).

That eligible leader replicas are to be forgotten.
"""

from typing import Annotated

from headrace_broker.protocol.schema import Message, String, message


@message(api_key=28, versions="0", flexible="0+")
class ClearElrRecord(Message):
    """Says that eligible leader replicas are to be forgotten."""

    topic_name: Annotated[str, String("0+")] = ""
