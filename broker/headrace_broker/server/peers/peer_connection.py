"""One connection to another node: frames out, responses in, matched by correlation id.

Owns the bytes of one outgoing connection. A large response is read directly into its own buffer,
and the decoded message keeps views of it: replicated batches are not copied on the way. A server
answers in the order of the requests, so requests that may wait long have their own connection (see
`Lane` in `peers.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import Struct as Layout
from typing import Any, Protocol

from headrace_broker.protocol.apis import API_TABLE, ApiKey
from headrace_broker.protocol.codec import decoder, encoder
from headrace_broker.protocol.errors import DecodeError
from headrace_broker.protocol.headers import response_header_version
from headrace_broker.protocol.schema import Message
from headrace_broker.protocol.wire import skip_tagged

_LENGTH = Layout(">i")
_CORRELATION = Layout(">i")
_HEADER = Layout(">ihhih")
_BUFFER_BYTES = 65536
_JOIN_BYTES_MAX = 4096
_CORRELATION_ID_MAX = 2**31 - 1

# Requests in flight on one connection; more means a bug or a hung peer.
IN_FLIGHT_MAX = 1000


def request_head(
    key: ApiKey, version: int, correlation_id: int, client_id: bytes, body_bytes: int
) -> bytes:
    """Return what precedes the body of one request: its length and its header."""
    # An empty set of tagged fields ends the flexible header.
    tagged = b"\0" if API_TABLE[key].is_flexible(version) else b""
    size = _HEADER.size - _LENGTH.size + len(client_id) + len(tagged) + body_bytes
    return _HEADER.pack(size, key, version, correlation_id, len(client_id)) + client_id + tagged


class PeerUnavailable(Exception):  # noqa: N818 (a state of the peer, not a mistake of the caller)
    """The request got no answer. Its outcome is unknown, unless `was_sent` is False."""

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class Receiver(Protocol):
    """Receives the answer to one request: exactly one of these is called, once."""

    def answered(self, frame: memoryview, *, is_borrowed: bool) -> None:
        """Process the frame behind its length; a borrowed frame is overwritten after this call.

        Raises DecodeError or IndexError if it is malformed, which ends the connection.
        """

    def failed(self, error: PeerUnavailable) -> None:
        """The request gets no answer."""


class _Decoded:
    """A receiver that puts the decoded response into a future."""

    __slots__ = ("_future", "_key", "_version", "timer")

    def __init__(self, future: asyncio.Future[Any], key: ApiKey, version: int) -> None:
        self._future = future
        self._key = key
        self._version = version
        self.timer: asyncio.TimerHandle | None = None

    def answered(self, frame: memoryview, *, is_borrowed: bool) -> None:
        self._stop_timer()
        if is_borrowed:
            frame = memoryview(bytes(frame))
        try:
            response = decode_answer(frame, self._key, self._version)
        except (DecodeError, IndexError) as error:
            if not self._future.done():
                self._future.set_exception(PeerUnavailable(f"a malformed response: {error}"))
            raise
        if not self._future.done():
            self._future.set_result(response)

    def failed(self, error: PeerUnavailable) -> None:
        self._stop_timer()
        if not self._future.done():
            self._future.set_exception(error)
            self._future.exception()  # marks it as retrieved: the caller may be gone

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class PeerConnection(asyncio.BufferedProtocol):
    """An outgoing connection. `on_lost(error)` is called once, when it ends."""

    def __init__(
        self,
        client_id: str,
        frame_bytes_max: int,
        on_lost: Callable[[PeerConnection, Exception | None], None],
    ) -> None:
        self._client_id = client_id.encode()
        self._frame_bytes_max = frame_bytes_max
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._frame: memoryview | None = None
        self._filled = 0
        self._waiting: dict[int, Receiver] = {}
        self._next_correlation_id = 0
        self.versions: dict[int, tuple[int, int]] = {}
        """The API versions that the peer serves, by key: lowest and highest."""

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def has_waiting(self) -> bool:
        """Whether a request is still without an answer."""
        return bool(self._waiting)

    def request(self, request: Message, version: int, timeout_ms: int) -> asyncio.Future[Any]:
        """Send one request; the future gets the decoded response, or PeerUnavailable."""
        key = api_key_of(request)
        answer: asyncio.Future[Any] = self._loop.create_future()
        receiver = _Decoded(answer, key, version)
        correlation_id = self.send(key, version, encoder(type(request), version)(request), receiver)
        receiver.timer = self._loop.call_later(
            timeout_ms / 1000, self._time_out, correlation_id, key, timeout_ms
        )
        return answer

    def send(
        self, key: ApiKey, version: int, parts: list[bytes | memoryview], receiver: Receiver
    ) -> int:
        """Send one request's encoded body, and return its correlation id; nothing times it out.

        Raises PeerUnavailable with nothing sent.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise PeerUnavailable("the connection is closed", was_sent=False)
        if len(self._waiting) >= IN_FLIGHT_MAX:
            raise PeerUnavailable(f"{IN_FLIGHT_MAX} requests are in flight", was_sent=False)
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & _CORRELATION_ID_MAX
        body_bytes = sum(map(len, parts))
        head = request_head(key, version, correlation_id, self._client_id, body_bytes)
        self._waiting[correlation_id] = receiver
        if body_bytes < _JOIN_BYTES_MAX:
            transport.write(b"".join((head, *parts)))
        else:
            transport.writelines((head, *parts))
        return correlation_id

    def close(self) -> None:
        """Close the connection; pending requests get PeerUnavailable."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports do not inherit asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the pending requests: whether the peer acted on them is unknown."""
        self._transport = None
        waiting, self._waiting = self._waiting, {}
        for receiver in waiting.values():
            receiver.failed(PeerUnavailable(f"the connection broke: {exc or 'EOF'}"))
        self._on_lost(self, exc)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        """Return the buffer for the next bytes: the current frame's, or the small shared one."""
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Deliver the complete frames."""
        self._filled += nbytes
        frame = self._frame
        try:
            if frame is None:
                self._split()
            elif self._filled == len(frame):
                self._frame, self._filled = None, 0
                self._deliver(frame, is_borrowed=False)
        except (DecodeError, IndexError) as error:
            self._abort(f"a malformed response: {error}")

    def _split(self) -> None:
        view, end, position = self._buffer, self._filled, 0
        while end - position >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(view, position)
            if not _CORRELATION.size <= size <= self._frame_bytes_max:
                raise DecodeError(f"a frame of {size} bytes")
            position += _LENGTH.size
            if end - position < size:
                frame = memoryview(bytearray(size))
                self._filled = end - position
                frame[: self._filled] = view[position:end]
                self._frame = frame
                return
            self._deliver(view[position : position + size], is_borrowed=True)
            position += size
        left = end - position
        view[:left] = bytes(view[position:end])
        self._filled = left

    def _deliver(self, frame: memoryview, *, is_borrowed: bool) -> None:
        (correlation_id,) = _CORRELATION.unpack_from(frame, 0)
        receiver = self._waiting.pop(correlation_id, None)
        if receiver is None:
            raise DecodeError(f"correlation id {correlation_id} was not sent")
        receiver.answered(frame, is_borrowed=is_borrowed)

    def _time_out(self, correlation_id: int, key: ApiKey, timeout_ms: int) -> None:
        """Close the connection of a peer that does not answer: later requests would wait too."""
        receiver = self._waiting.pop(correlation_id, None)
        if receiver is None:
            return
        receiver.failed(PeerUnavailable(f"{key.name} was not answered within {timeout_ms} ms"))
        self.close()

    def _abort(self, reason: str) -> None:
        for receiver in self._waiting.values():
            receiver.failed(PeerUnavailable(reason))
        self._waiting.clear()
        self.close()


def decode_answer(frame: memoryview, key: ApiKey, version: int) -> Any:
    """Decode the response in a frame; raises DecodeError or IndexError."""
    position = _CORRELATION.size
    if response_header_version(key, version):
        tagged = frame[position]
        position += 1
        if tagged:
            position = skip_tagged(frame, position, tagged)
    response, _ = decoder(API_TABLE[key].response, version)(frame, position)
    return response


def api_key_of(request: Message) -> ApiKey:
    """Return the API that a request message belongs to."""
    return ApiKey(request.info.api_key or 0)
