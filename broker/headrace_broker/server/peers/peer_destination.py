"""One lane to one address: a connection that is made on demand and again after it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.api_versions import ApiVersionsRequest
from headrace_broker.server.peers.lookups import Lookups, is_literal
from headrace_broker.server.peers.peer_connection import PeerConnection, PeerUnavailable

CONNECT_TIMEOUT_MS = 2000
_BACKOFF_SECONDS_MIN = 0.02
BACKOFF_SECONDS_MAX = 0.25
_API_VERSIONS_VERSION = 3

log = structlog.get_logger()


class Address(NamedTuple):
    """The address of a listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class LaneConnection:
    """One lane to one address: it connects, and reconnects with a growing backoff."""

    def __init__(
        self,
        address: Address,
        client_id: str,
        frame_bytes_max: int,
        on_refused: Callable[[Address], None],
    ) -> None:
        self._address = address
        self._client_id = client_id
        self._frame_bytes_max = frame_bytes_max
        self._on_refused = on_refused
        self._loop = asyncio.get_running_loop()
        self._connection: PeerConnection | None = None
        self._connecting: asyncio.Task[PeerConnection] | None = None
        self._lost = asyncio.Event()
        self.connected_at = self.lost_at = -1.0
        """When the latest connection was made and lost, on the event loop's clock."""
        self.is_refused = False
        """Whether the port refused the latest attempt to connect."""
        self._backoff = 0.0
        self._not_before = 0.0
        self._is_closed = False
        self._lookups = None if is_literal(address.host) else Lookups(*address)

    async def connect(self, timeout_ms: int) -> PeerConnection:
        """Return the open connection; raises PeerUnavailable with nothing sent."""
        connection = self._connection
        if connection is not None and connection.is_open:
            return connection
        connecting = self._connecting
        if connecting is None or connecting.done():
            connecting = self._connecting = self._loop.create_task(self._open())
            connecting.add_done_callback(_retrieve)
        # Not wait_for: others wait for the same task, which must not be cancelled with one waiter.
        await asyncio.wait({connecting}, timeout=timeout_ms / 1000)
        if not connecting.done():
            raise PeerUnavailable(
                f"no connection to {self._address} in {timeout_ms} ms", was_sent=False
            )
        return connecting.result()

    async def _open(self) -> PeerConnection:
        if self._is_closed:
            raise PeerUnavailable("this node is stopping", was_sent=False)
        wait = self._not_before - self._loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        connection = PeerConnection(self._client_id, self._frame_bytes_max, self._connection_lost)
        try:
            await self._reach(connection)
            await self._learn_versions(connection)
        except (OSError, TimeoutError, PeerUnavailable) as error:
            connection.close()
            self._backoff = min(max(self._backoff * 2, _BACKOFF_SECONDS_MIN), BACKOFF_SECONDS_MAX)
            self._not_before = self._loop.time() + self._backoff
            self.is_refused = isinstance(error, ConnectionRefusedError)
            if self.is_refused:
                self._on_refused(self._address)
            raise PeerUnavailable(f"{self._address}: {error}", was_sent=False) from error
        self._backoff = 0.0
        self.is_refused = False
        self._lost.clear()
        self.connected_at = self._loop.time()
        self._connection = connection
        return connection

    async def _reach(self, connection: PeerConnection) -> None:
        """Connect to the host, or to the first of the name's addresses that takes a connection."""
        host, port = self._address
        seconds = CONNECT_TIMEOUT_MS / 1000
        hosts = [host] if self._lookups is None else await self._lookups.find(seconds)
        for number, each in enumerate(hosts, start=1):
            try:
                await asyncio.wait_for(
                    self._loop.create_connection(lambda: connection, each, port), seconds
                )
            except (OSError, TimeoutError):
                if number == len(hosts):
                    raise
            else:
                return

    async def _learn_versions(self, connection: PeerConnection) -> None:
        request = ApiVersionsRequest(client_software_name="headrace", client_software_version="1")
        response = await connection.request(request, _API_VERSIONS_VERSION, CONNECT_TIMEOUT_MS)
        if response.error_code != ErrorCode.NONE:
            raise PeerUnavailable(f"ApiVersions failed with {response.error_code}", was_sent=False)
        connection.versions = {
            api.api_key: (api.min_version, api.max_version) for api in response.api_keys
        }

    def _connection_lost(self, connection: PeerConnection, error: Exception | None) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        self.lost_at = self._loop.time()
        self._lost.set()
        if self._is_closed:
            return
        log.debug("connection lost", peer=str(self._address), cause=str(error or "EOF"))
        # At once: if the port refuses connections now, the process is gone.
        self._connecting = self._loop.create_task(self._open())
        self._connecting.add_done_callback(_retrieve)

    @property
    def is_broken(self) -> bool:
        """Whether there was a connection and there is none now."""
        return self._lost.is_set()

    async def wait_lost(self) -> None:
        """Return when the connection is lost."""
        await self._lost.wait()

    def drop_requests(self) -> None:
        """Fail the pending requests; their outcome is unknown."""
        if self._connection is not None and self._connection.has_waiting:
            self._connection.close()

    def close(self) -> None:
        """Close the connection for good."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.close()


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a task that may have no waiters."""
    if not task.cancelled():
        task.exception()
