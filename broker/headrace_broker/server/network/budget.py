"""The memory that requests and responses in flight may take, over all connections of a broker.

An unfinished frame counts when its buffer is allocated; a response counts until its client has read
it. Once the budget is used up, a fetch returns one batch, and no frame's buffer grows beyond its
first 64 KiB, except that of one connection at a time: the one that misses the fewest bytes. So a
frame that is larger than the whole budget is served, too, and connections cannot wait for each
other for ever.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from itertools import count
from typing import Protocol


class Waiter(Protocol):
    """A connection whose buffer is full and may not grow."""

    short_since: float | None
    """Since when it waits for memory."""

    def resume(self) -> None:
        """Ask again for room, and read again if there is some."""


class Budget:
    """Bytes; `limit` is `queued.max.request.bytes`."""

    __slots__ = (
        "_exempt",
        "_is_scheduled",
        "_nearest",
        "_numbers",
        "_waiting",
        "is_spent",
        "limit",
        "used",
    )

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.is_spent = False
        """Whether the budget is used up."""
        self._exempt: Waiter | None = None
        self._waiting: dict[Waiter, int] = {}
        # (missing bytes, number, waiter, bytes to grow by); stale where the number is not the
        # waiter's in `_waiting`.
        self._nearest: list[tuple[int, int, Waiter, int]] = []
        self._numbers = count()
        self._is_scheduled = False

    @property
    def left(self) -> int:
        """Bytes left in the budget."""
        return max(0, self.limit - self.used)

    def take(self, size: int) -> None:
        """Count memory that is in use from now on."""
        self.used += size
        self.is_spent = self.used > self.limit

    def give(self, size: int) -> None:
        """Count memory that is free again; connections that wait for it continue soon."""
        self.used -= size
        self.is_spent = self.used > self.limit
        if self._waiting:
            self._serve_soon()

    # buffers that may not grow

    def admits(self, connection: Waiter, growth: int) -> bool:
        """Whether a connection's buffer may grow; without room, one connection's still may."""
        if self.used + growth > self.limit and connection is not self._exempt:
            if self._exempt is not None:
                return False
            self._exempt = connection
        self._stop_waiting(connection)
        return True

    def wait(self, connection: Waiter, *, missing: int, growth: int, now: float) -> None:
        """Call `connection.resume` when its buffer may grow; `missing` bytes end its frame."""
        if connection.short_since is None:
            connection.short_since = now
        if connection in self._waiting:
            return
        number = next(self._numbers)
        self._waiting[connection] = number
        heappush(self._nearest, (missing, number, connection, growth))

    def leave(self, connection: Waiter) -> None:
        """Forget a connection whose frame is complete, or that is gone."""
        self._stop_waiting(connection)
        if connection is self._exempt:
            self._exempt = None
            if self._waiting:
                self._serve_soon()

    def blocks_others(self, connection: Waiter) -> bool:
        """Whether others wait until this connection's frame is complete."""
        return connection is self._exempt and bool(self._waiting)

    def _stop_waiting(self, connection: Waiter) -> None:
        connection.short_since = None
        self._waiting.pop(connection, None)

    def _serve_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """Resume waiting connections while there is room, those that miss the least first."""
        self._is_scheduled = False
        for _ in range(len(self._nearest)):
            if not self._nearest:
                return
            _, number, connection, growth = self._nearest[0]
            is_stale = self._waiting.get(connection) != number
            if not is_stale and self._exempt is not None and self.used + growth > self.limit:
                return
            heappop(self._nearest)
            if not is_stale:
                del self._waiting[connection]
                connection.resume()
