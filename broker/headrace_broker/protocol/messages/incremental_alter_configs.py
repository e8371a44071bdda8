"""IncrementalAlterConfigs (API key 44): change single settings of resources."""

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
    config_operation: Annotated[int, Int8("0+")] = 0
    value: Annotated[str | None, String("0+", nullable="0+")] = ""


@struct
class AlterConfigsResource(Struct):
    """An element of ``IncrementalAlterConfigsRequest.resources``."""

    resource_type: Annotated[int, Int8("0+")] = 0
    resource_name: Annotated[str, String("0+")] = ""
    configs: Annotated[list[AlterableConfig], Array("0+")] = field(default_factory=list)


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest(Message):
    """Asks to change single settings of resources."""

    resources: Annotated[list[AlterConfigsResource], Array("0+")] = field(default_factory=list)
    validate_only: Annotated[bool, Bool("0+")] = False


@struct
class AlterConfigsResourceResponse(Struct):
    """An element of ``IncrementalAlterConfigsResponse.responses``."""

    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""
    resource_type: Annotated[int, Int8("0+")] = 0
    resource_name: Annotated[str, String("0+")] = ""


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse(Message):
    """Answers ``IncrementalAlterConfigsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    responses: Annotated[list[AlterConfigsResourceResponse], Array("0+")] = field(
        default_factory=list
    )
