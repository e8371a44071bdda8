"""The positions of the share groups that this broker coordinates, for metrics.

The share coordinators have the state, the leaders know the log ends: both are asked at scrape time,
so nothing is spent on metrics that nobody reads. A value is kept until a later answer.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace_broker.coordinator.share.group import ShareGroup
from headrace_broker.protocol.errors import ApiError

if TYPE_CHECKING:
    from headrace_broker.server.monitoring.node import Node
    from headrace_broker.server.shares.administration import SharePosition

_TIMEOUT_S = 1.0
# Each is a request, so their number per scrape is limited: the longest waiting comes first.
_ASKED_MAX = 200

Key = tuple[str, str, int]


class ShareLag:
    """The positions of share groups: (group, topic, partition) to the last answer."""

    def __init__(self, broker: Node) -> None:
        self._broker = broker
        self._known: dict[Key, SharePosition] = {}
        self._asked: dict[Key, int] = {}
        self._round = 0
        self._refreshing: asyncio.Future[None] | None = None

    def positions(self) -> Iterator[tuple[Key, SharePosition]]:
        """Yield the known positions of the share groups that this broker coordinates."""
        wanted = self._wanted()
        for key, position in self._known.items():
            if key in wanted:
                yield key, position

    async def refresh(self) -> None:
        """Ask for some positions; takes a second at most. Simultaneous scrapes share one round."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._refresh())
        await asyncio.wait({self._refreshing}, timeout=_TIMEOUT_S)

    def _wanted(self) -> set[Key]:
        """Return the partitions that this broker's share groups have begun to read."""
        if not self._broker.is_composed:
            return set()
        return {
            (group.group_id, topic, index)
            for group in self._broker.groups.groups()
            if isinstance(group, ShareGroup)
            for topic, indexes in group.initialized.values()
            for index in indexes
        }

    async def _refresh(self) -> None:
        wanted = self._wanted()
        self._known = {key: item for key, item in self._known.items() if key in wanted}
        self._asked = {key: item for key, item in self._asked.items() if key in wanted}
        self._round += 1
        groups: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for key in sorted(wanted, key=lambda key: (self._asked.get(key, 0), key))[:_ASKED_MAX]:
            self._asked[key] = self._round
            groups[key[0]][key[1]].append(key[2])
        await asyncio.gather(*(self._ask(*item) for item in groups.items()))

    async def _ask(self, group: str, topics: dict[str, list[int]]) -> None:
        try:
            found = await self._broker.shares.administration.positions(group, topics)
        except ApiError:
            return  # the group was deleted, or another broker coordinates it now
        for (topic, index), position in found.items():
            if position.error is None and position.start_offset >= 0:
                self._known[group, topic, index] = position
