"""RegisterBrokerRecord, a metadata record (type 0): that a broker's process has registered."""

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
class BrokerEndpoint(Struct):
    """An element of ``RegisterBrokerRecord.end_points``."""

    name: Annotated[str, String("0+")] = ""
    host: Annotated[str, String("0+")] = ""
    port: Annotated[int, UInt16("0+")] = 0
    security_protocol: Annotated[int, Int16("0+")] = 0


@struct
class BrokerFeature(Struct):
    """An element of ``RegisterBrokerRecord.features``."""

    name: Annotated[str, String("0+")] = ""
    min_supported_version: Annotated[int, Int16("0+")] = 0
    max_supported_version: Annotated[int, Int16("0+")] = 0


@message(api_key=0, versions="0-3", flexible="0+")
class RegisterBrokerRecord(Message):
    """Says that a broker's process has registered."""

    broker_id: Annotated[int, Int32("0+")] = 0
    is_migrating_zk_broker: Annotated[bool, Bool("2+")] = False
    incarnation_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    broker_epoch: Annotated[int, Int64("0+")] = 0
    end_points: Annotated[list[BrokerEndpoint], Array("0+")] = field(default_factory=list)
    features: Annotated[list[BrokerFeature], Array("0+")] = field(default_factory=list)
    rack: Annotated[str | None, String("0+", nullable="0+")] = ""
    fenced: Annotated[bool, Bool("0+")] = True
    in_controlled_shutdown: Annotated[bool, Bool("1+")] = False
    log_dirs: Annotated[list[UUID], Array("3+", tag=0, of=Uuid)] = field(default_factory=list)
