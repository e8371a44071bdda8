"""How long a server that is away is asked again: in growing intervals, and up to a bound.

A restart of a node, a failover or a short overload must not fail a batch. A server that stays away
must: whoever runs the job sees it then, and the next driver writes the batch.
"""

from __future__ import annotations

import time

import structlog

__all__ = ["OUTAGE_SECONDS_MAX", "AwayError", "Outage"]

#: How long a server may be down, or refuse, before the batch fails, and with it the job.
OUTAGE_SECONDS_MAX = 60.0
_INTERVAL_SECONDS_MIN = 0.25
_INTERVAL_SECONDS_MAX = 5.0


class AwayError(Exception):
    """A server was away for longer than it is waited for; the message says what was tried."""


class Outage:
    """The failures of one request, from the first one on. It begins with the first `wait`."""

    def __init__(self, server: str, seconds_max: float) -> None:
        self._server = server
        self._seconds_max = seconds_max
        self._began = 0.0
        self._attempts = 0

    def wait(self, reason: object) -> None:
        """Wait before the next attempt. Raises `AwayError` when the time is over."""
        # Of several lines a log and a job's end show the first ones.
        why = " ".join(str(reason).split())
        now = time.monotonic()
        if self._attempts == 0:
            self._began = now
        self._attempts += 1
        waited = now - self._began
        if waited >= self._seconds_max:
            raise AwayError(
                f"{self._server} was asked {self._attempts} times in {waited:.0f} s, and does not"
                f" take it: {why}. See that it runs, is reached from here and has room; nothing"
                " is lost: the next driver begins with this batch"
            )
        if self._attempts == 1:
            structlog.get_logger(__name__).warning(
                "a server is away or refuses; asking again",
                server=self._server,
                for_seconds=self._seconds_max,
                reason=why,
            )
        interval = min(_INTERVAL_SECONDS_MIN * 2 ** (self._attempts - 1), _INTERVAL_SECONDS_MAX)
        time.sleep(min(interval, self._began + self._seconds_max - now))
