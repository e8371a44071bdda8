"""When a consumer's fetch is answered at once, and when it waits."""

import asyncio
from random import Random
from types import SimpleNamespace

import pytest

from headrace_broker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from headrace_broker.server.api.fetch import handle
from headrace_broker.server.fetch.fetch_sessions import FetchSessions
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.delayed import DelayedOperation
from support.replication import Pair

BYTES = 1000


@pytest.fixture
def partition(tmp_path):
    pair = Pair(tmp_path)
    pair.lead(1)
    pair.append_everywhere(1, 10, b"x" * BYTES)
    found = pair.partitions[1]
    assert found.high_watermark == found.log.log_end_offset
    return found


def fetch(partition, *, min_bytes, max_bytes=1 << 20, limit=1 << 20, of_partition=1 << 20):
    values = {"fetch.max.bytes": limit, "headrace.fetch.max.wait.ms": 500}
    replicas = SimpleNamespace(
        partition=lambda _topic, _index: partition, selects_by_rack=False, host=partition.host
    )
    node = SimpleNamespace(
        replicas=replicas,
        config=SimpleNamespace(values=values),
        budget=SimpleNamespace(left=1 << 30),
        fetch_sessions=FetchSessions(10, 10, Random(1), lambda: 0.0),
    )
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=of_partition)
    request = FetchRequest(
        max_wait_ms=60_000,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic="t", partitions=[asked])],
    )
    context = RequestContext(12, 1, "c", "127.0.0.1", "PLAINTEXT", 1)
    return handle(node, context, request)


def in_a_loop(partition, **bounds):
    async def run():
        return fetch(partition, **bounds)

    return asyncio.run(run())


@pytest.mark.parametrize(
    "bounds",
    [
        {"min_bytes": 5000, "max_bytes": 3000},
        {"min_bytes": 5000, "limit": 3000},
        {"min_bytes": 3000, "of_partition": 3000},
    ],
)
def test_a_fetch_that_can_hold_no_more_does_not_wait_for_more(partition, bounds):
    """Only whole batches are returned, which are less than a bound: as in Kafka, that is enough."""
    answer = in_a_loop(partition, **bounds)
    assert isinstance(answer, FetchResponse)
    (data,) = answer.responses[0].partitions
    assert BYTES < len(data.records) < 3000


@pytest.mark.parametrize(
    "bounds", [{"min_bytes": 20_000}, {"min_bytes": 3001, "of_partition": 3000}]
)
def test_a_fetch_waits_for_its_minimum(partition, bounds):
    assert isinstance(in_a_loop(partition, **bounds), DelayedOperation)
