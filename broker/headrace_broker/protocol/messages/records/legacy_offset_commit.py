"""LegacyOffsetCommit, a coordinator's record (type 0).

A group's offset of a partition, in the oldest format.
"""

from typing import Annotated

from headrace_broker.protocol.schema import Int32, Int64, Message, String, message


@message(api_key=0, versions="0")
class LegacyOffsetCommitKey(Message):
    """Key of the record that says a group's offset of a partition, in the oldest format."""

    group: Annotated[str, String("0")] = ""
    topic: Annotated[str, String("0")] = ""
    partition: Annotated[int, Int32("0")] = 0


@message(api_key=0, versions="0")
class LegacyOffsetCommitValue(Message):
    """Value of the record that says a group's offset of a partition, in the oldest format."""

    offset: Annotated[int, Int64("0")] = 0
    metadata: Annotated[str, String("0")] = ""
    commit_timestamp: Annotated[int, Int64("0")] = 0
