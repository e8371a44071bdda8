"""DefaultPrincipalData: a forwarded request's principal, inside Envelope."""

from typing import Annotated

from headrace_broker.protocol.schema import Bool, Message, String, message


@message(versions="0", flexible="0+")
class DefaultPrincipalData(Message):
    """A forwarded request's principal, inside Envelope."""

    type: Annotated[str, String("0+")] = ""
    name: Annotated[str, String("0+")] = ""
    token_authenticated: Annotated[bool, Bool("0+")] = False
