"""Producer ids for this broker, from blocks that the controller hands out (KIP-730).

A block is in the metadata log before its first id is used, so no id is ever handed out twice,
whichever node crashes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headrace_broker.protocol.types import ProducerId


class ProducerIds:
    """Hands out ids one by one."""

    def __init__(self, allocate: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        """`allocate` returns the first id and the length of a new block."""
        self._allocate = allocate
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def next_id(self) -> ProducerId:
        """Return an id that was never handed out before."""
        async with self._lock:
            if self._next == self._end:
                start, length = await self._allocate()
                self._next, self._end = start, start + length
            self._next += 1
            return ProducerId(self._next - 1)
