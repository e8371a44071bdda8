"""One ShareFetch: acquires records of a session's partitions, and waits if there are none.

It waits in the partitions' `fetch_waiters` for appends, and at the share partitions for released
records, expired locks and loaded state.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace_broker.coordinator.share_partition.partition import AcquireRequest
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.share_fetch import AcquiredRecords, PartitionData

if TYPE_CHECKING:
    from headrace_broker.server.partitions.partition import Partition
    from headrace_broker.server.shares.share_partition_driver import SharePartitionDriver
    from headrace_broker.server.shares.share_partitions import SharePartitions
    from headrace_broker.server.shares.share_sessions import ShareSession, TopicIdPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchBounds:
    """How much a fetch may return and how long it may wait."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    records_max: int
    batch_size: int
    is_strict: bool


class _Arrival:
    """Sets an event on appends, which call `appended`."""

    __slots__ = ("_event",)

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    def appended(self, size: int) -> None:
        """Note that there may be more to read."""
        del size
        self._event.set()


class ShareFetch:
    """The records that one request acquires."""

    def __init__(self, shares: SharePartitions, session: ShareSession, bounds: FetchBounds) -> None:
        self.found: dict[TopicIdPartition, PartitionData] = {}
        self._shares = shares
        self._session = session
        self._bounds = bounds
        self._order = session.rotated()
        self._records_left = bounds.records_max
        self._bytes_left = bounds.max_bytes
        self._tells = not self._order
        """Whether there is something to answer with."""

    async def run(self) -> None:
        """Return when records are acquired, there is an error to report, or the time is over.

        Below `min_bytes` nothing is acquired, because the locks would run while the fetch waits.
        """
        if self._bounds.max_wait_ms <= 0:
            self._read()
            return
        if self._is_enough() and self._read():
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._bounds.max_wait_ms / 1000
        event = asyncio.Event()
        arrival = _Arrival(event)
        partitions, drivers = self._watched()
        for partition in partitions:
            partition.fetch_waiters[arrival] = None
        for driver in drivers:
            driver.waiters[event] = None
        try:
            while (left_s := deadline - loop.time()) > 0:
                try:
                    async with asyncio.timeout(left_s):
                        await event.wait()
                except TimeoutError:
                    break
                event.clear()
                if self._is_enough() and self._read():
                    return
            self._read()
        finally:
            for partition in partitions:
                partition.fetch_waiters.pop(arrival, None)
            for driver in drivers:
                driver.waiters.pop(event, None)

    def _watched(self) -> tuple[list[Partition], list[SharePartitionDriver]]:
        drivers = []
        for where in self._order:
            try:
                drivers.append(self._shares.driver(self._session.group_id, where))
            except ApiError:
                continue
        return [driver.partition for driver in drivers], drivers

    def _is_enough(self) -> bool:
        """Whether `min_bytes` can be read, or there is an error to report."""
        missing = self._bounds.min_bytes
        if missing <= 1:
            return True
        for where in self._order:
            try:
                driver = self._shares.driver(self._session.group_id, where)
                missing -= driver.readable_bytes(missing)
            except ApiError as error:
                self._add_error(where, error)
                return True
            if missing <= 0:
                return True
        return False

    def _read(self) -> bool:
        """Acquire the available records; return True if the answer should go out now."""
        for where in self._order:
            if self._records_left <= 0 or self._bytes_left <= 0:
                break
            request = AcquireRequest(
                member_id=self._session.member_id,
                records_max=self._records_left,
                batch_size=self._bounds.batch_size,
                is_strict=self._bounds.is_strict,
            )
            data = PartitionData(partition_index=where[1], records=b"")
            try:
                driver = self._shares.driver(self._session.group_id, where)
                records, acquired = driver.fetch(request, self._bytes_left)
            except ApiError as error:
                self._add_error(where, error)
                continue
            if not acquired:
                continue
            data.records = records
            data.acquired_records = [
                AcquiredRecords(
                    first_offset=item.first, last_offset=item.last, delivery_count=item.count
                )
                for item in acquired
            ]
            self._records_left -= sum(item.last - item.first + 1 for item in acquired)
            self._bytes_left -= len(records)
            self.found[where] = data
            self._tells = True
        return self._tells

    def _add_error(self, where: TopicIdPartition, error: ApiError) -> None:
        self.found[where] = PartitionData(
            partition_index=where[1],
            records=b"",
            error_code=error.code,
            error_message=error.message,
        )
        self._tells = True
