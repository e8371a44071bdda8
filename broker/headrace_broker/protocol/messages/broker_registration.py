"""BrokerRegistration (API key 62): register a broker's process with the controller."""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Bool,
    Int16,
    Int32,
    Int64,
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
    """An element of ``BrokerRegistrationRequest.listeners``."""

    name: Annotated[str, String("0+")] = ""
    host: Annotated[str, String("0+")] = ""
    port: Annotated[int, UInt16("0+")] = 0
    security_protocol: Annotated[int, Int16("0+")] = 0


@struct
class Feature(Struct):
    """An element of ``BrokerRegistrationRequest.features``."""

    name: Annotated[str, String("0+")] = ""
    min_supported_version: Annotated[int, Int16("0+")] = 0
    max_supported_version: Annotated[int, Int16("0+")] = 0


@message(api_key=62, versions="0-4", flexible="0+")
class BrokerRegistrationRequest(Message):
    """Asks to register a broker's process with the controller."""

    broker_id: Annotated[int, Int32("0+")] = 0
    cluster_id: Annotated[str, String("0+")] = ""
    incarnation_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    listeners: Annotated[list[Listener], Array("0+")] = field(default_factory=list)
    features: Annotated[list[Feature], Array("0+")] = field(default_factory=list)
    rack: Annotated[str | None, String("0+", nullable="0+")] = ""
    is_migrating_zk_broker: Annotated[bool, Bool("1+")] = False
    log_dirs: Annotated[list[UUID], Array("2+", ignorable=True, of=Uuid)] = field(
        default_factory=list
    )
    previous_broker_epoch: Annotated[int, Int64("3+", ignorable=True)] = -1


@message(api_key=62, versions="0-4", flexible="0+")
class BrokerRegistrationResponse(Message):
    """Answers ``BrokerRegistrationRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    broker_epoch: Annotated[int, Int64("0+")] = -1
