"""Delayed operations: requests whose responses wait, and their purgatory (Kafka's terms).

An operation holds its response's place in the order of its connection. It is completed once: when
its condition is met, or when its timeout expires. Subclasses know the condition; this module has
the place, the timeout and the two codecs. A fast path builds the whole frame (`send_frame`);
everything else passes a response message that is encoded here (`send`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from headrace_broker.server.network.slots import Slot, framed

if TYPE_CHECKING:
    from headrace_broker.server.network.api_entry import ApiEntry

TIMER_SECONDS = 0.001  # the event loop's resolution


class Slots(Protocol):
    """The connection that holds an operation's place."""

    def settle(self, slot: Slot) -> None:
        """Send a slot's response once its turn has come, and those that waited behind it."""

    def close(self) -> None:
        """Close after all written responses are sent."""

    def fail(self, operation: DelayedOperation, error: Exception) -> None:
        """Log a bug with its cause, and end the connection."""


class DelayedOperation(Slot):
    """A request whose response waits. It has no future: what completes it sends the response."""

    __slots__ = ("_purgatory", "_response", "_slots", "_timeout_ms", "correlation_id", "version")

    entry: ApiEntry
    holds_back = False  # most responses are small, or overtaken

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
        """Take the place in a connection that was just created for this operation."""
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
        """Whether this operation is in a purgatory."""
        return self._purgatory is not None

    def complete(self) -> bool:
        """Leave the purgatory; return True the first time: only that caller may answer."""
        purgatory = self._purgatory
        if purgatory is None:
            return False
        self._purgatory = None
        purgatory.discard(self, self._timeout_ms)
        return True

    def expire(self) -> None:
        """Complete the operation at its timeout, and answer with what there is."""
        raise NotImplementedError

    def give_up(self) -> bool:
        """Complete the operation if its condition is unlikely to be met; return whether it did."""
        return False

    def end_connection(self) -> None:
        """Close the connection, once what is written has been sent."""
        if self._slots is not None:
            self._slots.close()

    def send_frame(self, parts: list[Any]) -> None:
        """Send a whole frame as soon as all responses before it are sent."""
        self.parts = parts
        if self._slots is not None:
            self._slots.settle(self)

    def send(self, response: Any) -> None:
        """Send a response message: now, or once the operation has its place."""
        slots = self._slots
        if slots is None:
            self._response = response
            return
        try:
            parts = self.entry.encode(response, self.version)
        except Exception as error:  # noqa: BLE001 (this request's bug, not the completer's)
            self.fail(error)
            return
        self.parts = framed(self.entry, self.version, self.correlation_id, parts)
        slots.settle(self)

    def fail(self, error: Exception) -> None:
        """End the connection because of a bug: the outcome is unknown."""
        if self._slots is not None:
            self._slots.fail(self, error)

    def abandon(self) -> None:
        """Drop the operation: the client is gone."""
        self._slots = None


class Purgatory:
    """Delayed operations and their timeouts: one timer for all operations of the same timeout.

    The timer is re-armed when it fires. Kafka's DelayedOperationPurgatory has a timing wheel for
    this; here an operation costs a dictionary entry.
    """

    __slots__ = ("_by_timeout",)

    def __init__(self) -> None:
        self._by_timeout: dict[int, dict[DelayedOperation, float]] = {}

    def add(self, operation: DelayedOperation, timeout_ms: int) -> None:
        """Call `operation.expire` after `timeout_ms`, unless it is discarded first."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        operations = self._by_timeout.get(timeout_ms)
        if operations is None:
            operations = self._by_timeout[timeout_ms] = {}
            loop.call_at(deadline, self._expire, timeout_ms)
        operations[operation] = deadline

    def discard(self, operation: DelayedOperation, timeout_ms: int) -> None:
        """Remove a completed operation."""
        operations = self._by_timeout.get(timeout_ms)
        if operations is not None:
            operations.pop(operation, None)

    def give_up(self) -> None:
        """Have every operation check whether it must give up; its client then asks another broker.

        Their connections end with the responses: see `LastAnswer`.
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
