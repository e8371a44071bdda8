"""Briefly polls instead of sleeping, while a client writes one record after another.

A client that waits for each acknowledgement sends its next record some 50 us later, and followers
have an acks=all record within some 150 us. If the processor goes idle in between, waking it takes
about as long again, and longer on virtual machines. So after such a request the event loop polls a
bounded number of times before it sleeps. Whether polling pays is learnt: after polling in vain, the
next requests are not followed by polling, twice as many each time. Between two polls the loop
yields the processor to other threads. Without that, the client's own threads and followers on the
same machine sometimes wait behind the polling (99th percentile 130 to 190 us; with it, 110 to 130
us).

Rounds are counted and no clock is read, so that the same requests behave the same in a simulation.
"""

from __future__ import annotations

import asyncio
import os

_SKIPPED_MAX = 1024


class BusyPoll:
    """The polling of one listener's event loop. `rounds` 0 switches it off."""

    __slots__ = ("_backoff", "_is_polling", "_left", "_loop", "_rounds", "_skip")

    def __init__(self, loop: asyncio.AbstractEventLoop, rounds: int) -> None:
        self._loop = loop
        self._rounds = rounds
        self._left = 0
        self._skip = 0
        self._backoff = 1
        self._is_polling = False

    def request_taken(self) -> None:
        """Note a small request: a follower's fetch or the next request may follow closely."""
        if self._skip:
            self._skip -= 1
        elif self._is_polling:
            # It came while polling: that was worth it.
            self._left = self._rounds
            self._backoff = 1
        elif self._rounds:
            self._left = self._rounds
            self._is_polling = True
            self._loop.call_soon(self._poll)

    def committed(self) -> None:
        """Note that followers have a request's records: the client's next may follow closely."""
        if self._is_polling:
            self._left = self._rounds

    def _poll(self) -> None:
        # A loop with a pending callback polls its sockets without blocking.
        os.sched_yield()
        self._left -= 1
        if self._left > 0:
            self._loop.call_soon(self._poll)
            return
        self._is_polling = False
        self._skip = self._backoff
        self._backoff = min(self._backoff * 2, _SKIPPED_MAX)
