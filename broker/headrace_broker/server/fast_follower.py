"""The usual fetch of a follower in one straight line, on the leader's side.

It takes the next request of a session by its bytes, counts it as progress, which commits, and lays
the answer out, at once or when there are records. It decides nothing by itself: what a follower may
fetch and what that commits is `ReplicaSession`'s, as on the general path, to which everything goes
that is not exactly this: another session, an error, partitions that come or go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.codec import encoder
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.fetch import FetchResponse
from headrace_broker.server.fast_fetch import FAST_VERSION, Found, read_request, write_answer
from headrace_broker.server.frames import flexible_frame
from headrace_broker.server.replica_sessions import ReplicaSession
from headrace_broker.server.slots import FrameSlot

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker

API_KEY = int(ApiKey.FETCH)


class FastFollower:
    """Answers followers' fetches of one listener."""

    __slots__ = ("_broker", "_sessions")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sessions = broker.fetch_sessions

    def answer(
        self, frame: memoryview, version: int, correlation_id: int, position: int
    ) -> list[Any] | FrameSlot | None:
        """Return the answer's frame, its place where it waits, or None where this is not usual."""
        request = read_request(frame, position) if version == FAST_VERSION else None
        if request is None:
            return None
        max_wait_ms, max_bytes, identity, epoch, node_id, broker_epoch, asked = request
        session = self._sessions.upcoming(identity, epoch)
        if (
            type(session) is not ReplicaSession
            or session.node_id != node_id
            or session.parked is not None
            or not self._is_registered(session, broker_epoch)
        ):
            return None
        fetches = session.fetches
        found = [(fetches[one[:2]], one) for one in asked if one[:2] in fetches]
        if len(found) < len(asked):
            return None
        self._sessions.advance(session)
        session.proceed(found, broker_epoch, max_bytes)
        if session.is_due() or max_wait_ms <= 0:
            return answer_frame(session, correlation_id, ErrorCode.NONE)
        slot = FollowerSlot(session, correlation_id)
        session.park(slot, max_wait_ms / 1000)
        return slot

    def _is_registered(self, session: ReplicaSession, broker_epoch: int) -> bool:
        host = self._broker.replicas.host
        registered = host.image.brokers.get(session.node_id)
        return (
            registered is not None
            and broker_epoch >= registered.epoch
            and session.node_id != host.node_id
        )


class FollowerSlot(FrameSlot):
    """A fetch that waits for records."""

    __slots__ = ("_session",)

    def __init__(self, session: ReplicaSession, correlation_id: int) -> None:
        super().__init__(correlation_id)
        self._session = session

    def answer(self, session: ReplicaSession, error: ErrorCode) -> None:
        """Answer it with what the session has to tell."""
        self.send(answer_frame(session, self.correlation_id, error))

    def abandon(self) -> None:
        """The follower is gone."""
        super().abandon()
        self._session.unpark(self)


def answer_frame(session: ReplicaSession, correlation_id: int, error: ErrorCode) -> list[Any]:
    """Return the frame of an answer with what the session has to tell, which counts as told."""
    news = session.take()
    usual = [data for _, data in news if type(data) is Found]
    parts: list[Any] | None = None
    if error is ErrorCode.NONE and len(usual) == len(news):
        parts = write_answer(session.identity, usual)
    if parts is None:
        response = session.response_of(news)
        response.error_code = error
        parts = encoder(FetchResponse, FAST_VERSION)(response)
    return flexible_frame(correlation_id, parts)
