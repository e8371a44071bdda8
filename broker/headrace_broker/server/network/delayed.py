"""Delayed operations: requests whose answers wait, and their purgatory (Kafka's terms).

An operation is the place of its answer among its connection's, and is completed once: by what it
waits for, or when its time is over. What it waits for is its owner's; here are its place, its time
and its two codecs. A fast path lays out the whole frame (`send_frame`), everything else has a
response message encoded (`send`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from headrace_broker.server.network.slots import Slot, framed

if TYPE_CHECKING:
    from headrace_broker.server.network.api_entry import ApiEntry

TIMER_SECONDS = 0.001  # the event loop's resolution


class Slots(Protocol):
    """The connection that an operation's place is in."""

    def settle(self, slot: Slot) -> None:
        """Send the parts of a slot that has got them, and what waited behind it."""

    def close(self) -> None:
        """Close after what is written has been sent."""

    def fail(self, operation: DelayedOperation, error: Exception) -> None:
        """Say a bug with its cause, and end the connection."""


class DelayedOperation(Slot):
    """A request whose answer waits. It has no future: what completes it sends the answer."""

    __slots__ = ("_purgatory", "_response", "_slots", "_timeout_ms", "correlation_id", "version")

    entry: ApiEntry
    holds_back = False  # most answers are small, or overtaken

    def __init__(self, version: int, correlation_id: int) -> None:
        self.version = version
        self.correlation_id = correlation_id
        self.context = None
        self.future = None
        self.parts = None
        self._slots: Slots | None = None
        self._response: Any = None
        self._purgatory: Purgatory | None = None

    def join(self, slots: Slots, entry: ApiEntry, started: float) -> None:
        """Take the place in a connection, which has just been made for it."""
        self._slots = slots
        self.entry = entry
        self.started = started
        if self._response is not None:
            self.send(self._response)

    def delay(self, purgatory: Purgatory, timeout_ms: int) -> None:
        """Wait, but no longer than `timeout_ms`."""
        self._purgatory = purgatory
        self._timeout_ms = max(timeout_ms, 0)
        purgatory.add(self, self._timeout_ms)

    @property
    def is_delayed(self) -> bool:
        """Whether it waits in a purgatory."""
        return self._purgatory is not None

    def complete(self) -> bool:
        """Leave the purgatory; return whether it was there: whoever completes it first answers."""
        purgatory = self._purgatory
        if purgatory is None:
            return False
        self._purgatory = None
        purgatory.discard(self, self._timeout_ms)
        return True

    def expire(self) -> None:
        """The time is over: complete it, and answer with what there is."""
        raise NotImplementedError

    def give_up(self) -> bool:
        """Complete it if what it waits for will most likely not come; return whether that is so."""
        return False

    def end_connection(self) -> None:
        """Close the connection, once what is written has been sent."""
        if self._slots is not None:
            self._slots.close()

    def send_frame(self, parts: list[Any]) -> None:
        """Have a whole frame sent as soon as all before it are."""
        self.parts = parts
        if self._slots is not None:
            self._slots.settle(self)

    def send(self, response: Any) -> None:
        """Have a response message sent: now, or when the operation has its place."""
        slots = self._slots
        if slots is None:
            self._response = response
            return
        try:
            parts = self.entry.encoders[self.version](response)
        except Exception as error:  # noqa: BLE001 (this request's bug, not of who completed it)
            self.fail(error)
            return
        self.parts = framed(self.entry, self.version, self.correlation_id, parts)
        slots.settle(self)

    def fail(self, error: Exception) -> None:
        """End the connection over a bug: the outcome is unknown."""
        if self._slots is not None:
            self._slots.fail(self, error)

    def abandon(self) -> None:
        """The client is gone."""
        self._slots = None


class Purgatory:
    """Delayed operations and when they expire: one timer for all of one timeout.

    The timer is re-armed when it fires. Kafka's DelayedOperationPurgatory has a timing wheel for
    this; here an operation costs a dictionary entry.
    """

    __slots__ = ("_by_timeout",)

    def __init__(self) -> None:
        self._by_timeout: dict[int, dict[DelayedOperation, float]] = {}

    def add(self, operation: DelayedOperation, timeout_ms: int) -> None:
        """Call `operation.expire` after `timeout_ms`, unless it is discarded before."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        operations = self._by_timeout.get(timeout_ms)
        if operations is None:
            operations = self._by_timeout[timeout_ms] = {}
            loop.call_at(deadline, self._expire, timeout_ms)
        operations[operation] = deadline

    def discard(self, operation: DelayedOperation, timeout_ms: int) -> None:
        """It is complete."""
        operations = self._by_timeout.get(timeout_ms)
        if operations is not None:
            operations.pop(operation, None)

    def give_up(self) -> None:
        """Have all look whether what they wait for may still come; whose may not, look elsewhere.

        Their connections end with the answers: see `LastAnswer`.
        """
        ended: list[DelayedOperation] = []
        for operations in list(self._by_timeout.values()):
            for operation in list(operations):
                try:
                    if operation.give_up():
                        ended.append(operation)
                except Exception as error:  # noqa: BLE001 (the others go on)
                    operation.fail(error)
        for operation in ended:
            operation.end_connection()

    def _expire(self, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        operations = self._by_timeout[timeout_ms]
        while operations:
            operation, deadline = next(iter(operations.items()))
            if deadline > loop.time() + TIMER_SECONDS:
                loop.call_at(deadline, self._expire, timeout_ms)
                return
            del operations[operation]
            try:
                operation.expire()
            except Exception as error:  # noqa: BLE001 (the others' time goes on)
                operation.fail(error)
        del self._by_timeout[timeout_ms]
