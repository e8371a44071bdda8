"""KRaftVersionRecord: the control record that sets the quorum's own version."""

from typing import Annotated

from headrace_broker.protocol.schema import Int16, Message, message


@message(versions="0", flexible="0+")
class KRaftVersionRecord(Message):
    """The control record that sets the quorum's own version."""

    version: Annotated[int, Int16("0+")] = 0
    k_raft_version: Annotated[int, Int16("0+")] = 0
