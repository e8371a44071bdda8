"""DescribeLogDirs: the log directories of this broker, and how much each replica takes.

Versions: 1 as 0 · 2 flexible · 3 top-level error · 4 total and usable bytes (KIP-827).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.context import RequestContext
    from headrace_broker.server.partition import Partition

API_KEY = ApiKey.DESCRIBE_LOG_DIRS


def handle(
    broker: Broker, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Answer for all partitions (null) or those asked for; others are left out, as in Kafka."""
    topics: dict[str, DescribeLogDirsTopic] = {}
    for partition in _asked(broker, request):
        topic = topics.get(partition.topic)
        if topic is None:
            topic = DescribeLogDirsTopic(name=partition.topic, partitions=[])
            topics[partition.topic] = topic
        topic.partitions.append(
            DescribeLogDirsPartition(
                partition_index=partition.index,
                partition_size=partition.log.size_bytes,
                offset_lag=max(0, partition.high_watermark - partition.log.log_end_offset),
            )
        )
    usage = shutil.disk_usage(broker.directory.path)
    result = DescribeLogDirsResult(
        log_dir=str(broker.directory.path),
        topics=list(topics.values()),
        total_bytes=usage.total,
        usable_bytes=usage.free,
    )
    return DescribeLogDirsResponse(results=[result])


def _asked(broker: Broker, request: DescribeLogDirsRequest) -> Iterator[Partition]:
    if request.topics is None:
        yield from broker.replicas
        return
    for topic in request.topics:
        held = broker.replicas.partitions_of(topic.topic)
        for index in topic.partitions:
            if index in held:
                yield held[index]
