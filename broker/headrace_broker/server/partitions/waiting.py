"""Who waits for a partition: fetches wait for records, producers for a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.types import Offset

EVERYTHING = 2**31
"""More bytes than any fetch waits for."""

NOWHERE = Offset(-1)
"""Below every offset."""

Acknowledge = Callable[[ApiError | None], None]
"""Called once: with None when the records are committed, else with the error."""


class AppendWaiter(Protocol):
    """A delayed fetch, which is told how many bytes became readable."""

    def appended(self, size: int) -> None:
        """Take note; must not append, and must not raise."""


class FollowerFetch(Protocol):
    """One follower's standing request for this partition."""

    @property
    def place(self) -> tuple[int, int]:
        """Its session and the session epoch, which counts the follower's requests."""

    def appended(self) -> None:
        """There are records to send."""

    def changed(self) -> None:
        """Something else to send: a high watermark, a log start offset, an error."""


class CommitWaiters:
    """Requests that wait for offsets to be committed, the lowest offset first."""

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[Offset, int, Acknowledge]] = []
        self._order = 0

    def add(self, offset: Offset, acknowledge: Acknowledge) -> None:
        """Call `acknowledge` when all below `offset` is committed, or when that cannot be known."""
        self._order += 1
        heappush(self._heap, (offset, self._order, acknowledge))

    def future(self, offset: Offset) -> asyncio.Future[None]:
        """Return a future that completes when all below `offset` is committed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def acknowledge(error: ApiError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.add(offset, acknowledge)
        return future

    def commit(self, end: Offset) -> None:
        """Everything below `end` is committed."""
        heap = self._heap
        while heap and heap[0][0] <= end:
            heappop(heap)[2](None)

    def fail(self, error: ApiError, above: Offset = NOWHERE) -> None:
        """Fail all waiters for more than `above`: their records are gone, or nobody knows."""
        heap = sorted(self._heap)
        self._heap = [each for each in heap if each[0] <= above]
        for offset, _, acknowledge in heap:
            if offset > above:
                acknowledge(error)
