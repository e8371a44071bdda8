"""OffsetCommit, a coordinator's record (type 1): a group's offset of a partition."""

from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import ZERO_UUID, Int32, Int64, Message, String, Uuid, message


@message(api_key=1, versions="0")
class OffsetCommitKey(Message):
    """Key of the record that says a group's offset of a partition."""

    group: Annotated[str, String("0")] = ""
    topic: Annotated[str, String("0")] = ""
    partition: Annotated[int, Int32("0")] = 0


@message(api_key=1, versions="0-4", flexible="4+")
class OffsetCommitValue(Message):
    """Value of the record that says a group's offset of a partition."""

    offset: Annotated[int, Int64("0+")] = 0
    leader_epoch: Annotated[int, Int32("3+", ignorable=True)] = -1
    metadata: Annotated[str, String("0+")] = ""
    commit_timestamp: Annotated[int, Int64("0+")] = 0
    expire_timestamp: Annotated[int, Int64("1", ignorable=True)] = -1
    topic_id: Annotated[UUID, Uuid("4+", tag=0, ignorable=True)] = ZERO_UUID
