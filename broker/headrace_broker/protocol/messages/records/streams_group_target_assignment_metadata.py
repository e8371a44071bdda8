"""StreamsGroupTargetAssignmentMetadata, a coordinator's record (type 20).

The epoch of a streams group's target assignment.
"""

from typing import Annotated

from headrace_broker.protocol.schema import Int32, Message, String, message


@message(api_key=20, versions="0")
class StreamsGroupTargetAssignmentMetadataKey(Message):
    """Key of the record that says the epoch of a streams group's target assignment."""

    group_id: Annotated[str, String("0")] = ""


@message(api_key=20, versions="0", flexible="0+")
class StreamsGroupTargetAssignmentMetadataValue(Message):
    """Value of the record that says the epoch of a streams group's target assignment."""

    assignment_epoch: Annotated[int, Int32("0+")] = 0
