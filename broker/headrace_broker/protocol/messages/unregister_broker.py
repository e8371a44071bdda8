"""UnregisterBroker (API key 64): remove a broker's registration."""

from typing import Annotated

from headrace_broker.protocol.schema import Int16, Int32, Message, String, message


@message(api_key=64, versions="0", flexible="0+")
class UnregisterBrokerRequest(Message):
    """Asks to remove a broker's registration."""

    broker_id: Annotated[int, Int32("0+")] = 0


@message(api_key=64, versions="0", flexible="0+")
class UnregisterBrokerResponse(Message):
    """Answers ``UnregisterBrokerRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""
