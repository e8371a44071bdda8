"""RemoveUserScramCredentialRecord, a metadata record (type 22): that a SCRAM credential is gone."""

from typing import Annotated

from headrace_broker.protocol.schema import Int8, Message, String, message


@message(api_key=22, versions="0", flexible="0+")
class RemoveUserScramCredentialRecord(Message):
    """Says that a SCRAM credential is gone."""

    name: Annotated[str, String("0+")] = ""
    mechanism: Annotated[int, Int8("0+")] = 0
