"""PartitionRecord, a metadata record (type 3).

That a partition exists, with its replicas and leader.
"""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import ZERO_UUID, Array, Int8, Int32, Message, Uuid, message


@message(api_key=3, versions="0-2", flexible="0+")
class PartitionRecord(Message):
    """Says that a partition exists, with its replicas and leader."""

    partition_id: Annotated[int, Int32("0+")] = -1
    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    replicas: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)
    isr: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)
    removing_replicas: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)
    adding_replicas: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)
    leader: Annotated[int, Int32("0+")] = -1
    leader_recovery_state: Annotated[int, Int8("0+", tag=0)] = 0
    leader_epoch: Annotated[int, Int32("0+")] = -1
    partition_epoch: Annotated[int, Int32("0+")] = -1
    directories: Annotated[list[UUID], Array("1+", of=Uuid)] = field(default_factory=list)
    eligible_leader_replicas: Annotated[
        list[int] | None, Array("2+", nullable="2+", tag=1, of=Int32)
    ] = None
    last_known_elr: Annotated[list[int] | None, Array("2+", nullable="2+", tag=2, of=Int32)] = None
