"""The one place that reads the time; everything else is told (STYLE, rule 4)."""

from __future__ import annotations

import time
from typing import Protocol

from headrace_broker.protocol.types import TimestampMs


class Clock(Protocol):
    """Wall-clock time, as records and retention use it."""

    def now_ms(self) -> TimestampMs:
        """Return milliseconds since 1970 UTC."""
        ...


class SystemClock:
    """This machine's clock."""

    def now_ms(self) -> TimestampMs:
        """Return milliseconds since 1970 UTC."""
        return TimestampMs(time.time_ns() // 1_000_000)
