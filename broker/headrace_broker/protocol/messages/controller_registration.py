"""ControllerRegistration (API key 70): register a controller's endpoints and features."""

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
class Listener(Struct):
    """An element of ``ControllerRegistrationRequest.listeners``."""

    name: Annotated[str, String("0+")] = ""
    host: Annotated[str, String("0+")] = ""
    port: Annotated[int, UInt16("0+")] = 0
    security_protocol: Annotated[int, Int16("0+")] = 0


@struct
class Feature(Struct):
    """An element of ``ControllerRegistrationRequest.features``."""

    name: Annotated[str, String("0+")] = ""
    min_supported_version: Annotated[int, Int16("0+")] = 0
    max_supported_version: Annotated[int, Int16("0+")] = 0


@message(api_key=70, versions="0", flexible="0+")
class ControllerRegistrationRequest(Message):
    """Asks to register a controller's endpoints and features."""

    controller_id: Annotated[int, Int32("0+")] = 0
    incarnation_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    zk_migration_ready: Annotated[bool, Bool("0+")] = False
    listeners: Annotated[list[Listener], Array("0+")] = field(default_factory=list)
    features: Annotated[list[Feature], Array("0+")] = field(default_factory=list)


@message(api_key=70, versions="0", flexible="0+")
class ControllerRegistrationResponse(Message):
    """Answers ``ControllerRegistrationRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""
