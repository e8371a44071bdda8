"""ListConfigResources (API key 74): list the resources that have a configuration."""

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


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesRequest(Message):
    """Asks to list the resources that have a configuration."""

    resource_types: Annotated[list[int], Array("1+", of=Int8)] = field(default_factory=list)


@struct
class ConfigResource(Struct):
    """An element of ``ListConfigResourcesResponse.config_resources``."""

    resource_name: Annotated[str, String("0+")] = ""
    resource_type: Annotated[int, Int8("1+", ignorable=True)] = 16


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesResponse(Message):
    """Answers ``ListConfigResourcesRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    config_resources: Annotated[list[ConfigResource], Array("0+")] = field(default_factory=list)
