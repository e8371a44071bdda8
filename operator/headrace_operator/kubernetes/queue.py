"""The queue of keys to reconcile: each key once, one worker per key at a time, with retries.

Owns when a key is due, not what is done with it. A key that is added while a worker has it becomes
due again right after that; a failed key returns later each time, up to a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

__all__ = ["JITTER", "QueueKey", "WorkQueue"]

#: Kind, namespace and name.
QueueKey: TypeAlias = tuple[str, str, str]

BACKOFF_SECONDS_MIN = 0.2
BACKOFF_SECONDS_MAX = 60.0
#: Retries of many keys at once must not return at once.
JITTER = 0.2


class WorkQueue:
    """Keys that are due, and those that will be."""

    def __init__(self, clock: Callable[[], float], rng: random.Random) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._rng = rng
        # A dict is a set that keeps the order of arrival.
        self._ready: dict[QueueKey, None] = {}
        self._working: set[QueueKey] = set()
        self._again: set[QueueKey] = set()
        self._due: dict[QueueKey, float] = {}
        self._heap: list[tuple[float, QueueKey]] = []
        self._failures: dict[QueueKey, int] = {}
        self._changed = asyncio.Event()

    @property
    def depth(self) -> int:
        """How many keys are due and not taken."""
        return len(self._ready)

    def add(self, key: QueueKey) -> None:
        """Make a key due now."""
        self._due.pop(key, None)
        if key in self._working:
            self._again.add(key)
        elif key not in self._ready:
            self._ready[key] = None
            self._changed.set()

    def add_after(self, key: QueueKey, delay_seconds: float) -> None:
        """Make a key due later, unless it is due earlier anyway."""
        if key in self._ready or key in self._again:
            return
        due = self._clock() + delay_seconds
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))
            self._changed.set()

    def add_resync(self, key: QueueKey, period_seconds: float) -> None:
        """Make a key due after about this period, with jitter so that keys spread out."""
        self.add_after(key, period_seconds * (1 + JITTER * (2 * self._rng.random() - 1)))

    def retry(self, key: QueueKey) -> float:
        """Make a failed key due, later than the last time; return in how many seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_MIN * float(1 << min(failures, 16)))
        delay *= 1 + JITTER * (2 * self._rng.random() - 1)
        self.add_after(key, delay)
        return delay

    def failures(self, key: QueueKey) -> int:
        """Return how often a key failed in a row."""
        return self._failures.get(key, 0)

    def succeeded(self, key: QueueKey) -> None:
        """Reset the failures of a key."""
        self._failures.pop(key, None)

    async def take(self) -> QueueKey:
        """Wait for a key that is due; no other worker gets it before `done`."""
        while True:
            timeout = self._promote()
            if self._ready:
                key = next(iter(self._ready))
                del self._ready[key]
                self._working.add(key)
                return key
            self._changed.clear()
            # `wait_for` of Python 3.11 would swallow a cancellation that comes with a change.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._changed.wait()

    def done(self, key: QueueKey) -> None:
        """Return a key; it is due again if it was added in the meantime."""
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _promote(self) -> float | None:
        """Move due keys to the ready keys; return the seconds until the next is due."""
        now = self._clock()
        while self._heap:
            due, key = self._heap[0]
            if self._due.get(key) != due:
                heapq.heappop(self._heap)
            elif due <= now:
                heapq.heappop(self._heap)
                self.add(key)
            else:
                return due - now
        return None
