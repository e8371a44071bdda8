"""DescribeUserScramCredentials (API key 50): list which SCRAM credentials users have."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Int8,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    message,
    struct,
)


@struct
class UserName(Struct):
    """An element of ``DescribeUserScramCredentialsRequest.users``."""

    name: Annotated[str, String("0+")] = ""


@message(api_key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsRequest(Message):
    """Asks to list which SCRAM credentials users have."""

    users: Annotated[list[UserName] | None, Array("0+", nullable="0+")] = field(
        default_factory=list
    )


@struct
class CredentialInfo(Struct):
    """An element of ``DescribeUserScramCredentialsResult.credential_infos``."""

    mechanism: Annotated[int, Int8("0+")] = 0
    iterations: Annotated[int, Int32("0+")] = 0


@struct
class DescribeUserScramCredentialsResult(Struct):
    """An element of ``DescribeUserScramCredentialsResponse.results``."""

    user: Annotated[str, String("0+")] = ""
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""
    credential_infos: Annotated[list[CredentialInfo], Array("0+")] = field(default_factory=list)


@message(api_key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse(Message):
    """Answers ``DescribeUserScramCredentialsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""
    results: Annotated[list[DescribeUserScramCredentialsResult], Array("0+")] = field(
        default_factory=list
    )
