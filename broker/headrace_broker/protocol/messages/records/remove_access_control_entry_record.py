"""RemoveAccessControlEntryRecord, a metadata record (type 19).

That an access control entry is gone.
"""

from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import ZERO_UUID, Message, Uuid, message


@message(api_key=19, versions="0", flexible="0+")
class RemoveAccessControlEntryRecord(Message):
    """Says that an access control entry is gone."""

    id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
