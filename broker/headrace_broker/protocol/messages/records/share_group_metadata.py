"""ShareGroupMetadata, a coordinator's record (type 11): the epoch of a share group."""

from typing import Annotated

from headrace_broker.protocol.schema import Int32, Int64, Message, String, message


@message(api_key=11, versions="0")
class ShareGroupMetadataKey(Message):
    """Key of the record that says the epoch of a share group."""

    group_id: Annotated[str, String("0")] = ""


@message(api_key=11, versions="0", flexible="0+")
class ShareGroupMetadataValue(Message):
    """Value of the record that says the epoch of a share group."""

    epoch: Annotated[int, Int32("0+")] = 0
    metadata_hash: Annotated[int, Int64("0+")] = 0
