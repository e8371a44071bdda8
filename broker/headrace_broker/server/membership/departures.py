"""Brokers that were fenced a moment ago are still listed in Metadata.

librdkafka ends the thread of a broker that Metadata no longer lists. If the same answer moves a
partition from that broker to its new leader, both happen at once, and sometimes the partition ends
up with neither broker until a one-second timer looks for it again. So a broker's address stays
listed for a short time after it lost its partitions. Clients that try it are refused, as they were
before it was fenced.
"""

from __future__ import annotations

import asyncio

from headrace_broker.metadata.image import MetadataDelta, MetadataImage
from headrace_broker.protocol.types import NodeId

LINGER_SECONDS = 2.0


class Departures:
    """When this node learned of each fencing; subscribes to published metadata."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._live: set[NodeId] = set()
        self._left_at: dict[NodeId, float] = {}

    def changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Record which brokers were fenced and which came back."""
        for node_id in delta.brokers_changed:
            broker = image.brokers.get(node_id)
            if broker is not None and not broker.fenced:
                self._live.add(node_id)
                self._left_at.pop(node_id, None)
            elif node_id in self._live:
                self._live.discard(node_id)
                self._left_at[node_id] = self._loop.time()

    def recent(self) -> list[NodeId]:
        """Return the brokers that were fenced within the last seconds."""
        since = self._loop.time() - LINGER_SECONDS
        return [node_id for node_id, at in self._left_at.items() if at > since]
