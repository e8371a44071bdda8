"""DescribeAcls (API key 29): list the access control entries that match a filter."""

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


@message(api_key=29, versions="1-3", flexible="2+")
class DescribeAclsRequest(Message):
    """Asks to list the access control entries that match a filter."""

    resource_type_filter: Annotated[int, Int8("0+")] = 0
    resource_name_filter: Annotated[str | None, String("0+", nullable="0+")] = ""
    pattern_type_filter: Annotated[int, Int8("1+")] = 3
    principal_filter: Annotated[str | None, String("0+", nullable="0+")] = ""
    host_filter: Annotated[str | None, String("0+", nullable="0+")] = ""
    operation: Annotated[int, Int8("0+")] = 0
    permission_type: Annotated[int, Int8("0+")] = 0


@struct
class AclDescription(Struct):
    """An element of ``DescribeAclsResource.acls``."""

    principal: Annotated[str, String("0+")] = ""
    host: Annotated[str, String("0+")] = ""
    operation: Annotated[int, Int8("0+")] = 0
    permission_type: Annotated[int, Int8("0+")] = 0


@struct
class DescribeAclsResource(Struct):
    """An element of ``DescribeAclsResponse.resources``."""

    resource_type: Annotated[int, Int8("0+")] = 0
    resource_name: Annotated[str, String("0+")] = ""
    pattern_type: Annotated[int, Int8("1+")] = 3
    acls: Annotated[list[AclDescription], Array("0+")] = field(default_factory=list)


@message(api_key=29, versions="1-3", flexible="2+")
class DescribeAclsResponse(Message):
    """Answers ``DescribeAclsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""
    resources: Annotated[list[DescribeAclsResource], Array("0+")] = field(default_factory=list)
