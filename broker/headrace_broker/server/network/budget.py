"""The memory that requests and responses in flight may take, over all connections.

An unfinished frame counts when its buffer is allocated; a response counts until its client has read
it. Once the budget is used up, frames wait to be read and fetches return no data; producers are
still served.
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
        """Whether the budget is used up."""
        return self.used > self.limit

    @property
    def left(self) -> int:
        """Bytes left in the budget."""
        return max(0, self.limit - self.used)
