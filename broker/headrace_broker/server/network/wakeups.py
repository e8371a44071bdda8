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

    __slots__ = ("_is_scheduled", "is_held", "woken")

    def __init__(self) -> None:
        self.woken: dict[Woken, None] = {}
        """Those to check."""
        self.is_held = False
        """Whether more appends may come until `check`; set around each read of a socket."""
        self._is_scheduled = False

    def add(self, session: Woken) -> None:
        """Have a session checked: when appends are no longer held, or soon if they are not."""
        self.woken[session] = None
        if not self.is_held and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.check)

    def check(self) -> None:
        """Check them now, which is one turn of the event loop earlier than a callback."""
        self._is_scheduled = False
        woken, self.woken = self.woken, {}
        for session in woken:
            session.look_again()
