"""UserScramCredentialRecord, a metadata record (type 11): that a SCRAM credential exists."""

from typing import Annotated

from headrace_broker.protocol.schema import Bytes, Int8, Int32, Message, String, message


@message(api_key=11, versions="0", flexible="0+")
class UserScramCredentialRecord(Message):
    """Says that a SCRAM credential exists."""

    name: Annotated[str, String("0+")] = ""
    mechanism: Annotated[int, Int8("0+")] = 0
    salt: Annotated[bytes, Bytes("0+")] = b""
    stored_key: Annotated[bytes, Bytes("0+")] = b""
    server_key: Annotated[bytes, Bytes("0+")] = b""
    iterations: Annotated[int, Int32("0+")] = 0
