"""A small TCP proxy that understands Kafka's frames, to be slow, lossy or rude on purpose.

It advertises nothing: brokers must advertise the proxy's address for clients to stay on it.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Self

from support.processes import LOOPBACK
from support.wire import split_address


class Fate(Enum):
    """What happens to a request."""

    PASS = "pass"  # noqa: S105 - not a password
    DROP_REQUEST = "drop the request, as if the network lost it, and close"
    DROP_RESPONSE = "let the broker answer, lose the answer, and close"
    RESET = "close with a reset before the broker sees the request"
    SILENCE = "swallow the request and leave the connection open"


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request that passes: its number counts the requests of its API through this proxy."""

    api_key: int
    correlation_id: int
    number: int
    #: Header and body, without the frame's length.
    frame: bytes


# Returns the fate of a request and the seconds it waits before it.
Plan = Callable[[Request], tuple[Fate, float]]


def let_pass(_: Request) -> tuple[Fate, float]:
    return Fate.PASS, 0


class TcpProxy:
    """Forwards connections to `target`, asking `plan` about every request."""

    def __init__(self, port: int, target: str, plan: Plan = let_pass) -> None:
        self.plan = plan
        self._target = target
        self._counts: dict[int, int] = {}
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server((LOOPBACK, port))
        self.address = f"{LOOPBACK}:{port}"
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for found in list(self._sockets):
            _close(found)
        for thread in self._threads:
            thread.join(10)

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                broker = socket.create_connection(split_address(self._target), 10)
            except OSError:
                return
            broker.settimeout(None)
            for found in (client, broker):
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [client, broker]
            lost: set[int] = set()
            self._spawn(self._forward_requests, client, broker, lost)
            self._spawn(self._forward_responses, client, broker, lost)

    def _forward_requests(
        self, client: socket.socket, broker: socket.socket, lost: set[int]
    ) -> None:
        while (frame := _read_frame(client)) is not None:
            api_key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
            with self._lock:
                number = self._counts[api_key] = self._counts.get(api_key, 0) + 1
            request = Request(
                api_key=api_key, correlation_id=correlation_id, number=number, frame=frame[4:]
            )
            fate, wait_seconds = self.plan(request)
            if wait_seconds:
                time.sleep(wait_seconds)
            if fate in (Fate.DROP_REQUEST, Fate.RESET):
                break
            if fate is Fate.DROP_RESPONSE:
                lost.add(correlation_id)
            if fate is Fate.SILENCE:
                continue
            try:
                broker.sendall(frame)
            except OSError:
                break
        else:
            fate = Fate.PASS
        _close(client, reset=fate is Fate.RESET)
        _close(broker)

    def _forward_responses(
        self, client: socket.socket, broker: socket.socket, lost: set[int]
    ) -> None:
        while (frame := _read_frame(broker)) is not None:
            (correlation_id,) = struct.unpack_from(">i", frame, 4)
            if correlation_id in lost:
                break
            try:
                client.sendall(frame)
            except OSError:
                break
        _close(client)
        _close(broker)


def _read_frame(source: socket.socket) -> bytes | None:
    """A frame with its length, or `None` when the connection ended."""
    head = _read_exactly(source, 4)
    if head is None:
        return None
    body = _read_exactly(source, struct.unpack(">i", head)[0])
    return None if body is None else head + body


def _read_exactly(source: socket.socket, count: int) -> bytes | None:
    found = bytearray()
    while len(found) < count:
        try:
            part = source.recv(count - len(found))
        except OSError:
            return None
        if not part:
            return None
        found += part
    return bytes(found)


def _close(found: socket.socket, *, reset: bool = False) -> None:
    with suppress(OSError):
        if reset:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            found.shutdown(socket.SHUT_RDWR)  # wakes the other thread that reads from it
    found.close()
