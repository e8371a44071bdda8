"""AlterConfigs (API key 33): replace the whole configuration of resources."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bool,
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
class AlterableConfig(Struct):
    """An element of ``AlterConfigsResource.configs``."""

    name: Annotated[str, String("0+")] = ""
    value: Annotated[str | None, String("0+", nullable="0+")] = ""


@struct
class AlterConfigsResource(Struct):
    """An element of ``AlterConfigsRequest.resources``."""

    resource_type: Annotated[int, Int8("0+")] = 0
    resource_name: Annotated[str, String("0+")] = ""
    configs: Annotated[list[AlterableConfig], Array("0+")] = field(default_factory=list)


@message(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsRequest(Message):
    """Asks to replace the whole configuration of resources."""

    resources: Annotated[list[AlterConfigsResource], Array("0+")] = field(default_factory=list)
    validate_only: Annotated[bool, Bool("0+")] = False


@struct
class AlterConfigsResourceResponse(Struct):
    """An element of ``AlterConfigsResponse.responses``."""

    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""
    resource_type: Annotated[int, Int8("0+")] = 0
    resource_name: Annotated[str, String("0+")] = ""


@message(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsResponse(Message):
    """Answers ``AlterConfigsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    responses: Annotated[list[AlterConfigsResourceResponse], Array("0+")] = field(
        default_factory=list
    )
