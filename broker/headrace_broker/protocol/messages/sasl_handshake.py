"""SaslHandshake (API key 17): choose a SASL mechanism."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import Array, Int16, Message, String, message


@message(api_key=17, versions="0-1")
class SaslHandshakeRequest(Message):
    """Asks to choose a SASL mechanism."""

    mechanism: Annotated[str, String("0+")] = ""


@message(api_key=17, versions="0-1")
class SaslHandshakeResponse(Message):
    """Answers ``SaslHandshakeRequest``."""

    error_code: Annotated[int, Int16("0+")] = 0
    mechanisms: Annotated[list[str], Array("0+", of=String)] = field(default_factory=list)
