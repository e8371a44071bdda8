"""One client connection: frames in, handlers called, responses out in the order of the requests.

Owns the bytes of the connection and nothing of their meaning. All connections of a listener read
into one shared buffer; a connection gets its own buffer only in the middle of a frame, so an idle
connection costs none. A handler that returns its response at once (produce, most fetches) never
touches a task or a future. No handler may keep views of a request: the next read overwrites them.

Back-pressure: reading stops while the client leaves its responses unread, while too many of its
requests wait, or while the broker's memory budget does not let its buffer grow.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import DecodeError, ErrorCode
from headrace_broker.protocol.wire import skip_tagged
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.delayed import DelayedOperation
from headrace_broker.server.network.frames import (
    HEADER,
    LENGTH,
    OWN_BUFFER_BYTES,
    REQUEST_BYTES_MIN,
    buffer_bytes,
    client_id_of,
)
from headrace_broker.server.network.slots import CLOSE_CONNECTION, LastAnswer, Slot, framed

if TYPE_CHECKING:
    from headrace_broker.server.network.api_entry import ApiEntry
    from headrace_broker.server.network.budget import Budget
    from headrace_broker.server.network.metrics import NetworkMetrics
    from headrace_broker.server.network.wakeups import Wakeups

log = structlog.get_logger()

_JOIN_BYTES_MAX = 4096  # below it one small copy is cheaper than a vectored write
_HELD_BYTES_MAX = 32768  # of waiting requests; above it the socket is not read either
_API_VERSIONS = int(ApiKey.API_VERSIONS)


FastPath = Callable[[memoryview, int, int, int], list[Any] | DelayedOperation | None]
"""(frame, version, correlation id, body position) → parts of the frame, an operation, or None.

The parts make a whole frame; the operation is delayed; None leaves the request to the general path.
"""


class Node(Protocol):
    """The part of the node that connections use; handlers get the whole node."""

    def on_failure(self, error: BaseException) -> None:
        """Continue without a failed log directory, or end the process."""


class Owner(Protocol):
    """What the connections of a listener share."""

    node: Node
    name: str
    apis: Mapping[int, ApiEntry]
    fast_paths: dict[int, FastPath]
    loop: asyncio.AbstractEventLoop
    now: Callable[[], float]
    metrics: NetworkMetrics
    budget: Budget
    wakeups: Wakeups
    shared_buffer: memoryview
    frame_bytes_max: int
    in_flight_max: int
    write_buffer_bytes_max: int
    left_out: Callable[[int], ApiEntry | None]
    """Returns what refuses an API of Kafka's that is not served; None where Kafka has none."""

    def register(self, connection: Connection) -> bool:
        """Register a connection; return False if a limit is reached and it must be closed."""

    def unregister(self, connection: Connection) -> None:
        """Unregister a connection."""

    def take_buffer(self, size: int) -> memoryview:
        """Return a writable buffer of at least `size` bytes, counted in the budget."""

    def give_buffer(self, buffer: memoryview) -> None:
        """Return a buffer to the pool."""

    def unsupported_api_versions(self) -> Any:
        """Return the response to an unsupported version of ApiVersions (KIP-511)."""

    def warn(self, event: str, **facts: object) -> None:
        """Log about a client, with a limit per second."""


class Connection(asyncio.BufferedProtocol):
    """The protocol of one accepted socket. A client's error ends only its own connection."""

    __slots__ = (
        "_client_id",
        "_client_id_bytes",
        "_filled",
        "_has_ended",
        "_held",
        "_own",
        "_paused",
        "_server",
        "_slots",
        "_transport",
        "_unsent_counted",
        "address",
        "identity",
        "is_writing_paused",
        "last_active",
        "short_since",
        "write_paused_at",
        "write_size_seen",
    )

    def __init__(self, server: Owner) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._own: memoryview | None = None
        self._filled = 0
        self._slots: deque[Slot] = deque()
        self._held = False
        self._has_ended = False
        self._paused = False
        self.is_writing_paused = False
        self._unsent_counted = 0
        self._client_id_bytes: bytes | None = None
        self._client_id = ""
        self.address = ""
        self.identity = 0
        self.last_active = 0.0
        self.short_since: float | None = None
        """Since when its full buffer waits for the memory budget."""
        self.write_paused_at = 0.0
        self.write_size_seen = 0

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, or drop it if a limit is reached."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports do not inherit asyncio's
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else "unknown"
        self.last_active = self._server.now()
        if not self._server.register(self):
            transport.abort()  # type: ignore[attr-defined]  # BaseTransport lacks it, every transport has it
            return
        transport.set_write_buffer_limits(high=self._server.write_buffer_bytes_max)  # type: ignore[attr-defined]  # as above

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        """Release everything; pending reads are cancelled, pending changes continue."""
        self._server.unregister(self)
        self._release_own()
        self._count_unsent(0)
        while self._slots:
            self._slots.popleft().abandon()
        self._transport = None

    def eof_received(self) -> bool:
        """Keep a half-closed connection open until its client has the pending responses."""
        self._has_ended = True
        return bool(self._slots) or self._held

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        """Return the buffer for the next bytes."""
        if self._own is not None:
            return self._own[self._filled :]
        shared = self._server.shared_buffer
        # Without room in the budget no more is read than a connection's first buffer holds.
        return shared[:OWN_BUFFER_BYTES] if self._server.budget.is_spent else shared

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the complete requests in the buffer."""
        server = self._server
        server.metrics.bytes_in += nbytes
        self.last_active = server.now()
        # Records appended by the requests of one read go to followers together, and at once.
        wakeups = server.wakeups
        wakeups.is_held = True
        try:
            own = self._own
            self._filled = nbytes if own is None else self._filled + nbytes
            self._consume(server.shared_buffer if own is None else own, self._filled)
        finally:
            wakeups.is_held = False
            if wakeups.woken:
                wakeups.check()

    def pause_writing(self) -> None:
        """Take no further requests: the client does not read its responses."""
        self.is_writing_paused = True
        self.write_paused_at = self._server.now()
        self._count_unsent(self.unsent_bytes)
        self._held = True

    def resume_writing(self) -> None:
        """Continue: the client has read its responses."""
        self.is_writing_paused = False
        self._count_unsent(0)
        self._server.loop.call_soon(self.resume)

    # frames

    def _consume(self, view: memoryview, end: int) -> None:
        """Handle the whole frames of view[:end]; keep the rest in this connection's own buffer."""
        position = 0
        frame_bytes_max = self._server.frame_bytes_max
        needed = 4
        while end - position >= LENGTH.size:
            (size,) = LENGTH.unpack_from(view, position)
            if size < REQUEST_BYTES_MIN or size > frame_bytes_max:
                self._refuse("frame length out of bounds", length=size, length_max=frame_bytes_max)
                return
            needed = size + 4
            if end - position < needed or self._held:
                break
            start = position + 4
            position += needed
            needed = 4
            if not self._handle(view[start:position]):
                return
        self._keep(view, position, end, needed)

    def _keep(self, view: memoryview, position: int, end: int, needed: int) -> None:
        left = end - position
        if not left:
            self._release_own()
            return
        if position and self._own is not None:
            self._server.budget.leave(self)  # a frame is complete
        own = self._own
        # Memory is short: a large buffer is not kept for the next frame.
        is_large = position and self._server.budget.is_spent and len(own or b"") > OWN_BUFFER_BYTES
        if own is None or len(own) == left or is_large:
            self._grow(view[position:end], needed)
        elif position:
            own[:left] = view[position:end]
        self._filled = left
        if self.short_since is not None or (self._held and left > _HELD_BYTES_MAX):
            self._pause()

    def _grow(self, kept: memoryview, needed: int) -> None:
        """Keep the bytes in a buffer with room for more, as far as the budget has memory."""
        budget, own, left = self._server.budget, self._own, len(kept)
        size = buffer_bytes(needed, left)
        growth = size - (0 if own is None else len(own))
        # The first 64 KiB are everybody's: small requests are served whatever others take.
        is_small = size <= OWN_BUFFER_BYTES
        if not is_small and (self._held or not budget.admits(self, growth)):
            size = max(left, OWN_BUFFER_BYTES)
            if size == left and not self._held:
                budget.wait(self, missing=needed - left, growth=growth, now=self._server.now())
            if own is not None and len(own) == size:
                own[:left] = kept
                return
        grown = self._server.take_buffer(size)
        grown[:left] = kept
        if own is not None:
            self._server.give_buffer(own)
        self._own = grown

    def _release_own(self) -> None:
        if self._own is not None:
            self._server.budget.leave(self)
            self._server.give_buffer(self._own)
            self._own = None
            self._filled = 0

    def _refuse(self, reason: str, **facts: object) -> None:
        self._server.metrics.malformed_requests += 1
        self._server.warn("connection closed", reason=reason, client=self.address, **facts)
        self.abort()

    # requests

    def _handle(self, frame: memoryview) -> bool:
        """Decode and handle one request; return False if the connection was closed."""
        started = perf_counter()
        api_key, version, correlation_id, client_length = HEADER.unpack_from(frame, 0)
        entry = self._server.apis.get(api_key) or self._server.left_out(api_key)
        if entry is None:
            self._refuse("unknown API", api_key=api_key)
            return False
        if not entry.min_version <= version <= entry.max_version:
            return self._unsupported_version(entry, version, correlation_id, started)
        try:
            position = self._read_client_id(frame, client_length)
            if version >= entry.flexible_from:
                tagged = frame[position]
                position += 1
                if tagged:
                    position = skip_tagged(frame, position, tagged)
            if (fast_path := self._server.fast_paths.get(api_key)) is not None:
                made = fast_path(frame, version, correlation_id, position)
                if made is not None:
                    return self._take(made, entry, started)
            # Bytes after the body are skipped, as in Kafka: librdkafka 2.16 asks for all topics
            # with a four-byte count instead of one byte, which leaves three bytes over.
            request, _ = entry.decoders[version](frame, position)
        except (DecodeError, IndexError) as error:
            self._refuse("malformed request", api=entry.name, version=version, error=str(error))
            return False
        except Exception as error:  # noqa: BLE001 (as in _perform)
            return self._fail(entry, version, error)
        return self._perform(entry, (version, correlation_id), started, request)

    def _perform(
        self, entry: ApiEntry, header: tuple[int, int], started: float, request: Any
    ) -> bool:
        server, client_id = self._server, self._client_id
        context = RequestContext(*header, client_id, self.address, server.name, self.identity)
        try:
            result = entry.handle(server.node, context, request)
            if result.__class__ is entry.response:
                self._answer(entry, context, started, result)
            elif result is None:
                entry.metrics.observe(perf_counter() - started)
            elif isinstance(result, DelayedOperation):
                return self._take(result, entry, started)
            elif result is CLOSE_CONNECTION:
                self.close()
                return False
            elif isinstance(result, LastAnswer):
                self._answer(entry, context, started, result.response)
                self.close()
                return False
            else:
                self._wait_for(entry, context, started, asyncio.ensure_future(result))
        except Exception as error:  # noqa: BLE001 (whatever it is, it ends this connection and is logged)
            return self._fail(entry, header[0], error)
        return self._transport is not None

    def _read_client_id(self, frame: memoryview, length: int) -> int:
        end = HEADER.size + max(length, 0)
        known = self._client_id_bytes
        if known is None or frame[HEADER.size : end] != known or length < 0:
            self._client_id_bytes, self._client_id = client_id_of(frame, length)
        return end

    def _unsupported_version(
        self, entry: ApiEntry, version: int, correlation_id: int, started: float
    ) -> bool:
        if entry.key != _API_VERSIONS:
            self._refuse("unsupported version", api=entry.name, version=version)
            return False
        # KIP-511: a client newer than this broker learns the supported versions from a v0 response.
        server = self._server
        context = RequestContext(0, correlation_id, "", self.address, server.name, self.identity)
        self._answer(entry, context, started, server.unsupported_api_versions())
        return True

    def _fail(self, entry: ApiEntry, version: int, error: BaseException) -> bool:
        """Log a bug with its cause, and end this connection: the outcome is unknown.

        A failed disk is no bug: `on_failure` handles it.
        """
        if isinstance(error, LogDirectoryFailure):
            self._server.node.on_failure(error)
        log.error(
            "request failed", api=entry.name, version=version, client=self.address, exc_info=error
        )
        entry.metrics.count_errors([ErrorCode.UNKNOWN_SERVER_ERROR])
        self.abort()
        return False

    # responses

    def _answer(
        self, entry: ApiEntry, context: RequestContext, started: float, response: Any
    ) -> None:
        parts = entry.encode(response, context.api_version)
        frame = framed(entry, context.api_version, context.correlation_id, parts)
        self._take(frame, entry, started)

    def _take(self, made: list[Any] | DelayedOperation, entry: ApiEntry, started: float) -> bool:
        """Send a whole frame, or queue its slot; return False if the connection is closed."""
        if isinstance(made, DelayedOperation):
            self._slots.append(made)
            made.join(self, entry, started)
            if made.holds_back:
                self._held = True
        else:
            entry.metrics.observe(perf_counter() - started)
            if not self._slots:
                self._write(made)
                return self._transport is not None
            self._slots.append(Slot(entry, None, started, made))
        if len(self._slots) >= self._server.in_flight_max:
            self._held = True
        return self._transport is not None

    def _wait_for(
        self, entry: ApiEntry, context: RequestContext, started: float, future: asyncio.Future[Any]
    ) -> None:
        slot = Slot(entry, context, started)
        slot.future = future
        self._slots.append(slot)
        future.add_done_callback(lambda done: self._answered(slot, context.api_version, done))
        if len(self._slots) >= self._server.in_flight_max or slot.holds_back:
            self._held = True

    def _answered(self, slot: Slot, version: int, done: asyncio.Future[Any]) -> None:
        if done.cancelled():
            self.abort()  # otherwise the client would wait for this response, and for all behind it
            return
        error = done.exception()
        if error is None and isinstance(operation := done.result(), DelayedOperation):
            if self._transport is not None:
                self._slots[self._slots.index(slot)] = operation
                operation.join(self, slot.entry, slot.started)
            return
        is_last = False
        if error is None:
            try:
                result = done.result()
                if is_last := isinstance(result, LastAnswer):
                    result = result.response
                slot.parts = slot.entry.encode(result, version)
            except Exception as failure:  # noqa: BLE001 (handled as the handler's own failure)
                error = failure
        if error is not None:
            self._fail(slot.entry, version, error)
            return
        self.settle(slot)
        if is_last:
            self.close()
        elif self._held:
            self.resume()

    def settle(self, slot: Slot) -> None:
        """Send a slot's response once its turn has come, and those that waited behind it."""
        slot.entry.metrics.observe(perf_counter() - slot.started)
        slots = self._slots
        while slots and slots[0].parts is not None:
            self._write(slots.popleft().frame())
        if self._has_ended or (self._held and isinstance(slot, DelayedOperation)):
            # Not at once: the caller may be in the middle of another connection's request.
            self._server.loop.call_soon(self.resume)

    def fail(self, operation: DelayedOperation, error: Exception) -> None:
        """Log a bug with its cause, and end this connection."""
        self._fail(operation.entry, operation.version, error)

    def _write(self, parts: list[Any]) -> None:
        """Write the parts of a whole frame."""
        if (transport := self._transport) is None:
            return
        size = sum(map(len, parts))
        self._server.metrics.bytes_out += size
        if size < _JOIN_BYTES_MAX:
            transport.write(b"".join(parts))
        else:
            transport.writelines(parts)

    # back-pressure

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _count_unsent(self, size: int) -> None:
        self._server.budget.give(self._unsent_counted - size)
        self._unsent_counted = size

    def resume(self) -> None:
        """Handle held requests and read again, unless something still prevents it.

        A half-closed connection is closed once all of them are answered.
        """
        if (
            self.is_writing_paused
            or self._transport is None
            or len(self._slots) >= self._server.in_flight_max
            or any(slot.parts is None and slot.holds_back for slot in self._slots)
        ):
            return
        self._held = False
        if self._own is not None:
            self._consume(self._own, self._filled)
        is_due = self._paused and not self._held and self.short_since is None
        if self._has_ended and not self._held and not self._slots:
            self.close()
        elif is_due and self._transport is not None:
            self._paused = False
            self.last_active = self._server.now()  # not the client's silence until now
            self._transport.resume_reading()

    @property
    def is_sent_a_frame(self) -> bool:
        """Whether a frame is incomplete, and nothing but its client prevents the rest."""
        return self._own is not None and not self._paused and not self._held

    @property
    def is_waited_for(self) -> bool:
        """Whether a request is still without a response."""
        return bool(self._slots)

    def close(self) -> None:
        """Close after all written responses are sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def descriptor(self) -> int:
        """The number of the socket's file descriptor, -1 without one."""
        transport = self._transport
        opened = None if transport is None else transport.get_extra_info("socket")
        return -1 if opened is None else int(opened.fileno())

    @property
    def unsent_bytes(self) -> int:
        """Response bytes that the client has not read yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0
