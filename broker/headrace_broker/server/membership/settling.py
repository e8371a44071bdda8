"""Metadata requests wait a moment while the metadata is about to change.

When a broker's process dies, its clients at once ask the others who leads now, often some
milliseconds before the controller has decided. The old answer would send them back to a dead port,
and many ask again only after a second.

A process that has just started is fenced until its first heartbeat is answered; until then its
partitions have no leader. If librdkafka gets such an answer from its only broker, it may never ask
again (https://github.com/confluentinc/librdkafka/issues/5301).
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.server.membership.broker_lifecycle import BrokerLifecycle
from headrace_broker.server.peers.peers import PeerConnections

_WAIT_SECONDS_MAX = 0.25
_POLL_SECONDS = 0.003


class Node(Protocol):
    """The parts of the node that are read: its start, its connections, its metadata."""

    @property
    def lifecycle(self) -> BrokerLifecycle:
        """This process's membership."""

    @property
    def peers(self) -> PeerConnections:
        """The connections to the other nodes."""

    @property
    def metadata(self) -> MetadataImage:
        """The latest metadata image."""


async def wait_settled(broker: Node) -> None:
    """Return when no connection to an unfenced broker is broken, or after a while.

    On a process that has just started, return when it is unfenced, or after two seconds.
    """
    while broker.lifecycle.is_starting():  # noqa: ASYNC110 (once a process)
        await asyncio.sleep(_POLL_SECONDS)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _WAIT_SECONDS_MAX
    while _is_unsettled(broker) and loop.time() < deadline:  # noqa: ASYNC110 (rare, and two sources)
        await asyncio.sleep(_POLL_SECONDS)


def _is_unsettled(broker: Node) -> bool:
    broken = broker.peers.broken
    if not broken:
        return False
    brokers = broker.metadata.brokers
    return any(node_id in brokers and not brokers[node_id].fenced for node_id in broken)
