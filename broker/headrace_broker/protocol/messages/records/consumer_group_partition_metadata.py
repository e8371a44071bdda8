"""ConsumerGroupPartitionMetadata, a coordinator's record (type 4).

Which partition counts a consumer group saw (disused).
"""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Int32,
    Message,
    String,
    Struct,
    Uuid,
    message,
    struct,
)


@message(api_key=4, versions="0")
class ConsumerGroupPartitionMetadataKey(Message):
    """Key of the record that says which partition counts a consumer group saw (disused)."""

    group_id: Annotated[str, String("0")] = ""


@struct
class PartitionMetadata(Struct):
    """An element of ``TopicMetadata.partition_metadata``."""

    partition: Annotated[int, Int32("0+")] = 0
    racks: Annotated[list[str], Array("0+", of=String)] = field(default_factory=list)


@struct
class TopicMetadata(Struct):
    """An element of ``ConsumerGroupPartitionMetadataValue.topics``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    topic_name: Annotated[str, String("0+")] = ""
    num_partitions: Annotated[int, Int32("0+")] = 0
    partition_metadata: Annotated[list[PartitionMetadata], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=4, versions="0", flexible="0+")
class ConsumerGroupPartitionMetadataValue(Message):
    """Value of the record that says which partition counts a consumer group saw (disused)."""

    topics: Annotated[list[TopicMetadata], Array("0+")] = field(default_factory=list)
