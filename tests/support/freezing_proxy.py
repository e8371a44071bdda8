"""A TCP proxy whose connections can be frozen: open, and silent from then on.

That is what a client sees of a connection whose other end, or something between, went away without
a word. New connections work.
"""

import socket
import threading
from contextlib import suppress
from typing import Self

from support.processes import LOOPBACK


class FreezingProxy:
    """Forwards connections to `target`."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._frozen: set[int] = set()
        self._lock = threading.Lock()
        self._is_closing = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing = True
        # A listener that is only closed would keep its thread waiting.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def freeze(self) -> int:
        """Forward nothing more on the connections that there are; return how many."""
        with self._lock:
            self._frozen.update(map(id, self._sockets))
            return len(self._frozen) // 2

    def _accept(self) -> None:
        while not self._is_closing:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            with self._lock:
                self._sockets += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                # Frozen while it waited: what comes is lost, and nobody hears of it.
                if id(source) in self._frozen:
                    return
                sink.sendall(data)
            if id(source) not in self._frozen:
                sink.shutdown(socket.SHUT_WR)
