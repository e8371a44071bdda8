"""AlterClientQuotas (API key 49): change the quotas of users, clients and addresses."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bool,
    Float64,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    message,
    struct,
)


@struct
class AlterClientQuotasRequestEntityData(Struct):
    """An element of ``AlterClientQuotasRequestEntryData.entity``."""

    entity_type: Annotated[str, String("0+")] = ""
    entity_name: Annotated[str | None, String("0+", nullable="0+")] = ""


@struct
class OpData(Struct):
    """An element of ``AlterClientQuotasRequestEntryData.ops``."""

    key: Annotated[str, String("0+")] = ""
    value: Annotated[float, Float64("0+")] = 0.0
    remove: Annotated[bool, Bool("0+")] = False


@struct
class AlterClientQuotasRequestEntryData(Struct):
    """An element of ``AlterClientQuotasRequest.entries``."""

    entity: Annotated[list[AlterClientQuotasRequestEntityData], Array("0+")] = field(
        default_factory=list
    )
    ops: Annotated[list[OpData], Array("0+")] = field(default_factory=list)


@message(api_key=49, versions="0-1", flexible="1+")
class AlterClientQuotasRequest(Message):
    """Asks to change the quotas of users, clients and addresses."""

    entries: Annotated[list[AlterClientQuotasRequestEntryData], Array("0+")] = field(
        default_factory=list
    )
    validate_only: Annotated[bool, Bool("0+")] = False


@struct
class AlterClientQuotasResponseEntityData(Struct):
    """An element of ``AlterClientQuotasResponseEntryData.entity``."""

    entity_type: Annotated[str, String("0+")] = ""
    entity_name: Annotated[str | None, String("0+", nullable="0+")] = ""


@struct
class AlterClientQuotasResponseEntryData(Struct):
    """An element of ``AlterClientQuotasResponse.entries``."""

    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""
    entity: Annotated[list[AlterClientQuotasResponseEntityData], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=49, versions="0-1", flexible="1+")
class AlterClientQuotasResponse(Message):
    """Answers ``AlterClientQuotasRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    entries: Annotated[list[AlterClientQuotasResponseEntryData], Array("0+")] = field(
        default_factory=list
    )
