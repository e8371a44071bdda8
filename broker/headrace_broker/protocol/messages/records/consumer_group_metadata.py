"""ConsumerGroupMetadata, a coordinator's record (type 3): the epoch of a consumer group."""

from typing import Annotated

from headrace_broker.protocol.schema import Int32, Int64, Message, String, message


@message(api_key=3, versions="0")
class ConsumerGroupMetadataKey(Message):
    """Key of the record that says the epoch of a consumer group."""

    group_id: Annotated[str, String("0")] = ""


@message(api_key=3, versions="0", flexible="0+")
class ConsumerGroupMetadataValue(Message):
    """Value of the record that says the epoch of a consumer group."""

    epoch: Annotated[int, Int32("0+")] = 0
    metadata_hash: Annotated[int, Int64("0+", tag=0)] = 0
