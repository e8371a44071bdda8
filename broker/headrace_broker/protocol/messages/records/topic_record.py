"""TopicRecord, a metadata record (type 2): that a topic exists."""

from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import ZERO_UUID, Message, String, Uuid, message


@message(api_key=2, versions="0", flexible="0+")
class TopicRecord(Message):
    """Says that a topic exists."""

    name: Annotated[str, String("0+")] = ""
    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
