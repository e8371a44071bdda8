"""BrokerHeartbeat (API key 63).

Keep a broker's registration alive and learn whether it is fenced.
"""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import Array, Bool, Int16, Int32, Int64, Message, Uuid, message


@message(api_key=63, versions="0-1", flexible="0+")
class BrokerHeartbeatRequest(Message):
    """Asks to keep a broker's registration alive and learn whether it is fenced."""

    broker_id: Annotated[int, Int32("0+")] = 0
    broker_epoch: Annotated[int, Int64("0+")] = -1
    current_metadata_offset: Annotated[int, Int64("0+")] = 0
    want_fence: Annotated[bool, Bool("0+")] = False
    want_shut_down: Annotated[bool, Bool("0+")] = False
    offline_log_dirs: Annotated[list[UUID], Array("1+", tag=0, of=Uuid)] = field(
        default_factory=list
    )


@message(api_key=63, versions="0-1", flexible="0+")
class BrokerHeartbeatResponse(Message):
    """Answers ``BrokerHeartbeatRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    is_caught_up: Annotated[bool, Bool("0+")] = False
    is_fenced: Annotated[bool, Bool("0+")] = True
    should_shut_down: Annotated[bool, Bool("0+")] = False
