"""Heartbeat (API key 12): keep a member of a classic group alive."""

from typing import Annotated

from headrace_broker.protocol.schema import Int16, Int32, Message, String, message


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatRequest(Message):
    """Asks to keep a member of a classic group alive."""

    group_id: Annotated[str, String("0+")] = ""
    generation_id: Annotated[int, Int32("0+")] = 0
    member_id: Annotated[str, String("0+")] = ""
    group_instance_id: Annotated[str | None, String("3+", nullable="3+")] = None


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatResponse(Message):
    """Answers ``HeartbeatRequest``."""

    throttle_time_ms: Annotated[int, Int32("1+", ignorable=True)] = 0
    error_code: Annotated[int, Int16("0+")] = 0
