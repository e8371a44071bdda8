"""AlterUserScramCredentials (API key 51): set and delete SCRAM credentials."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bytes,
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
class ScramCredentialDeletion(Struct):
    """An element of ``AlterUserScramCredentialsRequest.deletions``."""

    name: Annotated[str, String("0+")] = ""
    mechanism: Annotated[int, Int8("0+")] = 0


@struct
class ScramCredentialUpsertion(Struct):
    """An element of ``AlterUserScramCredentialsRequest.upsertions``."""

    name: Annotated[str, String("0+")] = ""
    mechanism: Annotated[int, Int8("0+")] = 0
    iterations: Annotated[int, Int32("0+")] = 0
    salt: Annotated[bytes, Bytes("0+")] = b""
    salted_password: Annotated[bytes, Bytes("0+")] = b""


@message(api_key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsRequest(Message):
    """Asks to set and delete SCRAM credentials."""

    deletions: Annotated[list[ScramCredentialDeletion], Array("0+")] = field(default_factory=list)
    upsertions: Annotated[list[ScramCredentialUpsertion], Array("0+")] = field(default_factory=list)


@struct
class AlterUserScramCredentialsResult(Struct):
    """An element of ``AlterUserScramCredentialsResponse.results``."""

    user: Annotated[str, String("0+")] = ""
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""


@message(api_key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsResponse(Message):
    """Answers ``AlterUserScramCredentialsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    results: Annotated[list[AlterUserScramCredentialsResult], Array("0+")] = field(
        default_factory=list
    )
