"""A TCP proxy that keeps one request back: its client is cut off, its server gets it later.

What a client with a timeout leaves behind: it has given up and asks again, and then what it had
sent arrives.
"""

import socket
import threading
from contextlib import suppress
from typing import Self

from support.processes import LOOPBACK


class HoldingProxy:
    """Forwards connections to `target`. `hold(text, seconds)` is for the next request with it."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._text: bytes | None = None
        self._seconds = 0.0
        self.has_held = threading.Event()
        self.has_delivered = threading.Event()
        self._is_closing = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing.set()
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def hold(self, text: bytes, seconds: float) -> None:
        self._text, self._seconds = text, seconds

    def _accept(self) -> None:
        while not self._is_closing.is_set():
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets += [client, server]
            for forward, source, sink in (
                (self._requests, client, server),
                (self._answers, server, client),
            ):
                threading.Thread(target=forward, args=(source, sink), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                if self._text is not None and self._text in data:
                    self._text = None
                    client.shutdown(socket.SHUT_RDWR)
                    self.has_held.set()
                    self._is_closing.wait(self._seconds)
                    server.sendall(data)
                    self.has_delivered.set()
                    # The server's answer finds nobody; its connection stays until the end.
                    return
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
