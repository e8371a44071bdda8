"""DelegationTokenRecord, a metadata record (type 10): that a delegation token exists."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import Array, Int64, Message, String, message


@message(api_key=10, versions="0", flexible="0+")
class DelegationTokenRecord(Message):
    """Says that a delegation token exists."""

    owner: Annotated[str, String("0+")] = ""
    requester: Annotated[str, String("0+")] = ""
    renewers: Annotated[list[str], Array("0+", of=String)] = field(default_factory=list)
    issue_timestamp: Annotated[int, Int64("0+")] = 0
    max_timestamp: Annotated[int, Int64("0+")] = 0
    expiration_timestamp: Annotated[int, Int64("0+")] = 0
    token_id: Annotated[str, String("0+")] = ""
