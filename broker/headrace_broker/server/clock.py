"""The only module that reads the time; all other code gets it passed in."""

from __future__ import annotations

import time

from headrace_broker.log.clock import Clock
from headrace_broker.protocol.types import TimestampMs

__all__ = ["Clock", "SystemClock"]


class SystemClock:
    """This machine's clock."""

    def now_ms(self) -> TimestampMs:
        """Return milliseconds since 1970 UTC."""
        return TimestampMs(time.time_ns() // 1_000_000)
