"""The replicas of this broker that wait for a file descriptor.

Their logs could not be opened or created, or a change of their metadata could not be applied, when
the process had no descriptor left. Nothing is wrong with the disk: the same is tried again until it
succeeds, and clients get an error until then after which they try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final
from uuid import UUID

_RETRY_SECONDS: Final = 1.0
_Replica = tuple[UUID, int]


class UnopenedReplicas:
    """Which replicas wait: (topic id, partition)."""

    def __init__(self) -> None:
        self.apply_again: Callable[[Collection[_Replica]], None] = lambda _replicas: None
        """Called to have the metadata of replicas applied once more."""
        self._waiting: dict[_Replica, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, replica: _Replica) -> bool:
        return replica in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def note(self, topic_id: UUID, index: int) -> None:
        """Try a replica again after a while."""
        self._waiting[topic_id, index] = None
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_RETRY_SECONDS, self._try_again)

    def done(self, topic_id: UUID, index: int) -> None:
        """A replica's metadata is applied, or it is no longer on this broker."""
        self._waiting.pop((topic_id, index), None)

    def forget(self, topic_id: UUID) -> None:
        """A topic was deleted."""
        for replica in [each for each in self._waiting if each[0] == topic_id]:
            del self._waiting[replica]

    def _try_again(self) -> None:
        self._timer = None
        if self._waiting:
            self.apply_again(list(self._waiting))
