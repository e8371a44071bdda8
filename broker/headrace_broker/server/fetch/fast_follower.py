"""The fast path of a follower's fetch, on the leader's side.

It recognises the next request of a session by its bytes, records it as progress, which may commit,
and builds the answer's frame, at once or when there are records. It decides nothing itself:
`ReplicaSession` decides what a follower may fetch and what that commits, as on the general path.
The general path gets everything else: another session, an error, partitions that are added or
removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.fast_fetch import FAST_VERSION, Found, read_request, write_answer
from headrace_broker.server.fetch.replica_sessions import (
    DelayedFollowerFetch,
    ReplicaSession,
    is_believed,
)
from headrace_broker.server.network.frames import flexible_frame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_broker.server.fetch.fetch_sessions import FetchSessions
    from headrace_broker.server.network.api_entry import ApiEntry
    from headrace_broker.server.partitions.replica_manager import ReplicaManager

API_KEY = int(ApiKey.FETCH)


class Node(Protocol):
    """The parts of the node that are used here; `replicas` is read at the first request."""

    @property
    def apis(self) -> Mapping[int, ApiEntry]:
        """The served APIs."""

    @property
    def fetch_sessions(self) -> FetchSessions:
        """The fetch sessions (KIP-227)."""

    @property
    def replicas(self) -> ReplicaManager:
        """This broker's replicas."""


class FastFollower:
    """Answers followers' fetches on one listener."""

    __slots__ = ("_entry", "_node", "_sessions")

    def __init__(self, node: Node) -> None:
        self._node = node
        self._entry = node.apis[API_KEY]
        self._sessions = node.fetch_sessions

    def answer(
        self, frame: memoryview, version: int, correlation_id: int, position: int
    ) -> list[Any] | FastDelayedFetch | None:
        """Return the answer's frame, a delayed fetch, or None if the general path must answer."""
        request = read_request(frame, position) if version == FAST_VERSION else None
        if request is None:
            return None
        max_wait_ms, max_bytes, identity, epoch, node_id, broker_epoch, asked = request
        session = self._sessions.upcoming(identity, epoch)
        if (
            type(session) is not ReplicaSession
            or session.node_id != node_id
            or session.delayed is not None
            or not is_believed(self._node.replicas.host, node_id, broker_epoch)
        ):
            return None
        fetches = session.fetches
        found = [(fetches[one[:2]], one) for one in asked if one[:2] in fetches]
        if len(found) < len(asked):
            return None
        self._sessions.advance(session)
        session.proceed(found, broker_epoch, max_bytes)
        if not session.must_wait(max_wait_ms):
            return answer_frame(session, self._entry, correlation_id, ErrorCode.NONE)
        delayed = FastDelayedFetch(session, version, correlation_id)
        session.delay(delayed, max_wait_ms / 1000)
        return delayed


class FastDelayedFetch(DelayedFollowerFetch):
    """A delayed fetch under the fast codec."""

    __slots__ = ()

    def answer(self, error: ErrorCode) -> None:
        """Answer with what the session has to send."""
        self.send_frame(answer_frame(self._session, self.entry, self.correlation_id, error))


def answer_frame(
    session: ReplicaSession, entry: ApiEntry, correlation_id: int, error: ErrorCode
) -> list[Any]:
    """Return the frame with what the session has to send, which then counts as sent."""
    taken = session.take()
    usual = [data for _, data in taken if type(data) is Found]
    parts: list[Any] | None = None
    if error is ErrorCode.NONE and len(usual) == len(taken):
        parts = write_answer(session.identity, usual)
    if parts is None:
        response = session.response_of(taken)
        response.error_code = error
        parts = entry.encode(response, FAST_VERSION)
    return flexible_frame(correlation_id, parts)
