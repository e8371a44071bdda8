"""A lease on leadership: whether this broker still leads the partitions that it thinks it leads.

If the controller no longer hears a broker, it fences it and elects other leaders. The isolated
broker does not learn of that, and clients may still reach it. Their acks=all writes would time out
there again and again, because no client looks for another leader after REQUEST_TIMED_OUT. So a
leader counts as *cut off* when both

- no controller has answered its heartbeats for one lease: twice the sum of the session timeout,
  after which a controller fences a broker, and the quorum's fetch timeout, after which a quorum
  that lost its leader elects another, and
- an in-sync follower has not fetched for half a lease, so that nothing can be committed.

It then answers acks=all with NOT_LEADER_OR_FOLLOWER, waiting writes included, and does the same to
consumers that have read to the end. It also closes their connections: librdkafka asks only the
brokers that it is connected to who leads, and this broker does not know. Committed records stay
readable, and acks=1 writes are accepted as always. While followers fetch, nothing changes: a lost
quorum stops no writes.
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
    """Return how long a leader keeps its leases without an answer from a controller."""
    return 2 * (session_ms + quorum_fetch_timeout_ms) / 1000


class Membership(Protocol):
    """The part of this broker's membership (`BrokerLifecycle`) that the lease reads."""

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
        self._cut_off: dict[Partition, None] = {}

    def start(self) -> None:
        """Begin to check."""
        self._timer = self._loop.call_later(self._seconds / 2, self._look)

    def close(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        silent = now - self._membership.heard_at
        half = self._seconds / 2
        if silent < half:
            # The usual case: check again when the followers would have to be watched. The minimum
            # keeps the timer from firing again and again with a delay too short to move the clock.
            self._seen.clear()
            self._mark({})
            wait = max(half - silent, self._seconds / LOOKS_PER_LEASE)
            self._timer = self._loop.call_later(wait, self._look)
            return
        self._note_fetches(now)
        if silent >= self._seconds:
            self._mark(
                dict.fromkeys(each for each in self._replicas if self._is_deserted(each, now))
            )
        self._timer = self._loop.call_later(self._seconds / LOOKS_PER_LEASE, self._look)

    def _note_fetches(self, now: float) -> None:
        """Record which followers have fetched since the last check."""
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
        """Whether an in-sync follower has stopped fetching."""
        leading = partition.leading
        if leading is None:
            return False
        since = now - self._seconds / 2
        return any(
            node_id in self._seen
            and self._seen[node_id][1] <= since
            # A fetch without a session names each partition.
            and progress.last_fetch_ms <= since * 1000
            for node_id, progress in leading.followers.items()
            if node_id in leading.isr
        )

    def _mark(self, found: dict[Partition, None]) -> None:
        before, self._cut_off = self._cut_off, found
        for partition in before:
            if partition not in found:
                partition.is_cut_off = False
        # A partition that became leader again in the meantime has lost its mark.
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
