"""DeleteAcls (API key 31): delete the access control entries that match filters."""

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
class DeleteAclsFilter(Struct):
    """An element of ``DeleteAclsRequest.filters``."""

    resource_type_filter: Annotated[int, Int8("0+")] = 0
    resource_name_filter: Annotated[str | None, String("0+", nullable="0+")] = ""
    pattern_type_filter: Annotated[int, Int8("1+")] = 3
    principal_filter: Annotated[str | None, String("0+", nullable="0+")] = ""
    host_filter: Annotated[str | None, String("0+", nullable="0+")] = ""
    operation: Annotated[int, Int8("0+")] = 0
    permission_type: Annotated[int, Int8("0+")] = 0


@message(api_key=31, versions="1-3", flexible="2+")
class DeleteAclsRequest(Message):
    """Asks to delete the access control entries that match filters."""

    filters: Annotated[list[DeleteAclsFilter], Array("0+")] = field(default_factory=list)


@struct
class DeleteAclsMatchingAcl(Struct):
    """An element of ``DeleteAclsFilterResult.matching_acls``."""

    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""
    resource_type: Annotated[int, Int8("0+")] = 0
    resource_name: Annotated[str, String("0+")] = ""
    pattern_type: Annotated[int, Int8("1+")] = 3
    principal: Annotated[str, String("0+")] = ""
    host: Annotated[str, String("0+")] = ""
    operation: Annotated[int, Int8("0+")] = 0
    permission_type: Annotated[int, Int8("0+")] = 0


@struct
class DeleteAclsFilterResult(Struct):
    """An element of ``DeleteAclsResponse.filter_results``."""

    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""
    matching_acls: Annotated[list[DeleteAclsMatchingAcl], Array("0+")] = field(default_factory=list)


@message(api_key=31, versions="1-3", flexible="2+")
class DeleteAclsResponse(Message):
    """Answers ``DeleteAclsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    filter_results: Annotated[list[DeleteAclsFilterResult], Array("0+")] = field(
        default_factory=list
    )
