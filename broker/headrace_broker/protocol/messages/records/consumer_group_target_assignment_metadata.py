"""ConsumerGroupTargetAssignmentMetadata, a coordinator's record (type 6).

The epoch of a consumer group's target assignment.
"""

from typing import Annotated

from headrace_broker.protocol.schema import Int32, Message, String, message


@message(api_key=6, versions="0")
class ConsumerGroupTargetAssignmentMetadataKey(Message):
    """Key of the record that says the epoch of a consumer group's target assignment."""

    group_id: Annotated[str, String("0")] = ""


@message(api_key=6, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue(Message):
    """Value of the record that says the epoch of a consumer group's target assignment."""

    assignment_epoch: Annotated[int, Int32("0+")] = 0
