"""Fetch sessions (KIP-227): a consumer names its partitions once, then only what changes.

Owns the sessions and their epochs; `api/fetch.py` reads the partitions. Sessions are bounded in
number and in partitions; who may evict whom is as in Kafka's FetchSessionCache. A client for which
there is no room is served without a session. A client whose session is gone gets
FETCH_SESSION_ID_NOT_FOUND, and opens a new one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

from headrace_broker.protocol.errors import ErrorCode

NO_SESSION = 0
EPOCH_INITIAL = 0
EPOCH_FINAL = -1
EPOCH_MAX = 2**31 - 1
EVICTION_SECONDS_MIN = 120.0
"""How long a session is safe after it was made, and after each use (Kafka's constant)."""


class FetchPartition:
    """What a consumer asks of one partition, and what it was sent last."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "last_error",
        "last_high_watermark",
        "last_log_start",
        "partition_max_bytes",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: Any, asked: Any) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index: int = asked.partition
        self.last_error = 0
        self.last_high_watermark = -1
        self.last_log_start = -1
        self.update(asked)

    def update(self, asked: Any) -> None:
        """Apply a FetchRequest's FetchPartition."""
        self.current_leader_epoch: int = asked.current_leader_epoch
        self.fetch_offset: int = asked.fetch_offset
        self.partition_max_bytes: int = asked.partition_max_bytes


class FetchSession:
    """One consumer's fetch session, with its partitions in the order in which they are served."""

    __slots__ = ("created", "epoch", "identity", "last_used", "partitions")

    is_privileged = False
    """Whether it is a follower's: those evict consumers' sessions (KIP-227)."""

    def __init__(self, identity: int) -> None:
        self.identity = identity
        self.epoch = 1
        self.created = 0.0
        self.last_used = 0.0
        self.partitions: OrderedDict[tuple[Any, int], FetchPartition] = OrderedDict()

    def update(self, request: Any, partitions_max: int) -> ErrorCode:
        """Add, change and forget partitions as `request` says."""
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                self.partitions.pop((_topic_key(topic), index), None)
        for topic in request.topics:
            key = _topic_key(topic)
            for asked in topic.partitions:
                known = self.partitions.get((key, asked.partition))
                if known is None:
                    if len(self.partitions) >= partitions_max:
                        return ErrorCode.INVALID_REQUEST
                    self.partitions[key, asked.partition] = FetchPartition(
                        topic.topic, topic.topic_id, asked
                    )
                else:
                    known.update(asked)
        return ErrorCode.NONE

    @property
    def size(self) -> int:
        """How many partitions it asks for."""
        return len(self.partitions)

    def close(self) -> None:
        """The session ends."""

    def rotate(self, served: Iterable[FetchPartition]) -> None:
        """Move partitions that had data to the end, so that none starves behind a busy one."""
        for partition in served:
            key = partition.topic or partition.topic_id, partition.index
            # A later request, on another connection, may have removed it in the meantime.
            if self.partitions.get(key) is partition:
                self.partitions.move_to_end(key)


def _topic_key(topic: Any) -> Any:
    """Requests name topics up to version 12, and give their ids from version 13 on."""
    return topic.topic or topic.topic_id


def partitions_of(request: Any) -> Iterator[FetchPartition]:
    """The partitions that a request without a session asks for."""
    for topic in request.topics:
        for asked in topic.partitions:
            yield FetchPartition(topic.topic, topic.topic_id, asked)


class FetchSessions:
    """The sessions of one broker, least recently used first."""

    def __init__(
        self, slots: int, partitions_max: int, rng: Random, now: Callable[[], float]
    ) -> None:
        self._slots = slots
        self._partitions_max = partitions_max
        self._rng = rng
        self._now = now
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self,
        request: Any,
        make: Callable[[int], FetchSession] = FetchSession,
        *,
        is_privileged: bool = False,
    ) -> tuple[FetchSession | None, ErrorCode]:
        """Return the session for a request, None for a sessionless one, or why there is none.

        Epoch 0 opens a session, -1 closes one (the request itself is then a full one), any other
        must be the next of the session that it names. `make` makes a session from its identity.
        """
        identity, epoch = request.session_id, request.session_epoch
        if epoch == EPOCH_FINAL:
            self.close(identity)
            return None, ErrorCode.NONE
        if epoch == EPOCH_INITIAL:
            self.close(identity)
            return self._create(request, make, is_privileged=is_privileged)
        session = self._sessions.get(identity)
        if session is None:
            return None, ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if epoch != session.epoch:
            return None, ErrorCode.INVALID_FETCH_SESSION_EPOCH
        self.advance(session)
        return session, session.update(request, self._partitions_max)

    def upcoming(self, identity: int, epoch: int) -> FetchSession | None:
        """Return the session whose next request has this epoch, or None."""
        session = self._sessions.get(identity)
        return session if session is not None and session.epoch == epoch else None

    def advance(self, session: FetchSession) -> None:
        """Advance the session's epoch by one request."""
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.last_used = self._now()
        self._sessions.move_to_end(session.identity)

    def close(self, identity: int) -> None:
        """Close a session, if it exists."""
        session = self._sessions.pop(identity, None)
        if session is not None:
            session.close()

    def _create(
        self, request: Any, make: Callable[[int], FetchSession], *, is_privileged: bool
    ) -> tuple[FetchSession | None, ErrorCode]:
        size = sum(len(topic.partitions) for topic in request.topics)
        if size > self._partitions_max:
            return None, ErrorCode.INVALID_REQUEST
        if not size or not self._make_room(size, is_privileged=is_privileged):
            return None, ErrorCode.NONE
        identity = NO_SESSION
        while identity == NO_SESSION or identity in self._sessions:
            identity = self._rng.randrange(1, EPOCH_MAX)
        session = make(identity)
        session.update(request, self._partitions_max)
        session.created = session.last_used = self._now()
        self._sessions[identity] = session
        return session, ErrorCode.NONE

    def _make_room(self, size: int, *, is_privileged: bool) -> bool:
        """Evict a session if all slots are taken; return whether there is room for another one.

        A session gives way if it was not used for long, if a follower needs its slot, or to one of
        more partitions if it is not new itself; of these, the smallest does.
        """
        if len(self._sessions) < self._slots:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        now = self._now()
        if now - oldest.last_used > EVICTION_SECONDS_MIN:
            self.close(oldest.identity)
            return True
        evictable = [
            session
            for session in self._sessions.values()
            if now - session.created > EVICTION_SECONDS_MIN
            or (is_privileged and not session.is_privileged)
        ]
        least = min(evictable, key=_value, default=None)
        if least is None or _value(least) >= (is_privileged, size):
            return False
        self.close(least.identity)
        return True


def _value(session: FetchSession) -> tuple[bool, int]:
    return session.is_privileged, session.size
