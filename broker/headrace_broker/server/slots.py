"""The places of responses in their connection's order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.server.frames import PREFIX, flexible_frame

if TYPE_CHECKING:
    from headrace_broker.server.context import RequestContext
    from headrace_broker.server.dispatch import ApiEntry

CLOSE_CONNECTION = object()
"""What a handler returns where the protocol leaves closing as the only way to tell an error."""


class OvertakenFuture(asyncio.Future[Any]):
    """A response that waits for data, given when the next request comes: it holds none back."""


class Slot:
    """A request that waits for its response; `parts` is None until that is known.

    Without a context the parts are the whole frame.
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
        return parts if self.context is None else framed(self.entry, self.context, parts)

    @property
    def holds_back(self) -> bool:
        """Whether later requests wait for this one, as all do in Kafka: its answer may be large."""
        return (
            self.entry.cancel_on_disconnect
            and self.parts is None
            and not isinstance(self.future, OvertakenFuture)
        )

    def abandon(self) -> None:
        """The client is gone: what waits only for data waits no more, a change goes on."""
        if self.future is not None and self.entry.cancel_on_disconnect:
            self.future.cancel()


class Slots(Protocol):
    """The connection that a slot is in."""

    def settle(self, slot: Slot) -> None:
        """Send the parts of a slot that has got them, and what waited behind it."""


class FrameSlot(Slot):
    """The place of a response that its maker lays out itself: no future, no message objects."""

    __slots__ = ("_slots", "correlation_id")

    entry: ApiEntry

    def __init__(self, correlation_id: int) -> None:
        self.correlation_id = correlation_id
        self.context = None
        self.future = None
        self.parts = None
        self._slots: Slots | None = None

    def join(self, slots: Slots, entry: ApiEntry, started: float) -> None:
        """Take the place: from now on `send` may be called."""
        self._slots = slots
        self.entry = entry
        self.started = started

    def send(self, parts: list[Any]) -> None:
        """Have the frame sent as soon as all before it are."""
        self.parts = parts
        if self._slots is not None:
            self._slots.settle(self)

    @property
    def holds_back(self) -> bool:
        """Whether later requests wait for this one: such responses are small, or overtaken."""
        return False

    def abandon(self) -> None:
        """The client is gone."""
        self._slots = None


def framed(entry: ApiEntry, context: RequestContext, parts: list[Any]) -> list[Any]:
    """Put a response's encoded body into its frame."""
    if context.api_version >= entry.flexible_from and entry.key != ApiKey.API_VERSIONS:
        return flexible_frame(context.correlation_id, parts)
    return [PREFIX.pack(4 + sum(map(len, parts)), context.correlation_id), *parts]
