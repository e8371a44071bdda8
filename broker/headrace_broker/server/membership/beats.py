"""Heartbeats from a separate thread, so that a busy broker does not look like a stopped one.

The event loop's heartbeats are late whenever the loop is: behind a long decision, a slow disk, load
from a neighbour. A session timeout that tolerates this detects a stopped broker late. A thread that
only sleeps and sends is late only when the whole process does not run. It sends just enough to keep
the session alive: a heartbeat with metadata offset -1 never unfences (KIP-631). It stops when the
event loop has been stuck for `STALL_SESSIONS` sessions, so that a process that hangs is fenced too.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.codec import encoder
from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace_broker.server.peers.peer_connection import request_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_broker.protocol.types import BrokerEpoch, NodeId
    from headrace_broker.server.peers.peers import Address

#: Heartbeats in one session.
BEATS_PER_SESSION = 6
#: After how many sessions with a stuck event loop the thread stops sending.
STALL_SESSIONS = 1.5
_VERSION = 0
_CLIENT_ID = b"beats"
_ANSWERS_BYTES_MAX = 65536


class Beats:
    """One broker's thread: `start` it on the event loop, `close` it before the broker leaves."""

    def __init__(
        self,
        node_id: NodeId,
        session_ms: int,
        *,
        controller: Callable[[], Address | None],
        epoch: Callable[[], BrokerEpoch],
    ) -> None:
        """`controller` returns None if there is nowhere to send: unknown, or this very process."""
        self._node_id = node_id
        self._interval = session_ms / 1000 / BEATS_PER_SESSION
        self._stall = session_ms / 1000 * STALL_SESSIONS
        self._controller = controller
        self._epoch = epoch
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        # Written by the event loop and read by the thread; replaced as a whole.
        self._target: tuple[float, Address, BrokerEpoch] | None = None
        # When the oldest unanswered heartbeat was sent; used by the thread only.
        self._unanswered_since: float | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="beats", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._turn()
        self._thread.start()

    def close(self) -> None:
        """Stop. A heartbeat in flight may still arrive; it only prolongs the session."""
        self._closing.set()
        if self._timer is not None:
            self._timer.cancel()

    def _turn(self) -> None:
        address, epoch = self._controller(), self._epoch()
        self._target = None
        if address is not None and epoch >= 0:
            self._target = (time.monotonic(), address, epoch)
        self._timer = self._loop.call_later(self._interval, self._turn)

    def _run(self) -> None:
        connection: socket.socket | None = None
        connected_to: Address | None = None
        while not self._closing.wait(self._interval):
            target = self._target
            if target is None or time.monotonic() - target[0] > self._stall:
                continue
            _, address, epoch = target
            try:
                if connection is not None and connected_to != address:
                    connection.close()
                    connection = None
                if connection is None:
                    connection = _connect(address, self._interval)
                    connected_to = address
                    self._unanswered_since = None
                self._send(connection, epoch)
            except OSError:
                # The event loop's own heartbeats and connections find the cause.
                if connection is not None:
                    connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def _send(self, connection: socket.socket, epoch: BrokerEpoch) -> None:
        # The answers tell only that the connection works. A connection that a network partition
        # left half-open would swallow heartbeats for as long as the partition, and longer.
        with contextlib.suppress(BlockingIOError):
            if not connection.recv(_ANSWERS_BYTES_MAX):
                raise ConnectionResetError
            self._unanswered_since = None
        now = time.monotonic()
        since = self._unanswered_since
        if since is None:
            self._unanswered_since = now
        elif now - since > self._interval * BEATS_PER_SESSION:
            raise ConnectionResetError
        frame = beat_frame(self._node_id, epoch)
        if connection.send(frame) < len(frame):
            raise BlockingIOError("nobody reads")


def _connect(address: Address, timeout_seconds: float) -> socket.socket:
    connection = socket.create_connection(address, timeout=timeout_seconds)
    connection.settimeout(0)
    return connection


def beat_frame(node_id: NodeId, epoch: BrokerEpoch) -> bytes:
    """Return one whole request, length and header included, that only prolongs a session."""
    request = BrokerHeartbeatRequest(
        broker_id=node_id, broker_epoch=epoch, current_metadata_offset=-1
    )
    body = encoder(BrokerHeartbeatRequest, _VERSION)(request)
    head = request_head(ApiKey.BROKER_HEARTBEAT, _VERSION, 0, _CLIENT_ID, sum(map(len, body)))
    return b"".join((head, *body))
