"""ShareGroupStatePartitionMetadata, a coordinator's record (type 15).

Which partitions of a share group have state.
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


@message(api_key=15, versions="0")
class ShareGroupStatePartitionMetadataKey(Message):
    """Key of the record that says which partitions of a share group have state."""

    group_id: Annotated[str, String("0")] = ""


@struct
class TopicPartitionsInfo(Struct):
    """An element of ``ShareGroupStatePartitionMetadataValue.initializing_topics`` and others."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    topic_name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@struct
class TopicInfo(Struct):
    """An element of ``ShareGroupStatePartitionMetadataValue.deleting_topics``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    topic_name: Annotated[str, String("0+")] = ""


@message(api_key=15, versions="0", flexible="0+")
class ShareGroupStatePartitionMetadataValue(Message):
    """Value of the record that says which partitions of a share group have state."""

    initializing_topics: Annotated[list[TopicPartitionsInfo], Array("0+")] = field(
        default_factory=list
    )
    initialized_topics: Annotated[list[TopicPartitionsInfo], Array("0+")] = field(
        default_factory=list
    )
    deleting_topics: Annotated[list[TopicInfo], Array("0+")] = field(default_factory=list)
