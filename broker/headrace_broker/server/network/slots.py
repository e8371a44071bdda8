"""The places of responses, in the order of their connection's requests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.server.network.frames import PREFIX, flexible_frame

if TYPE_CHECKING:
    from headrace_broker.server.network.api_entry import ApiEntry
    from headrace_broker.server.network.context import RequestContext

CLOSE_CONNECTION = object()
"""A handler returns this where closing the connection is the protocol's only way to fail."""


class LastAnswer:
    """A response after which the connection is closed, so that the client asks another broker.

    A client that is connected to this broker alone would ask no other one who leads.
    """

    __slots__ = ("response",)

    def __init__(self, response: Any) -> None:
        self.response = response


class Slot:
    """A request that waits for its response; `parts` is None until the response is ready.

    Without a context, the parts are the whole frame.
    """

    __slots__ = ("context", "entry", "future", "parts", "started")

    def __init__(
        self,
        entry: ApiEntry,
        context: RequestContext | None,
        started: float,
        parts: list[Any] | None = None,
    ) -> None:
        self.entry = entry
        self.context = context
        self.started = started
        self.future: asyncio.Future[Any] | None = None
        self.parts = parts

    def frame(self) -> list[Any]:
        """Return the parts of the whole frame."""
        parts = self.parts or []
        context = self.context
        if context is None:
            return parts
        return framed(self.entry, context.api_version, context.correlation_id, parts)

    @property
    def holds_back(self) -> bool:
        """Whether later requests wait for this one's response, as all do in Kafka."""
        return self.entry.cancel_on_disconnect

    def abandon(self) -> None:
        """Release the slot: the client is gone. Pending reads are cancelled, changes go on."""
        if self.future is not None and self.entry.cancel_on_disconnect:
            self.future.cancel()


def framed(entry: ApiEntry, version: int, correlation_id: int, parts: list[Any]) -> list[Any]:
    """Put an encoded response body into its frame."""
    if version >= entry.flexible_from and entry.key != ApiKey.API_VERSIONS:
        return flexible_frame(correlation_id, parts)
    return [PREFIX.pack(4 + sum(map(len, parts)), correlation_id), *parts]
