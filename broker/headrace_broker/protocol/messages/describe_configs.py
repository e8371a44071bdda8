"""DescribeConfigs (API key 32): list the configuration of resources, defaults included."""

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
class DescribeConfigsResource(Struct):
    """An element of ``DescribeConfigsRequest.resources``."""

    resource_type: Annotated[int, Int8("0+")] = 0
    resource_name: Annotated[str, String("0+")] = ""
    configuration_keys: Annotated[list[str] | None, Array("0+", nullable="0+", of=String)] = field(
        default_factory=list
    )


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsRequest(Message):
    """Asks to list the configuration of resources, defaults included."""

    resources: Annotated[list[DescribeConfigsResource], Array("0+")] = field(default_factory=list)
    include_synonyms: Annotated[bool, Bool("1+")] = False
    include_documentation: Annotated[bool, Bool("3+")] = False


@struct
class DescribeConfigsSynonym(Struct):
    """An element of ``DescribeConfigsResourceResult.synonyms``."""

    name: Annotated[str, String("1+")] = ""
    value: Annotated[str | None, String("1+", nullable="0+")] = ""
    source: Annotated[int, Int8("1+")] = 0


@struct
class DescribeConfigsResourceResult(Struct):
    """An element of ``DescribeConfigsResult.configs``."""

    name: Annotated[str, String("0+")] = ""
    value: Annotated[str | None, String("0+", nullable="0+")] = ""
    read_only: Annotated[bool, Bool("0+")] = False
    config_source: Annotated[int, Int8("1+", ignorable=True)] = -1
    is_sensitive: Annotated[bool, Bool("0+")] = False
    synonyms: Annotated[list[DescribeConfigsSynonym], Array("1+", ignorable=True)] = field(
        default_factory=list
    )
    config_type: Annotated[int, Int8("3+", ignorable=True)] = 0
    documentation: Annotated[str | None, String("3+", nullable="0+", ignorable=True)] = ""


@struct
class DescribeConfigsResult(Struct):
    """An element of ``DescribeConfigsResponse.results``."""

    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""
    resource_type: Annotated[int, Int8("0+")] = 0
    resource_name: Annotated[str, String("0+")] = ""
    configs: Annotated[list[DescribeConfigsResourceResult], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsResponse(Message):
    """Answers ``DescribeConfigsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    results: Annotated[list[DescribeConfigsResult], Array("0+")] = field(default_factory=list)
