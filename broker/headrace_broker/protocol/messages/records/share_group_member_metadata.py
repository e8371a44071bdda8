"""ShareGroupMemberMetadata, a coordinator's record (type 10): a member of a share group."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import Array, Message, String, message


@message(api_key=10, versions="0")
class ShareGroupMemberMetadataKey(Message):
    """Key of the record that says a member of a share group."""

    group_id: Annotated[str, String("0")] = ""
    member_id: Annotated[str, String("0")] = ""


@message(api_key=10, versions="0", flexible="0+")
class ShareGroupMemberMetadataValue(Message):
    """Value of the record that says a member of a share group."""

    rack_id: Annotated[str | None, String("0+", nullable="0+")] = ""
    client_id: Annotated[str, String("0+")] = ""
    client_host: Annotated[str, String("0+")] = ""
    subscribed_topic_names: Annotated[list[str], Array("0+", of=String)] = field(
        default_factory=list
    )
