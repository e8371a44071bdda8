"""PushTelemetry (API key 72): send a client's metrics to a broker."""

from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    Message,
    Uuid,
    message,
)


@message(api_key=72, versions="0", flexible="0+")
class PushTelemetryRequest(Message):
    """Asks to send a client's metrics to a broker."""

    client_instance_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    subscription_id: Annotated[int, Int32("0+")] = 0
    terminating: Annotated[bool, Bool("0+")] = False
    compression_type: Annotated[int, Int8("0+")] = 0
    metrics: Annotated[bytes, Bytes("0+")] = b""


@message(api_key=72, versions="0", flexible="0+")
class PushTelemetryResponse(Message):
    """Answers ``PushTelemetryRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
