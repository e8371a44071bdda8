"""AccessControlEntryRecord, a metadata record (type 18): that an access control entry exists."""

from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import ZERO_UUID, Int8, Message, String, Uuid, message


@message(api_key=18, versions="0", flexible="0+")
class AccessControlEntryRecord(Message):
    """Says that an access control entry exists."""

    id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    resource_type: Annotated[int, Int8("0+")] = 0
    resource_name: Annotated[str, String("0+")] = ""
    pattern_type: Annotated[int, Int8("0+")] = 0
    principal: Annotated[str, String("0+")] = ""
    host: Annotated[str, String("0+")] = ""
    operation: Annotated[int, Int8("0+")] = 0
    permission_type: Annotated[int, Int8("0+")] = 0
