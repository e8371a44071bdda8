"""DescribeClientQuotas (API key 48): list the quotas that match a filter."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bool,
    Float64,
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
class ComponentData(Struct):
    """An element of ``DescribeClientQuotasRequest.components``."""

    entity_type: Annotated[str, String("0+")] = ""
    match_type: Annotated[int, Int8("0+")] = 0
    match: Annotated[str | None, String("0+", nullable="0+")] = ""


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasRequest(Message):
    """Asks to list the quotas that match a filter."""

    components: Annotated[list[ComponentData], Array("0+")] = field(default_factory=list)
    strict: Annotated[bool, Bool("0+")] = False


@struct
class EntityData(Struct):
    """An element of ``EntryData.entity``."""

    entity_type: Annotated[str, String("0+")] = ""
    entity_name: Annotated[str | None, String("0+", nullable="0+")] = ""


@struct
class ValueData(Struct):
    """An element of ``EntryData.values``."""

    key: Annotated[str, String("0+")] = ""
    value: Annotated[float, Float64("0+")] = 0.0


@struct
class EntryData(Struct):
    """An element of ``DescribeClientQuotasResponse.entries``."""

    entity: Annotated[list[EntityData], Array("0+")] = field(default_factory=list)
    values: Annotated[list[ValueData], Array("0+")] = field(default_factory=list)


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasResponse(Message):
    """Answers ``DescribeClientQuotasRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""
    entries: Annotated[list[EntryData] | None, Array("0+", nullable="0+")] = field(
        default_factory=list
    )
