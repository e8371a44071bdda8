"""CreateDelegationToken (API key 38): create a token that stands for its owner."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bytes,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    message,
    struct,
)


@struct
class CreatableRenewers(Struct):
    """An element of ``CreateDelegationTokenRequest.renewers``."""

    principal_type: Annotated[str, String("0+")] = ""
    principal_name: Annotated[str, String("0+")] = ""


@message(api_key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenRequest(Message):
    """Asks to create a token that stands for its owner."""

    owner_principal_type: Annotated[str | None, String("3+", nullable="3+")] = ""
    owner_principal_name: Annotated[str | None, String("3+", nullable="3+")] = ""
    renewers: Annotated[list[CreatableRenewers], Array("0+")] = field(default_factory=list)
    max_lifetime_ms: Annotated[int, Int64("0+")] = 0


@message(api_key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenResponse(Message):
    """Answers ``CreateDelegationTokenRequest``."""

    error_code: Annotated[int, Int16("0+")] = 0
    principal_type: Annotated[str, String("0+")] = ""
    principal_name: Annotated[str, String("0+")] = ""
    token_requester_principal_type: Annotated[str, String("3+")] = ""
    token_requester_principal_name: Annotated[str, String("3+")] = ""
    issue_timestamp_ms: Annotated[int, Int64("0+")] = 0
    expiry_timestamp_ms: Annotated[int, Int64("0+")] = 0
    max_timestamp_ms: Annotated[int, Int64("0+")] = 0
    token_id: Annotated[str, String("0+")] = ""
    hmac: Annotated[bytes, Bytes("0+")] = b""
    throttle_time_ms: Annotated[int, Int32("0+")] = 0
