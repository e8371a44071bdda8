"""StreamsGroupMetadata, a coordinator's record (type 17): the epoch of a streams group."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    message,
    struct,
)


@message(api_key=17, versions="0")
class StreamsGroupMetadataKey(Message):
    """Key of the record that says the epoch of a streams group."""

    group_id: Annotated[str, String("0")] = ""


@struct
class LastAssignmentConfig(Struct):
    """An element of ``StreamsGroupMetadataValue.last_assignment_configs``."""

    key: Annotated[str, String("0+")] = ""
    value: Annotated[str, String("0+")] = ""


@message(api_key=17, versions="0", flexible="0+")
class StreamsGroupMetadataValue(Message):
    """Value of the record that says the epoch of a streams group."""

    epoch: Annotated[int, Int32("0+")] = 0
    metadata_hash: Annotated[int, Int64("0+")] = 0
    validated_topology_epoch: Annotated[int, Int32("0+", tag=0)] = -1
    last_assignment_configs: Annotated[
        list[LastAssignmentConfig] | None, Array("0+", nullable="0+", tag=1)
    ] = field(default_factory=list)
