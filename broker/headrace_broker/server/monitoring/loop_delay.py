"""Measures how late the event loop wakes: the metric that shows an overloaded broker."""

from __future__ import annotations

import asyncio

from headrace_broker.server.network.metrics import NetworkMetrics

INTERVAL_SECONDS = 0.25


class LoopDelay:
    """A timer that compares when it should have run with when it ran."""

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics: NetworkMetrics) -> None:
        self._loop = loop
        self._metrics = metrics
        self._due = loop.time() + INTERVAL_SECONDS
        self._handle = loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        late = max(0.0, self._loop.time() - self._due)
        metrics = self._metrics
        metrics.event_loop_delay_seconds = 0.9 * metrics.event_loop_delay_seconds + 0.1 * late
        metrics.event_loop_delay_seconds_max = max(metrics.event_loop_delay_seconds_max, late)
        self._due = self._loop.time() + INTERVAL_SECONDS
        self._handle = self._loop.call_at(self._due, self._tick)

    def stop(self) -> None:
        """Stop measuring."""
        self._handle.cancel()
