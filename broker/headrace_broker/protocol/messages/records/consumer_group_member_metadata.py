"""ConsumerGroupMemberMetadata, a coordinator's record (type 5): a member of a consumer group."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bytes,
    Int32,
    Message,
    Nested,
    String,
    Struct,
    message,
    struct,
)


@message(api_key=5, versions="0")
class ConsumerGroupMemberMetadataKey(Message):
    """Key of the record that says a member of a consumer group."""

    group_id: Annotated[str, String("0")] = ""
    member_id: Annotated[str, String("0")] = ""


@struct
class ClassicProtocol(Struct):
    """An element of ``ClassicMemberMetadata.supported_protocols``."""

    name: Annotated[str, String("0+")] = ""
    metadata: Annotated[bytes, Bytes("0+")] = b""


@struct
class ClassicMemberMetadata(Struct):
    """The value of ``ConsumerGroupMemberMetadataValue.classic_member_metadata``."""

    session_timeout_ms: Annotated[int, Int32("0+")] = 0
    supported_protocols: Annotated[list[ClassicProtocol], Array("0+")] = field(default_factory=list)


@message(api_key=5, versions="0", flexible="0+")
class ConsumerGroupMemberMetadataValue(Message):
    """Value of the record that says a member of a consumer group."""

    instance_id: Annotated[str | None, String("0+", nullable="0+")] = ""
    rack_id: Annotated[str | None, String("0+", nullable="0+")] = ""
    client_id: Annotated[str, String("0+")] = ""
    client_host: Annotated[str, String("0+")] = ""
    subscribed_topic_names: Annotated[list[str], Array("0+", of=String)] = field(
        default_factory=list
    )
    subscribed_topic_regex: Annotated[str | None, String("0+", nullable="0+")] = ""
    rebalance_timeout_ms: Annotated[int, Int32("0+")] = -1
    server_assignor: Annotated[str | None, String("0+", nullable="0+")] = ""
    classic_member_metadata: Annotated[
        ClassicMemberMetadata | None, Nested("0+", nullable="0+", tag=0)
    ] = field(default_factory=ClassicMemberMetadata)
