"""AlterPartition (API key 56): let a leader change its in-sync replicas."""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Struct,
    Uuid,
    message,
    struct,
)


@struct
class BrokerState(Struct):
    """An element of ``AlterPartitionRequestPartitionData.new_isr_with_epochs``."""

    broker_id: Annotated[int, Int32("3+")] = 0
    broker_epoch: Annotated[int, Int64("3+")] = -1


@struct
class AlterPartitionRequestPartitionData(Struct):
    """An element of ``AlterPartitionRequestTopicData.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("0+")] = 0
    new_isr: Annotated[list[int], Array("0-2", of=Int32)] = field(default_factory=list)
    new_isr_with_epochs: Annotated[list[BrokerState], Array("3+")] = field(default_factory=list)
    leader_recovery_state: Annotated[int, Int8("1+")] = 0
    partition_epoch: Annotated[int, Int32("0+")] = 0


@struct
class AlterPartitionRequestTopicData(Struct):
    """An element of ``AlterPartitionRequest.topics``."""

    topic_id: Annotated[UUID, Uuid("2+", ignorable=True)] = ZERO_UUID
    partitions: Annotated[list[AlterPartitionRequestPartitionData], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=56, versions="2-3", flexible="0+")
class AlterPartitionRequest(Message):
    """Asks to let a leader change its in-sync replicas."""

    broker_id: Annotated[int, Int32("0+")] = 0
    broker_epoch: Annotated[int, Int64("0+")] = -1
    topics: Annotated[list[AlterPartitionRequestTopicData], Array("0+")] = field(
        default_factory=list
    )


@struct
class AlterPartitionResponsePartitionData(Struct):
    """An element of ``AlterPartitionResponseTopicData.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    leader_id: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("0+")] = 0
    isr: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)
    leader_recovery_state: Annotated[int, Int8("1+", ignorable=True)] = 0
    partition_epoch: Annotated[int, Int32("0+")] = 0


@struct
class AlterPartitionResponseTopicData(Struct):
    """An element of ``AlterPartitionResponse.topics``."""

    topic_id: Annotated[UUID, Uuid("2+", ignorable=True)] = ZERO_UUID
    partitions: Annotated[list[AlterPartitionResponsePartitionData], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=56, versions="2-3", flexible="0+")
class AlterPartitionResponse(Message):
    """Answers ``AlterPartitionRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    topics: Annotated[list[AlterPartitionResponseTopicData], Array("0+")] = field(
        default_factory=list
    )
