"""Whether this broker still leads what it believes to lead: a lease on leadership.

A broker that the others do not hear is fenced, and others lead its partitions. Nobody can tell it,
and clients may still reach it. Their acks=all writes would wait there for their time-out, again and
again, because REQUEST_TIMED_OUT has no client look for another leader. So a leader is *cut off*
when both

- no controller has answered its heartbeats for the lease: twice the time after which a controller
  fences it, and in which a quorum that lost its leader has another one, and
- an in-sync follower has fetched nothing for half of that, so that nothing can be committed.

It then answers acks=all with NOT_LEADER_OR_FOLLOWER, the writes that wait included, and so readers
who have all that it has, and closes their connections: librdkafka asks only brokers that it is
connected to who leads, and this one does not know. What is committed can be read on, and acks=1 is
taken as ever. Where followers fetch, nothing changes: a quorum that is lost stops no write.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import structlog

from headrace_broker.protocol.types import NodeId

if TYPE_CHECKING:
    from headrace_broker.server.partitions.partition import Partition
    from headrace_broker.server.partitions.replica_manager import ReplicaManager

log = structlog.get_logger()

LOOKS_PER_LEASE = 16


def lease_seconds(session_ms: int, quorum_fetch_timeout_ms: int) -> float:
    """Return how long a leader believes that it leads while nobody answers."""
    return 2 * (session_ms + quorum_fetch_timeout_ms) / 1000


class Membership(Protocol):
    """What is looked at of this broker's membership (`BrokerLifecycle`)."""

    @property
    def heard_at(self) -> float:
        """When a controller answered this broker last, on the event loop's clock."""


class LeaderLease:
    """Marks partitions as cut off, and clears the marks. `start` and `close` on the event loop."""

    def __init__(self, replicas: ReplicaManager, membership: Membership, seconds: float) -> None:
        self._replicas = replicas
        self._membership = membership
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._seen: dict[NodeId, tuple[tuple[int, int] | None, float]] = {}
        self._cut_off: set[Partition] = set()

    def start(self) -> None:
        """Begin to look."""
        self._timer = self._loop.call_later(self._seconds / 2, self._look)

    def close(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        silent = now - self._membership.heard_at
        half = self._seconds / 2
        if silent < half:
            # The usual case: the next look is when the followers would have to be watched. A time
            # too short to move the clock would be waited for again and again.
            self._seen.clear()
            self._mark(set())
            wait = max(half - silent, self._seconds / LOOKS_PER_LEASE)
            self._timer = self._loop.call_later(wait, self._look)
            return
        self._note_fetches(now)
        if silent >= self._seconds:
            self._mark({each for each in self._replicas if self._is_deserted(each, now)})
        self._timer = self._loop.call_later(self._seconds / LOOKS_PER_LEASE, self._look)

    def _note_fetches(self, now: float) -> None:
        """Take note of who has fetched since the last look."""
        places: dict[NodeId, tuple[int, int] | None] = {}
        for partition in self._replicas:
            if partition.leading is not None:
                for node_id in partition.leading.followers:
                    fetch = partition.follower_fetches.get(node_id)
                    places[node_id] = places.get(node_id) or (fetch.place if fetch else None)
        for node_id, place in places.items():
            if node_id not in self._seen or self._seen[node_id][0] != place:
                self._seen[node_id] = place, now

    def _is_deserted(self, partition: Partition, now: float) -> bool:
        """Whether an in-sync follower fetches no more."""
        leading = partition.leading
        if leading is None:
            return False
        since = now - self._seconds / 2
        return any(
            node_id in self._seen
            and self._seen[node_id][1] <= since
            # Without a session each fetch names each partition.
            and progress.last_fetch_ms <= since * 1000
            for node_id, progress in leading.followers.items()
            if node_id in leading.isr
        )

    def _mark(self, found: set[Partition]) -> None:
        before, self._cut_off = self._cut_off, found
        for partition in before - found:
            partition.is_cut_off = False
        # One that became leader again has lost its mark meanwhile.
        fresh = [each for each in found if not each.is_cut_off]
        for partition in fresh:
            partition.is_cut_off = True
        if fresh:
            log.warning(
                "cut off: other brokers may lead what this one led",
                partitions=len(fresh),
                lease_seconds=self._seconds,
            )
            self._replicas.host.purgatory.give_up()
        elif before and not found:
            log.info("cut off no more", partitions=len(before))
