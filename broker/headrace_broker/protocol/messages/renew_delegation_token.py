"""RenewDelegationToken (API key 39): prolong a delegation token."""

from typing import Annotated

from headrace_broker.protocol.schema import Bytes, Int16, Int32, Int64, Message, message


@message(api_key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenRequest(Message):
    """Asks to prolong a delegation token."""

    hmac: Annotated[bytes, Bytes("0+")] = b""
    renew_period_ms: Annotated[int, Int64("0+")] = 0


@message(api_key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenResponse(Message):
    """Answers ``RenewDelegationTokenRequest``."""

    error_code: Annotated[int, Int16("0+")] = 0
    expiry_timestamp_ms: Annotated[int, Int64("0+")] = 0
    throttle_time_ms: Annotated[int, Int32("0+")] = 0
