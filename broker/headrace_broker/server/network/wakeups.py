"""Checks the sessions that appends woke, once for all requests of one socket read."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Woken(Protocol):
    """A follower's session that has records to send."""

    def look_again(self) -> None:
        """Send the records, if the follower's fetch waits."""


class Wakeups:
    """Sessions that appends woke: each is checked once for all requests of one socket read."""

    __slots__ = ("_is_held", "_is_scheduled", "_woken")

    def __init__(self) -> None:
        self._woken: dict[Woken, None] = {}
        self._is_held = False
        self._is_scheduled = False

    def add(self, session: Woken) -> None:
        """Have a session checked: at the next `release`, or soon if none is pending."""
        self._woken[session] = None
        if not self._is_held and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def hold(self) -> None:
        """Wait for `release`: more appends may come until then."""
        self._is_held = True

    def release(self) -> None:
        """Check them now, which is one turn of the event loop earlier than a callback."""
        self._is_held = False
        if self._woken:
            self._run()

    def _run(self) -> None:
        self._is_scheduled = False
        woken, self._woken = self._woken, {}
        for session in woken:
            session.look_again()
