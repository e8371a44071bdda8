"""ShareGroupTargetAssignmentMetadata, a coordinator's record (type 12).

The epoch of a share group's target assignment.
"""

from typing import Annotated

from headrace_broker.protocol.schema import Int32, Message, String, message


@message(api_key=12, versions="0")
class ShareGroupTargetAssignmentMetadataKey(Message):
    """Key of the record that says the epoch of a share group's target assignment."""

    group_id: Annotated[str, String("0")] = ""


@message(api_key=12, versions="0", flexible="0+")
class ShareGroupTargetAssignmentMetadataValue(Message):
    """Value of the record that says the epoch of a share group's target assignment."""

    assignment_epoch: Annotated[int, Int32("0+")] = 0
