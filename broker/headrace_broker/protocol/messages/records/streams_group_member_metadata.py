"""StreamsGroupMemberMetadata, a coordinator's record (type 19): a member of a streams group."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Int32,
    Message,
    Nested,
    String,
    Struct,
    UInt16,
    message,
    struct,
)


@message(api_key=19, versions="0")
class StreamsGroupMemberMetadataKey(Message):
    """Key of the record that says a member of a streams group."""

    group_id: Annotated[str, String("0")] = ""
    member_id: Annotated[str, String("0")] = ""


@struct
class Endpoint(Struct):
    """The value of ``StreamsGroupMemberMetadataValue.user_endpoint``."""

    host: Annotated[str, String("0+")] = ""
    port: Annotated[int, UInt16("0+")] = 0


@struct
class KeyValue(Struct):
    """An element of ``StreamsGroupMemberMetadataValue.client_tags``."""

    key: Annotated[str, String("0+")] = ""
    value: Annotated[str, String("0+")] = ""


@message(api_key=19, versions="0", flexible="0+")
class StreamsGroupMemberMetadataValue(Message):
    """Value of the record that says a member of a streams group."""

    instance_id: Annotated[str | None, String("0+", nullable="0+")] = ""
    rack_id: Annotated[str | None, String("0+", nullable="0+")] = ""
    client_id: Annotated[str, String("0+")] = ""
    client_host: Annotated[str, String("0+")] = ""
    rebalance_timeout_ms: Annotated[int, Int32("0+")] = -1
    topology_epoch: Annotated[int, Int32("0+")] = 0
    process_id: Annotated[str, String("0+")] = ""
    user_endpoint: Annotated[Endpoint | None, Nested("0+", nullable="0+")] = None
    client_tags: Annotated[list[KeyValue], Array("0+")] = field(default_factory=list)
