"""`Clock`: where the log layer gets the time when its caller does not pass it."""

from typing import Protocol

from headrace_broker.protocol.types import TimestampMs


class Clock(Protocol):
    """Wall-clock time; tests pass one that they move."""

    def now_ms(self) -> TimestampMs:
        """Milliseconds since 1970."""
        ...
