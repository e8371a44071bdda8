"""RemoveTopicRecord, a metadata record (type 9): that a topic is gone."""

from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import ZERO_UUID, Message, Uuid, message


@message(api_key=9, versions="0", flexible="0+")
class RemoveTopicRecord(Message):
    """Says that a topic is gone."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
