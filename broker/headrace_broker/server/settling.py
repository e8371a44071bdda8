"""Metadata that is about to change is worth a short wait.

When a broker's process dies, its clients ask the others at once who leads now, often some
milliseconds before the controller has decided. The old answer would send them back to a dead port,
and many look again only after a second.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker

_WAIT_SECONDS_MAX = 0.25
_POLL_SECONDS = 0.003


async def wait_settled(broker: Broker) -> None:
    """Return when no unfenced broker's connection to this one is broken, or after a while."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _WAIT_SECONDS_MAX
    while _is_unsettled(broker) and loop.time() < deadline:  # noqa: ASYNC110 (rare, and two sources)
        await asyncio.sleep(_POLL_SECONDS)


def _is_unsettled(broker: Broker) -> bool:
    broken = broker.peers.broken
    if not broken:
        return False
    brokers = broker.metadata.brokers
    return any(node_id in brokers and not brokers[node_id].fenced for node_id in broken)
