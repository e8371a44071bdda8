"""The place of one response in its connection's order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_broker.server.context import RequestContext
    from headrace_broker.server.dispatch import ApiEntry

CLOSE_CONNECTION = object()
"""What a handler returns where the protocol leaves closing as the only way to tell an error."""


class OvertakenFuture(asyncio.Future[Any]):
    """A response that waits for data, given when the next request comes: it holds none back."""


class Slot:
    """A request that waits for its response; `parts` is None until that is known."""

    __slots__ = ("context", "entry", "future", "parts", "started")

    def __init__(self, entry: ApiEntry, context: RequestContext, started: float) -> None:
        self.entry = entry
        self.context = context
        self.started = started
        self.future: asyncio.Future[Any] | None = None
        self.parts: list[Any] | None = None

    @property
    def holds_back(self) -> bool:
        """Whether later requests wait for this one, as all do in Kafka: its answer may be large."""
        return (
            self.entry.cancel_on_disconnect
            and self.parts is None
            and type(self.future) is not OvertakenFuture
        )
