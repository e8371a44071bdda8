"""`SharePartitions`: the share partitions that this broker leads, and their members here.

A share partition is loaded when its first member fetches, and dropped when this broker no longer
leads it or when the group's last session here closes. An administrator may change the state of a
group without members, so the next member's fetch reads it again.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from headrace_broker.coordinator.share_partition.partition import SharePartition
from headrace_broker.coordinator.share_state.state import ShareKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.server.clock import Clock
from headrace_broker.server.partitions.partition import ANY_EPOCH, not_leader
from headrace_broker.server.partitions.replica_manager import ReplicaManager
from headrace_broker.server.shares.share_partition_driver import (
    DeadLetterTopics,
    SharePartitionDriver,
    StatePersister,
    Status,
)
from headrace_broker.server.shares.share_sessions import (
    Connection,
    ShareSession,
    ShareSessions,
    TopicIdPartition,
)
from headrace_broker.server.shares.share_settings import ShareConfigs

_RETIRE_DELAY_S: Final = 0.05


@dataclass(slots=True, kw_only=True)
class ShareTotals:
    """Totals of one group's records on this broker since it started."""

    redelivered: int = 0
    rejected: int = 0
    undeliverable: int = 0
    dead_lettered: int = 0
    dead_letters_lost: int = 0

    def add(self, state: SharePartition) -> None:
        """Add one share partition."""
        self.redelivered += state.redelivered
        self.rejected += state.rejected
        self.undeliverable += state.undeliverable
        self.dead_lettered += state.dead_lettered
        self.dead_letters_lost += state.dead_letters_lost


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCount:
    """One share partition, for metrics."""

    group_id: str
    topic: str
    in_flight: int


class SharePartitions:
    """This broker's share partitions and share sessions. All methods run on the event loop."""

    def __init__(
        self,
        replicas: ReplicaManager,
        persister: StatePersister,
        clock: Clock,
        configs: ShareConfigs,
        sessions: ShareSessions,
        dead_letters: DeadLetterTopics,
    ) -> None:
        self.configs = configs
        self.sessions = sessions
        self._replicas = replicas
        self._persister = persister
        self._clock = clock
        self._dead_letters = dead_letters
        self._drivers: dict[ShareKey, SharePartitionDriver] = {}
        self._totals: dict[str, ShareTotals] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def open_session(self, group_id: str, member_id: str, connection: Connection) -> ShareSession:
        """Open a member's session. A group's first session loads its state. Raises ApiError."""
        if not self.sessions.has_group(group_id):
            for driver in self._of_group(group_id):
                if driver.is_settled:
                    self._forget(driver.key)
        return self.sessions.open(group_id, member_id, connection)

    def driver(self, group_id: str, where: TopicIdPartition) -> SharePartitionDriver:
        """Return a share partition, which may still be loading. Raises ApiError."""
        topic_id, index = where
        partition = self._replicas.partition_by_id(topic_id, index)
        partition.check_leader(ANY_EPOCH)
        key = ShareKey(group_id=group_id, topic_id=topic_id, partition=index)
        driver = self._drivers.get(key)
        if driver is not None and (driver.status is Status.CLOSED or not driver.is_current):
            error = driver.error
            was_closed = driver.status is Status.CLOSED
            self._forget(key)
            if was_closed:
                raise error  # once; the next request retries
            driver = None
        if driver is None:
            driver = self._drivers[key] = SharePartitionDriver(
                key,
                partition,
                self._persister,
                self._clock,
                lambda: self.configs.of(group_id),
                self._dead_letters,
            )
        return driver

    def known_driver(self, group_id: str, where: TopicIdPartition) -> SharePartitionDriver:
        """Return a share partition whose records members may have acquired. Raises ApiError."""
        driver = self.driver(group_id, where)
        if driver.status is Status.LOADING:
            raise ApiError(
                ErrorCode.INVALID_RECORD_STATE, "the records are not acquired: the leader is new"
            )
        return driver

    def close_session(self, session: ShareSession) -> None:
        """Close a session, and release everything that its member has acquired."""
        if not self.sessions.close(session):
            return
        for driver in self._of_group(session.group_id):
            driver.release(session.member_id)
        if not self.sessions.has_group(session.group_id):
            task = asyncio.get_running_loop().create_task(self._retire(session.group_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def disconnected(self, connection: Connection) -> None:
        """Close the sessions of a lost connection."""
        for session in self.sessions.of_connection(connection):
            self.close_session(session)

    async def _retire(self, group_id: str) -> None:
        """Drop a group's partitions once all their state is durable, unless a member joins."""
        while not self.sessions.has_group(group_id):
            drivers = self._of_group(group_id)
            if not drivers:
                return
            for driver in drivers:
                if driver.is_settled:
                    self._forget(driver.key)
            await asyncio.sleep(_RETIRE_DELAY_S)

    def leaders_changed(self) -> None:
        """Close the partitions that this broker no longer leads."""
        for key, driver in list(self._drivers.items()):
            if not driver.is_current:
                self._forget(key)

    def _forget(self, key: ShareKey) -> None:
        driver = self._drivers.pop(key)
        driver.close(not_leader())
        self._totals.setdefault(key.group_id, ShareTotals()).add(driver.state)

    def _of_group(self, group_id: str) -> list[SharePartitionDriver]:
        return [driver for key, driver in self._drivers.items() if key.group_id == group_id]

    def close(self) -> None:
        """Close everything."""
        for task in self._tasks:
            task.cancel()
        for key in list(self._drivers):
            self._forget(key)

    # ---- metrics

    def counts(self) -> Iterator[ShareCount]:
        """Yield every share partition in use."""
        for key, driver in self._drivers.items():
            if driver.status is Status.ACTIVE:
                yield ShareCount(
                    group_id=key.group_id,
                    topic=driver.partition.topic,
                    in_flight=driver.state.in_flight,
                )

    def totals(self) -> dict[str, ShareTotals]:
        """Return each group's totals."""
        found = {group_id: replace(item) for group_id, item in self._totals.items()}
        for key, driver in self._drivers.items():
            found.setdefault(key.group_id, ShareTotals()).add(driver.state)
        return found
