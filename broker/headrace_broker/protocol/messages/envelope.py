"""Envelope (API key 58): forward a client's request to the controller."""

from typing import Annotated

from headrace_broker.protocol.schema import Bytes, Int16, Message, message


@message(api_key=58, versions="0", flexible="0+")
class EnvelopeRequest(Message):
    """Asks to forward a client's request to the controller."""

    request_data: Annotated[bytes, Bytes("0+")] = b""
    request_principal: Annotated[bytes | None, Bytes("0+", nullable="0+")] = b""
    client_host_address: Annotated[bytes, Bytes("0+")] = b""


@message(api_key=58, versions="0", flexible="0+")
class EnvelopeResponse(Message):
    """Answers ``EnvelopeRequest``."""

    response_data: Annotated[bytes | None, Bytes("0+", nullable="0+")] = None
    error_code: Annotated[int, Int16("0+")] = 0
