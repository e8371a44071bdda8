"""GetTelemetrySubscriptions (API key 71): tell a client which of its metrics are wanted."""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    String,
    Uuid,
    message,
)


@message(api_key=71, versions="0", flexible="0+")
class GetTelemetrySubscriptionsRequest(Message):
    """Asks to tell a client which of its metrics are wanted."""

    client_instance_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID


@message(api_key=71, versions="0", flexible="0+")
class GetTelemetrySubscriptionsResponse(Message):
    """Answers ``GetTelemetrySubscriptionsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    client_instance_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    subscription_id: Annotated[int, Int32("0+")] = 0
    accepted_compression_types: Annotated[list[int], Array("0+", of=Int8)] = field(
        default_factory=list
    )
    push_interval_ms: Annotated[int, Int32("0+")] = 0
    telemetry_max_bytes: Annotated[int, Int32("0+")] = 0
    delta_temporality: Annotated[bool, Bool("0+")] = False
    requested_metrics: Annotated[list[str], Array("0+", of=String)] = field(default_factory=list)
