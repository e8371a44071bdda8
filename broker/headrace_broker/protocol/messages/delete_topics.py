"""DeleteTopics (API key 20): delete topics by name or id."""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    Uuid,
    message,
    struct,
)


@struct
class DeleteTopicState(Struct):
    """An element of ``DeleteTopicsRequest.topics``."""

    name: Annotated[str | None, String("6+", nullable="6+")] = None
    topic_id: Annotated[UUID, Uuid("6+")] = ZERO_UUID


@message(api_key=20, versions="1-6", flexible="4+")
class DeleteTopicsRequest(Message):
    """Asks to delete topics by name or id."""

    topics: Annotated[list[DeleteTopicState], Array("6+")] = field(default_factory=list)
    topic_names: Annotated[list[str], Array("0-5", ignorable=True, of=String)] = field(
        default_factory=list
    )
    timeout_ms: Annotated[int, Int32("0+")] = 0


@struct
class DeletableTopicResult(Struct):
    """An element of ``DeleteTopicsResponse.responses``."""

    name: Annotated[str | None, String("0+", nullable="6+")] = ""
    topic_id: Annotated[UUID, Uuid("6+", ignorable=True)] = ZERO_UUID
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("5+", nullable="5+", ignorable=True)] = None


@message(api_key=20, versions="1-6", flexible="4+")
class DeleteTopicsResponse(Message):
    """Answers ``DeleteTopicsRequest``."""

    throttle_time_ms: Annotated[int, Int32("1+", ignorable=True)] = 0
    responses: Annotated[list[DeletableTopicResult], Array("0+")] = field(default_factory=list)
