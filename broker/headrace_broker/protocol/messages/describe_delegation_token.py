"""DescribeDelegationToken (API key 41): list delegation tokens."""

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
class DescribeDelegationTokenOwner(Struct):
    """An element of ``DescribeDelegationTokenRequest.owners``."""

    principal_type: Annotated[str, String("0+")] = ""
    principal_name: Annotated[str, String("0+")] = ""


@message(api_key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenRequest(Message):
    """Asks to list delegation tokens."""

    owners: Annotated[list[DescribeDelegationTokenOwner] | None, Array("0+", nullable="0+")] = (
        field(default_factory=list)
    )


@struct
class DescribedDelegationTokenRenewer(Struct):
    """An element of ``DescribedDelegationToken.renewers``."""

    principal_type: Annotated[str, String("0+")] = ""
    principal_name: Annotated[str, String("0+")] = ""


@struct
class DescribedDelegationToken(Struct):
    """An element of ``DescribeDelegationTokenResponse.tokens``."""

    principal_type: Annotated[str, String("0+")] = ""
    principal_name: Annotated[str, String("0+")] = ""
    token_requester_principal_type: Annotated[str, String("3+")] = ""
    token_requester_principal_name: Annotated[str, String("3+")] = ""
    issue_timestamp: Annotated[int, Int64("0+")] = 0
    expiry_timestamp: Annotated[int, Int64("0+")] = 0
    max_timestamp: Annotated[int, Int64("0+")] = 0
    token_id: Annotated[str, String("0+")] = ""
    hmac: Annotated[bytes, Bytes("0+")] = b""
    renewers: Annotated[list[DescribedDelegationTokenRenewer], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenResponse(Message):
    """Answers ``DescribeDelegationTokenRequest``."""

    error_code: Annotated[int, Int16("0+")] = 0
    tokens: Annotated[list[DescribedDelegationToken], Array("0+")] = field(default_factory=list)
    throttle_time_ms: Annotated[int, Int32("0+")] = 0
