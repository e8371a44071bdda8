"""The text of the metrics, and that others are served while it is written."""

import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace_broker.web.exposition import exposition


class Families(Collector):
    """Some families, one of which has very many samples."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("empty", 'Nothing.\nBut a \\ and a "line".', labels=["a"])
        many = GaugeMetricFamily("many", "Line\nbreak.", labels=["a", "b"])
        for number in range(self._samples):
            many.add_metric([f'"{number}\n', "x"], number / 2)
        yield many
        yield CounterMetricFamily("last", "The last one.", value=1)


@pytest.mark.parametrize("samples", [0, 1, 999, 1000, 1001, 2000, 5003])
def test_metrics_are_written_as_the_library_writes_them(samples: int) -> None:
    registry = CollectorRegistry()
    registry.register(Families(samples))
    assert asyncio.run(exposition(registry)) == generate_latest(registry)


def test_others_are_served_while_metrics_are_written() -> None:
    registry = CollectorRegistry()
    registry.register(Families(20_000))

    async def run() -> int:
        writing = asyncio.ensure_future(exposition(registry))
        turns = 0
        while not writing.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(run()) >= 20
