"""ClientQuotaRecord, a metadata record (type 14): one quota of one entity."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bool,
    Float64,
    Message,
    String,
    Struct,
    message,
    struct,
)


@struct
class EntityData(Struct):
    """An element of ``ClientQuotaRecord.entity``."""

    entity_type: Annotated[str, String("0+")] = ""
    entity_name: Annotated[str | None, String("0+", nullable="0+")] = ""


@message(api_key=14, versions="0", flexible="0+")
class ClientQuotaRecord(Message):
    """Says one quota of one entity."""

    entity: Annotated[list[EntityData], Array("0+")] = field(default_factory=list)
    key: Annotated[str, String("0+")] = ""
    value: Annotated[float, Float64("0+")] = 0.0
    remove: Annotated[bool, Bool("0+")] = False
