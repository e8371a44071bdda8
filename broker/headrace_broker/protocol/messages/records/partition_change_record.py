"""PartitionChangeRecord, a metadata record (type 5): what changed in a partition."""

from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import ZERO_UUID, Array, Int8, Int32, Message, Uuid, message


@message(api_key=5, versions="0-2", flexible="0+")
class PartitionChangeRecord(Message):
    """Says what changed in a partition."""

    partition_id: Annotated[int, Int32("0+")] = -1
    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    isr: Annotated[list[int] | None, Array("0+", nullable="0+", tag=0, of=Int32)] = None
    leader: Annotated[int, Int32("0+", tag=1)] = -2
    replicas: Annotated[list[int] | None, Array("0+", nullable="0+", tag=2, of=Int32)] = None
    removing_replicas: Annotated[list[int] | None, Array("0+", nullable="0+", tag=3, of=Int32)] = (
        None
    )
    adding_replicas: Annotated[list[int] | None, Array("0+", nullable="0+", tag=4, of=Int32)] = None
    leader_recovery_state: Annotated[int, Int8("0+", tag=5)] = -1
    directories: Annotated[list[UUID] | None, Array("1+", nullable="1+", tag=8, of=Uuid)] = None
    eligible_leader_replicas: Annotated[
        list[int] | None, Array("2+", nullable="2+", tag=6, of=Int32)
    ] = None
    last_known_elr: Annotated[list[int] | None, Array("2+", nullable="2+", tag=7, of=Int32)] = None
