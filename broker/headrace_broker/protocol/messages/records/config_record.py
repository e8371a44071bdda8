"""ConfigRecord, a metadata record (type 4): one setting of one resource."""

from typing import Annotated

from headrace_broker.protocol.schema import Int8, Message, String, message


@message(api_key=4, versions="0", flexible="0+")
class ConfigRecord(Message):
    """Says one setting of one resource."""

    resource_type: Annotated[int, Int8("0+")] = 0
    resource_name: Annotated[str, String("0+")] = ""
    name: Annotated[str, String("0+")] = ""
    value: Annotated[str | None, String("0+", nullable="0+")] = ""
