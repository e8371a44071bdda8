"""SaslAuthenticate (API key 36): exchange the tokens of a SASL mechanism."""

from typing import Annotated

from headrace_broker.protocol.schema import Bytes, Int16, Int64, Message, String, message


@message(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest(Message):
    """Asks to exchange the tokens of a SASL mechanism."""

    auth_bytes: Annotated[bytes, Bytes("0+")] = b""


@message(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse(Message):
    """Answers ``SaslAuthenticateRequest``."""

    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""
    auth_bytes: Annotated[bytes, Bytes("0+")] = b""
    session_lifetime_ms: Annotated[int, Int64("1+", ignorable=True)] = 0
