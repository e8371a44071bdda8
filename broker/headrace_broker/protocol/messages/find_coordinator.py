"""FindCoordinator (API key 10): find the broker that coordinates groups or transactions."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Int8,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    message,
    struct,
)


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest(Message):
    """Asks to find the broker that coordinates groups or transactions."""

    key: Annotated[str, String("0-3")] = ""
    key_type: Annotated[int, Int8("1+")] = 0
    coordinator_keys: Annotated[list[str], Array("4+", of=String)] = field(default_factory=list)


@struct
class Coordinator(Struct):
    """An element of ``FindCoordinatorResponse.coordinators``."""

    key: Annotated[str, String("4+")] = ""
    node_id: Annotated[int, Int32("4+")] = 0
    host: Annotated[str, String("4+")] = ""
    port: Annotated[int, Int32("4+")] = 0
    error_code: Annotated[int, Int16("4+")] = 0
    error_message: Annotated[str | None, String("4+", nullable="4+", ignorable=True)] = ""


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse(Message):
    """Answers ``FindCoordinatorRequest``."""

    throttle_time_ms: Annotated[int, Int32("1+", ignorable=True)] = 0
    error_code: Annotated[int, Int16("0-3")] = 0
    error_message: Annotated[str | None, String("1-3", nullable="1-3", ignorable=True)] = ""
    node_id: Annotated[int, Int32("0-3")] = 0
    host: Annotated[str, String("0-3")] = ""
    port: Annotated[int, Int32("0-3")] = 0
    coordinators: Annotated[list[Coordinator], Array("4+")] = field(default_factory=list)
