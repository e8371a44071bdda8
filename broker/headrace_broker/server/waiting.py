"""Who waits at a partition: consumers and followers for news, producers to be committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.types import Offset

EVERYTHING = 2**31
"""More bytes than anybody waits for."""

TIMER_SECONDS = 0.001  # the event loop's resolution

Acknowledge = Callable[[ApiError | None], None]
"""Told once: that records are committed (None), or that they perhaps are not."""


class AppendWaiter(Protocol):
    """Somebody who waits for records, told of how many bytes became readable."""

    def appended(self, size: int) -> None:
        """Take note; must not append, and must not raise."""


class FollowerFetch(Protocol):
    """One follower's standing request for this partition."""

    def appended(self) -> None:
        """There are records to send."""

    def changed(self) -> None:
        """There is something else to tell: a high watermark, a log start, an error."""


class Woken(Protocol):
    """A follower's session that has records to send."""

    def look_again(self) -> None:
        """Send them, if the follower waits."""


class Wakeups:
    """Sessions that appends woke: each is looked at once for all the requests of one read."""

    __slots__ = ("_is_held", "_is_scheduled", "_woken")

    def __init__(self) -> None:
        self._woken: dict[Woken, None] = {}
        self._is_held = False
        self._is_scheduled = False

    def add(self, session: Woken) -> None:
        """Have a session looked at: at the next `release`, or soon where none is to come."""
        self._woken[session] = None
        if not self._is_held and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def hold(self) -> None:
        """Wait for `release`: there may be more appends until then."""
        self._is_held = True

    def release(self) -> None:
        """Look at them now: a turn of the event loop less than a callback."""
        self._is_held = False
        if self._woken:
            self._run()

    def _run(self) -> None:
        self._is_scheduled = False
        woken, self._woken = self._woken, {}
        for session in woken:
            session.look_again()


class Expiring(Protocol):
    """Somebody whose patience ends."""

    def expire(self) -> None:
        """It has ended."""


class Deadlines:
    """Who waits for how long: one timer for all with the same patience, set anew when it rings."""

    __slots__ = ("_by_timeout",)

    def __init__(self) -> None:
        self._by_timeout: dict[int, dict[Expiring, float]] = {}

    def add(self, waiter: Expiring, timeout_ms: int) -> None:
        """Call `waiter.expire` after `timeout_ms`, unless it is discarded before."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        waiters = self._by_timeout.get(timeout_ms)
        if waiters is None:
            waiters = self._by_timeout[timeout_ms] = {}
            loop.call_at(deadline, self._ring, timeout_ms)
        waiters[waiter] = deadline

    def discard(self, waiter: Expiring, timeout_ms: int) -> None:
        """It waits no more."""
        waiters = self._by_timeout.get(timeout_ms)
        if waiters is not None:
            waiters.pop(waiter, None)

    def _ring(self, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        waiters = self._by_timeout[timeout_ms]
        while waiters:
            waiter, deadline = next(iter(waiters.items()))
            if deadline > loop.time() + TIMER_SECONDS:
                loop.call_at(deadline, self._ring, timeout_ms)
                return
            del waiters[waiter]
            waiter.expire()
        del self._by_timeout[timeout_ms]


class CommitWaiters:
    """Those who wait for offsets to be committed, the lowest first."""

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[Offset, int, Acknowledge]] = []
        self._order = 0

    def add(self, offset: Offset, acknowledge: Acknowledge) -> None:
        """Call `acknowledge` when all below `offset` is committed, or will not be."""
        self._order += 1
        heappush(self._heap, (offset, self._order, acknowledge))

    def future(self, offset: Offset) -> asyncio.Future[None]:
        """Return a future of the moment when all below `offset` is committed."""
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

    def fail(self, error: ApiError) -> None:
        """Nobody can say what becomes of the records."""
        heap, self._heap = self._heap, []
        for _, _, acknowledge in heap:
            acknowledge(error)
