"""CreateAcls (API key 30): create access control entries."""

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
class AclCreation(Struct):
    """An element of ``CreateAclsRequest.creations``."""

    resource_type: Annotated[int, Int8("0+")] = 0
    resource_name: Annotated[str, String("0+")] = ""
    resource_pattern_type: Annotated[int, Int8("1+")] = 3
    principal: Annotated[str, String("0+")] = ""
    host: Annotated[str, String("0+")] = ""
    operation: Annotated[int, Int8("0+")] = 0
    permission_type: Annotated[int, Int8("0+")] = 0


@message(api_key=30, versions="1-3", flexible="2+")
class CreateAclsRequest(Message):
    """Asks to create access control entries."""

    creations: Annotated[list[AclCreation], Array("0+")] = field(default_factory=list)


@struct
class AclCreationResult(Struct):
    """An element of ``CreateAclsResponse.results``."""

    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""


@message(api_key=30, versions="1-3", flexible="2+")
class CreateAclsResponse(Message):
    """Answers ``CreateAclsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    results: Annotated[list[AclCreationResult], Array("0+")] = field(default_factory=list)
