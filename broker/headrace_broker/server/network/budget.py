"""The memory that requests and responses in flight may take, over all connections.

Unfinished frames are counted as their buffers are taken, responses while their client has not taken
them. Where it is spent, frames wait to be read and fetches return no data: producers go on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Budget:
    """Bytes; `limit` is `queued.max.request.bytes`."""

    limit: int
    used: int = 0

    @property
    def is_spent(self) -> bool:
        """Whether no more should be taken on."""
        return self.used > self.limit

    @property
    def left(self) -> int:
        """Bytes that may still be taken."""
        return max(0, self.limit - self.used)
