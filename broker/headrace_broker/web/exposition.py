"""Writes metrics in Prometheus' text format, a piece in each turn of the event loop.

A scrape of some thousand topics or groups takes most of a second; clients are served meanwhile.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

_SAMPLES_AT_A_TIME: Final = 1000
"""Some ten milliseconds."""


async def exposition(registry: CollectorRegistry) -> bytes:
    """Return what `generate_latest` returns. Collectors go on after others have run."""
    pieces = []
    for family in registry.collect():
        for piece in _pieces(family):
            pieces.append(piece)
            await asyncio.sleep(0)
    return b"".join(pieces)


def _pieces(family: Metric) -> Iterator[bytes]:
    """Yield the family's text; only the first piece has the lines with its help and type."""
    yield generate_latest(_Part(family, 0))
    for start in range(_SAMPLES_AT_A_TIME, len(family.samples), _SAMPLES_AT_A_TIME):
        _, _, samples = generate_latest(_Part(family, start)).split(b"\n", 2)
        yield samples


class _Part(Collector):
    """Some samples of a family."""

    def __init__(self, family: Metric, start: int) -> None:
        self._part = copy.copy(family)
        self._part.samples = family.samples[start : start + _SAMPLES_AT_A_TIME]

    def collect(self) -> Iterator[Metric]:
        """Yield them as a family."""
        yield self._part
