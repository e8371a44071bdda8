"""Share sessions (KIP-932): which partitions a member reads here, on which connection.

A session belongs to a connection: when it is lost, the member's acquired records are released.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from headrace_broker.protocol.errors import ApiError, ErrorCode

OPENING_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 2**31 - 1

TopicIdPartition = tuple[UUID, int]
Connection = tuple[str, int]
"""A listener's name, and the connection's number there."""
Owner = tuple[str, str]
"""A group and a member."""


@dataclass(slots=True, kw_only=True)
class ShareSession:
    """One member's session. Its partitions are in the order in which they came."""

    group_id: str
    member_id: str
    connection: Connection
    partitions_max: int
    epoch: int = 1
    """The session epoch that the next request must have."""
    partitions: dict[TopicIdPartition, None] = field(default_factory=dict)

    def change(self, added: Sequence[TopicIdPartition], gone: Sequence[TopicIdPartition]) -> None:
        """Add and remove partitions. Raises INVALID_REQUEST where they would be too many."""
        if not added and not gone:
            return
        partitions = self.partitions | dict.fromkeys(added)
        for where in gone:
            partitions.pop(where, None)
        if len(partitions) > self.partitions_max:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"{len(partitions)} partitions in a share session: more than "
                "headrace.fetch.session.max.partitions",
            )
        self.partitions = partitions

    def rotated(self) -> list[TopicIdPartition]:
        """Return the partitions, rotated by one each time so that none starves the rest."""
        found = list(self.partitions)
        place = self.epoch % len(found) if found else 0
        return found[place:] + found[:place]


class ShareSessions:
    """The sessions of this broker."""

    def __init__(self, sessions_max: int, partitions_max: int) -> None:
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._sessions: dict[Owner, ShareSession] = {}

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self._sessions)

    def open(self, group_id: str, member_id: str, connection: Connection) -> ShareSession:
        """Open a member's session and replace an older one. Raises ApiError."""
        owner = (group_id, member_id)
        if owner not in self._sessions and len(self._sessions) >= self._sessions_max:
            raise ApiError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED, "group.share.max.share.sessions is reached"
            )
        session = ShareSession(
            group_id=group_id,
            member_id=member_id,
            connection=connection,
            partitions_max=self._partitions_max,
        )
        self._sessions[owner] = session
        return session

    def take(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """Return the session for a request of this epoch, and advance its epoch.

        Raises SHARE_SESSION_NOT_FOUND or INVALID_SHARE_SESSION_EPOCH.
        """
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise ApiError(
                ErrorCode.SHARE_SESSION_NOT_FOUND,
                f"member {member_id} of {group_id} has no share session here",
            )
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            raise ApiError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH,
                f"the share session's epoch is {session.epoch}, not {epoch}",
            )
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        return session

    def close(self, session: ShareSession) -> bool:
        """Close a session; return whether it was its member's current one."""
        owner = (session.group_id, session.member_id)
        if self._sessions.get(owner) is not session:
            return False
        del self._sessions[owner]
        return True

    def of_connection(self, connection: Connection) -> list[ShareSession]:
        """Return the sessions of a connection."""
        return [item for item in self._sessions.values() if item.connection == connection]

    def has_group(self, group_id: str) -> bool:
        """Whether any member of the group has a session here."""
        return any(group == group_id for group, _ in self._sessions)

    def __iter__(self) -> Iterator[ShareSession]:
        """Yield every session."""
        return iter(self._sessions.values())
