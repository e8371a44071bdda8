"""One connection to another node: frames out, responses in, matched by correlation id.

Owns the bytes of one outgoing connection. A large response is read straight into a buffer of its
own, which the decoded message keeps as views: replicated batches are not copied on the way. The
server answers in the order of the requests, so what may wait long has a connection of its own
(see `Lane` in `peers.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import Struct as Layout
from typing import Any, NamedTuple

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

# Requests that wait for their answers on one connection; more is a bug or a hung peer.
IN_FLIGHT_MAX = 1000


class PeerUnavailable(Exception):  # noqa: N818 (a state of the peer, not a mistake of the caller)
    """The request got no answer. Unless `was_sent` is False its outcome is unknown."""

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class _Waiting(NamedTuple):
    """A request without its answer yet."""

    answer: asyncio.Future[Any]
    key: ApiKey
    version: int
    timer: asyncio.TimerHandle


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
        self._waiting: dict[int, _Waiting] = {}
        self._next_correlation_id = 0
        self.versions: dict[int, tuple[int, int]] = {}
        """What the peer serves by API key: lowest and highest version."""

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def has_waiting(self) -> bool:
        """Whether a request has no answer yet."""
        return bool(self._waiting)

    def request(self, request: Message, version: int, timeout_ms: int) -> asyncio.Future[Any]:
        """Send one request; the future gets the decoded response, or PeerUnavailable."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise PeerUnavailable("the connection is closed", was_sent=False)
        if len(self._waiting) >= IN_FLIGHT_MAX:
            raise PeerUnavailable(f"{IN_FLIGHT_MAX} requests are in flight", was_sent=False)
        key = api_key_of(request)
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & _CORRELATION_ID_MAX
        parts = encoder(type(request), version)(request)
        tagged = b"\0" if API_TABLE[key].is_flexible(version) else b""
        size = _HEADER.size - 4 + len(self._client_id) + len(tagged) + sum(map(len, parts))
        head = _HEADER.pack(size, key, version, correlation_id, len(self._client_id))
        answer: asyncio.Future[Any] = self._loop.create_future()
        timer = self._loop.call_later(timeout_ms / 1000, self._time_out, correlation_id, timeout_ms)
        self._waiting[correlation_id] = _Waiting(answer, key, version, timer)
        if size < _JOIN_BYTES_MAX:
            transport.write(b"".join((head, self._client_id, tagged, *parts)))
        else:
            transport.writelines((head, self._client_id, tagged, *parts))
        return answer

    def close(self) -> None:
        """End the connection; what waits gets PeerUnavailable."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports do not inherit asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits: whether the peer acted on it is unknown."""
        self._transport = None
        waiting, self._waiting = self._waiting, {}
        for entry in waiting.values():
            entry.timer.cancel()
            if not entry.answer.done():
                entry.answer.set_exception(PeerUnavailable(f"the connection broke: {exc or 'EOF'}"))
                entry.answer.exception()  # retrieved: a caller may have gone already
        self._on_lost(self, exc)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        """Return where the next bytes go: the frame under way, or the small shared buffer."""
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Deliver the frames that are whole now."""
        self._filled += nbytes
        frame = self._frame
        try:
            if frame is None:
                self._split()
            elif self._filled == len(frame):
                self._frame, self._filled = None, 0
                self._deliver(frame)
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
            self._deliver(memoryview(bytes(view[position : position + size])))
            position += size
        left = end - position
        view[:left] = bytes(view[position:end])
        self._filled = left

    def _deliver(self, frame: memoryview) -> None:
        (correlation_id,) = _CORRELATION.unpack_from(frame, 0)
        waiting = self._waiting.pop(correlation_id, None)
        if waiting is None:
            raise DecodeError(f"correlation id {correlation_id} was not sent")
        waiting.timer.cancel()
        position = _CORRELATION.size
        try:
            if response_header_version(waiting.key, waiting.version):
                tagged = frame[position]
                position += 1
                if tagged:
                    position = skip_tagged(frame, position, tagged)
            decode = decoder(API_TABLE[waiting.key].response, waiting.version)
            response, _ = decode(frame, position)
        except (DecodeError, IndexError) as error:
            if not waiting.answer.done():
                waiting.answer.set_exception(PeerUnavailable(f"a malformed response: {error}"))
            raise
        if not waiting.answer.done():
            waiting.answer.set_result(response)

    def _time_out(self, correlation_id: int, timeout_ms: int) -> None:
        """Give up on a peer that does not answer: what is behind it is not answered either."""
        waiting = self._waiting.pop(correlation_id, None)
        if waiting is None:
            return
        if not waiting.answer.done():
            waiting.answer.set_exception(
                PeerUnavailable(f"{waiting.key.name} was not answered within {timeout_ms} ms")
            )
            waiting.answer.exception()
        self.close()

    def _abort(self, reason: str) -> None:
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(PeerUnavailable(reason))
                waiting.answer.exception()
        self.close()


def api_key_of(request: Message) -> ApiKey:
    """Return the API that a request message belongs to."""
    return ApiKey(request.info.api_key or 0)
