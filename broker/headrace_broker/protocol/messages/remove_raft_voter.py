"""RemoveRaftVoter (API key 81): remove a voter from the metadata quorum."""

from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import ZERO_UUID, Int16, Int32, Message, String, Uuid, message


@message(api_key=81, versions="0", flexible="0+")
class RemoveRaftVoterRequest(Message):
    """Asks to remove a voter from the metadata quorum."""

    cluster_id: Annotated[str | None, String("0+", nullable="0+")] = ""
    voter_id: Annotated[int, Int32("0+")] = 0
    voter_directory_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID


@message(api_key=81, versions="0", flexible="0+")
class RemoveRaftVoterResponse(Message):
    """Answers ``RemoveRaftVoterRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+", ignorable=True)] = ""
