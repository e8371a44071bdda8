"""Latency of one record at a time, and many connections at once."""

import asyncio
import statistics
import struct
import time
from dataclasses import dataclass
from datetime import timedelta

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from kio.schema.produce.v9.request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

from benchmark.measure import Figures, Goal, Measure, Scenario, fresh_topic
from support.batches import NewRecord, build_batch
from support.peer import Peer
from support.wire import encode_request, split_address

_MB = 1_000_000
_WARM_UP = 2000
_DELIVERY_SECONDS = 30


def percentile(samples: list[float], fraction: float) -> float:
    """Return the sample below which `fraction` of all samples lie."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]


class OneAtATime:
    """A confluent-kafka producer that waits for each record's acknowledgement."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._is_delivered = False
        settings = {"bootstrap.servers": bootstrap, "acks": "1", "linger.ms": 0}
        self._producer = Producer(settings)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        self._is_delivered = True

    def send(self, value: bytes) -> float:
        """Return the microseconds from `produce` to the acknowledgement."""
        self._is_delivered = False
        began = time.perf_counter()
        self._producer.produce(self._topic, value, on_delivery=self._delivered)
        while not self._is_delivered:
            self._producer.poll(_DELIVERY_SECONDS)
        return (time.perf_counter() - began) * 1e6


def latency_scenario(samples: int) -> Scenario:
    """p50, p99 and p99.9 of one record at a time."""
    value = bytes(100)

    def run(side: Peer) -> Figures:
        with fresh_topic(side) as topic:
            producer = OneAtATime(side.bootstrap, topic)
            for _ in range(_WARM_UP):
                producer.send(value)
            cpu_before = side.cpu_seconds()
            times = [producer.send(value) for _ in range(samples)]
            cpu = side.cpu_seconds() - cpu_before
        return {
            "p50": statistics.median(times),
            "p99": percentile(times, 0.99),
            "p999": percentile(times, 0.999),
            "cpu": cpu * 1e6 / samples,
        }

    return Scenario(
        key="latency",
        title="One record at a time: confluent-kafka, acks=1, 100 B",
        command=f"confluent-kafka Producer, linger.ms=0, {samples} times produce and wait",
        measures=(
            Measure(key="p50", title="p50", unit="µs", goal=Goal(bound=0.6, is_at_least=False)),
            Measure(key="p99", title="p99", unit="µs", goal=Goal(bound=0.6, is_at_least=False)),
            Measure(key="p999", title="p99.9", unit="µs"),
            Measure(key="cpu", title="broker CPU per million requests", unit="s"),
        ),
        run=run,
    )


@dataclass(frozen=True, kw_only=True)
class Flood:
    """Many connections that each send requests one after the other."""

    address: str
    request: bytes
    connections: int
    requests_each: int


async def _converse(flood: Flood, start: asyncio.Event, times: list[float]) -> None:
    reader, writer = await asyncio.open_connection(*split_address(flood.address))
    await start.wait()
    for _ in range(flood.requests_each):
        began = time.perf_counter()
        writer.write(flood.request)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        await reader.readexactly(size)
        times.append((time.perf_counter() - began) * 1e6)
    await start.wait()
    writer.close()


async def _flood(flood: Flood) -> tuple[float, list[float]]:
    times: list[float] = []
    start = asyncio.Event()
    tasks = [asyncio.create_task(_converse(flood, start, times)) for _ in range(flood.connections)]
    await asyncio.sleep(1)
    began = time.perf_counter()
    start.set()
    await asyncio.gather(*tasks)
    return time.perf_counter() - began, times


def produce_frame(topic: str, value: bytes) -> bytes:
    """Return a whole Produce request (version 9, acks=1) of one record to partition 0."""
    batch = build_batch([NewRecord(value=value)])
    data = TopicProduceData(
        name=topic, partition_data=(PartitionProduceData(index=0, records=batch),)
    )
    request = ProduceRequest(acks=1, timeout=timedelta(seconds=30), topic_data=(data,))
    body = encode_request(request, 1)
    return struct.pack(">i", len(body)) + body


def connections_scenario(connections: int, requests_each: int) -> Scenario:
    """Many clients that each write one record at a time."""

    def run(side: Peer) -> Figures:
        with fresh_topic(side) as topic:
            flood = Flood(
                address=side.bootstrap,
                request=produce_frame(topic, bytes(100)),
                connections=connections,
                requests_each=requests_each,
            )
            cpu_before = side.cpu_seconds()
            seconds, times = asyncio.run(_flood(flood))
            cpu = side.cpu_seconds() - cpu_before
            return {
                "rate": len(times) / seconds,
                "p99": percentile(times, 0.99) / 1000,
                "cpu": cpu * 1e6 / len(times),
                "rss": side.rss_bytes() / _MB,
            }

    return Scenario(
        key="connections",
        title=f"{connections:,} connections, one 100 B record at a time each, acks=1",
        command=f"{connections} sockets, {requests_each} Produce requests each",
        measures=(
            Measure(key="rate", title="requests per second", unit="/s"),
            Measure(key="p99", title="p99", unit="ms"),
            Measure(key="cpu", title="broker CPU per million requests", unit="s"),
            Measure(key="rss", title="memory (RSS) right after", unit="MB"),
        ),
        run=run,
    )
