"""DeleteGroups (API key 42): delete empty groups."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    message,
    struct,
)


@message(api_key=42, versions="0-2", flexible="2+")
class DeleteGroupsRequest(Message):
    """Asks to delete empty groups."""

    groups_names: Annotated[list[str], Array("0+", of=String)] = field(default_factory=list)


@struct
class DeletableGroupResult(Struct):
    """An element of ``DeleteGroupsResponse.results``."""

    group_id: Annotated[str, String("0+")] = ""
    error_code: Annotated[int, Int16("0+")] = 0


@message(api_key=42, versions="0-2", flexible="2+")
class DeleteGroupsResponse(Message):
    """Answers ``DeleteGroupsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    results: Annotated[list[DeletableGroupResult], Array("0+")] = field(default_factory=list)
