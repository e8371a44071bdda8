"""A bound address: accepts connections within the limits and owns what they share.

That is the shared receive buffer, the pool of frame buffers, the memory budget, and the sweep that
closes idle connections, slow readers and connections whose request does not get on.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from headrace_broker.log.descriptor_shortage import SHORTAGES
from headrace_broker.server.network.busy_poll import BusyPoll
from headrace_broker.server.network.connection import Connection, FastPath, Node
from headrace_broker.server.network.frames import OWN_BUFFER_BYTES
from headrace_broker.server.network.wakeups import Wakeups

if TYPE_CHECKING:
    from headrace_broker.server.config.broker_config import BrokerConfig, Listener
    from headrace_broker.server.network.api_entry import ApiEntry
    from headrace_broker.server.network.budget import Budget
    from headrace_broker.server.network.metrics import NetworkMetrics

log = structlog.get_logger()

SHARED_BUFFER_BYTES = 262144
POOLED_BUFFERS_MAX = 64
SWEEP_INTERVAL_SECONDS = 2.0
UNFINISHED_SECONDS_MAX = 30.0
"""Without a further byte of a request, or while no memory is free for it."""
BLOCKING_SECONDS_MAX = 5.0
"""Likewise, but while other requests wait for this one's memory."""
WARNINGS_PER_SECOND_MAX = 20
DESCRIPTORS_SHARE_MAX = 0.75
"""Of the process's file descriptors; segments hold one each, and need the rest."""


class AcceptorNode(Node, Protocol):
    """The part of the node that a listener uses."""

    config: BrokerConfig
    network_metrics: NetworkMetrics
    budget: Budget


class Acceptor:
    """One bound listener and its connections."""

    def __init__(
        self,
        node: AcceptorNode,
        listener: Listener,
        apis: Mapping[int, ApiEntry],
        left_out: Callable[[int], ApiEntry | None],
        unsupported_api_versions: Callable[[Mapping[int, ApiEntry]], Any],
    ) -> None:
        values = node.config.values
        self.node: Node = node
        self.apis = apis
        self.left_out = left_out
        """Returns what refuses an API of Kafka's that is not served; None where Kafka has none."""
        self.name = listener.name
        self.listener = listener
        self.port = listener.port
        self.on_disconnect: list[Callable[[tuple[str, int]], None]] = []
        """Called with the listener's name and the number of each connection that closes."""
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self.metrics: NetworkMetrics = node.network_metrics
        self.shared_buffer = memoryview(bytearray(SHARED_BUFFER_BYTES))
        self.frame_bytes_max: int = values["socket.request.max.bytes"]
        self.in_flight_max: int = values["headrace.max.in.flight.requests.per.connection"]
        self.write_buffer_bytes_max: int = values["headrace.connection.write.buffer.bytes"]
        self.idle_timeout = values["connections.max.idle.ms"] / 1000
        self.slow_reader_timeout = values["headrace.slow.reader.timeout.ms"] / 1000
        self._values = values  # its limits may change at runtime
        self._descriptors_max = descriptors_max()
        self._backlog: int = values["socket.listen.backlog.size"]
        self.budget = node.budget
        self.wakeups = Wakeups()
        self.busy_poll = BusyPoll(self.loop, values["headrace.busy.poll.rounds"])
        self.fast_paths: dict[int, FastPath] = {}
        """The fast paths, by API key."""
        self._unsupported_api_versions = unsupported_api_versions
        # In order of arrival: the order of a set would differ from run to run.
        self._connections: dict[Connection, None] = {}
        self._per_address: Counter[str] = Counter()
        self._pool: list[memoryview] = []
        self._server: asyncio.Server | None = None
        self._socket: socket.socket | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._swept_at = self.now()
        self._was_late = False
        self._next_identity = 1
        self._warned_at = 0.0
        self._warned = 0

    def bind(self) -> None:
        """Bind the port without listening: it is known, but refuses clients until the broker is
        ready.

        Raises OSError where the address is taken.
        """
        self._socket = bind_socket(self.listener.host, self.listener.port)
        self.port = self._socket.getsockname()[1]

    async def start(self) -> None:
        """Accept connections on the bound port."""
        if self._socket is None:
            raise RuntimeError("start() needs bind() first")
        self._server = await self.loop.create_server(
            lambda: Connection(self), sock=self._socket, backlog=self._backlog
        )
        self._sweeper = self.loop.call_later(SWEEP_INTERVAL_SECONDS, self._sweep)

    async def stop(self) -> None:
        """Stop accepting and close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()

    def register(self, connection: Connection) -> bool:
        """Register a connection; return False if a limit is reached and it must be closed."""
        address = connection.address
        for setting, count in (
            ("max.connections", self.metrics.connections),
            ("max.connections.per.ip", self._per_address[address]),
        ):
            if count >= self._values[setting]:
                self._reject(connection, setting, self._values[setting])
                return False
        # The kernel gives the lowest free number: all below it are in use.
        if connection.descriptor >= self._descriptors_max:
            self._reject(connection, "file descriptors", self._descriptors_max)
            return False
        connection.identity = self._next_identity
        self._next_identity += 1
        self._connections[connection] = None
        self._per_address[address] += 1
        self.metrics.connections += 1
        self.metrics.connections_opened += 1
        return True

    def _reject(self, connection: Connection, setting: str, limit: int) -> None:
        self.metrics.connections_refused += 1
        self.warn("connection refused", client=connection.address, setting=setting, limit=limit)

    def unregister(self, connection: Connection) -> None:
        """Unregister a connection."""
        if connection not in self._connections:
            return
        del self._connections[connection]
        for observer in self.on_disconnect:
            observer((self.name, connection.identity))
        self.metrics.connections -= 1
        self._per_address[connection.address] -= 1
        if not self._per_address[connection.address]:
            del self._per_address[connection.address]

    # memory

    def take_buffer(self, size: int) -> memoryview:
        """Return a writable buffer of at least `size` bytes, counted in the budget."""
        if size == OWN_BUFFER_BYTES and self._pool:
            buffer = self._pool.pop()
        else:
            buffer = memoryview(bytearray(size))
        self.budget.take(len(buffer))
        return buffer

    def give_buffer(self, buffer: memoryview) -> None:
        """Return a buffer to the pool."""
        self.budget.give(len(buffer))
        if len(buffer) == OWN_BUFFER_BYTES and len(self._pool) < POOLED_BUFFERS_MAX:
            self._pool.append(buffer)

    # the sweep

    def _sweep(self) -> None:
        now = self.now()
        # After a halt of the process, bytes that came meanwhile are read before the next sweep.
        is_late = now - self._swept_at > 2 * SWEEP_INTERVAL_SECONDS and not self._was_late
        self._swept_at, self._was_late = now, is_late
        for connection in list(self._connections):
            self._check(connection, now)
            if not is_late:
                self._check_request(connection, now)
        SHORTAGES.look(now)
        self._sweeper = self.loop.call_later(SWEEP_INTERVAL_SECONDS, self._sweep)

    def _check(self, connection: Connection, now: float) -> None:
        """Close a connection that is idle for too long or whose client reads no responses."""
        size = connection.unsent_bytes
        if size < connection.write_size_seen:
            connection.last_active = connection.write_paused_at = now
        connection.write_size_seen = size
        if connection.is_writing_paused:
            if now - connection.write_paused_at > self.slow_reader_timeout:
                self.metrics.slow_readers_closed += 1
                self.warn("slow reader closed", client=connection.address, unsent_bytes=size)
                connection.abort()
            return
        if not connection.is_waited_for and now - connection.last_active > self.idle_timeout:
            # Not `close`: it would wait for a client that does not read what it was answered.
            connection.abort()

    def _check_request(self, connection: Connection, now: float) -> None:
        """Close a connection whose request does not get on: it holds memory that others need."""
        if connection.short_since is not None:
            if now - connection.short_since > UNFINISHED_SECONDS_MAX:
                self._close_unfinished(connection, "no memory for its request")
        elif connection.is_sent_a_frame:
            blocks = self.budget.blocks_others(connection)
            silent_seconds = now - connection.last_active
            if silent_seconds > (BLOCKING_SECONDS_MAX if blocks else UNFINISHED_SECONDS_MAX):
                self._close_unfinished(connection, "the rest of its request did not come")

    def _close_unfinished(self, connection: Connection, reason: str) -> None:
        self.warn(
            "connection closed",
            reason=reason,
            client=connection.address,
            memory_used=self.budget.used,
            memory_max=self.budget.limit,
        )
        connection.abort()

    def unsupported_api_versions(self) -> Any:
        """Return the response to an unsupported version of ApiVersions (KIP-511)."""
        return self._unsupported_api_versions(self.apis)

    def warn(self, event: str, **facts: object) -> None:
        """Log about a client, with a limit per second: a flood must not fill the log."""
        now = self.now()
        if now - self._warned_at >= 1.0:
            if self._warned > WARNINGS_PER_SECOND_MAX:
                log.warning("warnings left out", count=self._warned - WARNINGS_PER_SECOND_MAX)
            self._warned_at, self._warned = now, 0
        self._warned += 1
        if self._warned <= WARNINGS_PER_SECOND_MAX:
            log.warning(event, listener=self.name, **facts)


def descriptors_max() -> int:
    """Return how many of the process's file descriptors may be in use when a client connects."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else int(limit * DESCRIPTORS_SHARE_MAX)


def bind_socket(host: str, port: int) -> socket.socket:
    """Bind an address; the only place that creates a server socket, so a simulation can replace it.

    Raises OSError that names the address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or "0.0.0.0",  # noqa: S104 (an empty host in `listeners` asks for all addresses)
            port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _cannot_listen(host, port, error) from error
    return bound


def _cannot_listen(host: str, port: int, error: OSError) -> OSError:
    return OSError(
        error.errno,
        f"cannot listen on {host}:{port}: {error.strerror}: give it an address of this machine "
        "that nobody else listens on (ss -ltnp)",
    )
