"""ExpireDelegationToken (API key 40): change when a delegation token expires."""

from typing import Annotated

from headrace_broker.protocol.schema import Bytes, Int16, Int32, Int64, Message, message


@message(api_key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenRequest(Message):
    """Asks to change when a delegation token expires."""

    hmac: Annotated[bytes, Bytes("0+")] = b""
    expiry_time_period_ms: Annotated[int, Int64("0+")] = 0


@message(api_key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenResponse(Message):
    """Answers ``ExpireDelegationTokenRequest``."""

    error_code: Annotated[int, Int16("0+")] = 0
    expiry_timestamp_ms: Annotated[int, Int64("0+")] = 0
    throttle_time_ms: Annotated[int, Int32("0+")] = 0
