"""BrokerRegistrationChangeRecord, a metadata record (type 17).

What changed in a broker's registration.
"""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import Array, Int8, Int32, Int64, Message, Uuid, message


@message(api_key=17, versions="0-2", flexible="0+")
class BrokerRegistrationChangeRecord(Message):
    """Says what changed in a broker's registration."""

    broker_id: Annotated[int, Int32("0+")] = 0
    broker_epoch: Annotated[int, Int64("0+")] = 0
    fenced: Annotated[int, Int8("0+", tag=0)] = 0
    in_controlled_shutdown: Annotated[int, Int8("1+", tag=1)] = 0
    log_dirs: Annotated[list[UUID], Array("2+", tag=2, of=Uuid)] = field(default_factory=list)
