"""RemoveDelegationTokenRecord, a metadata record (type 26): that a delegation token is gone."""

from typing import Annotated

from headrace_broker.protocol.schema import Message, String, message


@message(api_key=26, versions="0", flexible="0+")
class RemoveDelegationTokenRecord(Message):
    """Says that a delegation token is gone."""

    token_id: Annotated[str, String("0+")] = ""
