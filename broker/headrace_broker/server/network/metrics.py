"""Counters that the hot path updates: plain integers, which `web` reads at each scrape.

prometheus-client's own counters take a lock and a dictionary look-up each, several times the cost
of the request they would count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

# Seconds; from a tenth of a millisecond (an append) to ten seconds (a long poll and more).
LATENCY_BUCKETS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)


class ApiMetrics:
    """What one API did since the start."""

    __slots__ = ("bucket_counts", "errors", "name", "requests", "seconds_sum")

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests = 0
        self.seconds_sum = 0.0
        self.bucket_counts = [0] * (len(LATENCY_BUCKETS) + 1)
        self.errors: dict[int, int] = {}

    def observe(self, seconds: float) -> None:
        """Count one answered request; `seconds` runs from its last byte to its response."""
        self.requests += 1
        self.seconds_sum += seconds
        self.bucket_counts[bisect_left(LATENCY_BUCKETS, seconds)] += 1

    def count_errors(self, codes: Sequence[int]) -> None:
        """Count the error codes in an answer: each once, however many partitions have it."""
        for code in set(codes):
            self.errors[code] = self.errors.get(code, 0) + 1


class NetworkMetrics:
    """Bytes, connections and rejections of one broker."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "connections",
        "connections_opened",
        "connections_refused",
        "event_loop_delay_seconds",
        "event_loop_delay_seconds_max",
        "malformed_requests",
        "slow_readers_closed",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections = 0
        self.connections_opened = 0
        self.connections_refused = 0
        self.malformed_requests = 0
        self.slow_readers_closed = 0
        self.event_loop_delay_seconds = 0.0
        self.event_loop_delay_seconds_max = 0.0
