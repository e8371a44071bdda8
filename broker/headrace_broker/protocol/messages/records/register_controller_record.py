"""RegisterControllerRecord, a metadata record (type 27).

That a controller's process has registered.
"""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Bool,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    UInt16,
    Uuid,
    message,
    struct,
)


@struct
class ControllerEndpoint(Struct):
    """An element of ``RegisterControllerRecord.end_points``."""

    name: Annotated[str, String("0+")] = ""
    host: Annotated[str, String("0+")] = ""
    port: Annotated[int, UInt16("0+")] = 0
    security_protocol: Annotated[int, Int16("0+")] = 0


@struct
class ControllerFeature(Struct):
    """An element of ``RegisterControllerRecord.features``."""

    name: Annotated[str, String("0+")] = ""
    min_supported_version: Annotated[int, Int16("0+")] = 0
    max_supported_version: Annotated[int, Int16("0+")] = 0


@message(api_key=27, versions="0", flexible="0+")
class RegisterControllerRecord(Message):
    """Says that a controller's process has registered."""

    controller_id: Annotated[int, Int32("0+")] = 0
    incarnation_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    zk_migration_ready: Annotated[bool, Bool("0+")] = False
    end_points: Annotated[list[ControllerEndpoint], Array("0+")] = field(default_factory=list)
    features: Annotated[list[ControllerFeature], Array("0+")] = field(default_factory=list)
