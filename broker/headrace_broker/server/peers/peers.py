"""The other nodes of the cluster, as this one talks to them.

`PeerConnections.send` sends one request to a broker, `send_to_voter` to a controller, and
`to_controller` to the active controller at the time. Connections are made on demand, shared by all
callers, and made again after they break. A connection that breaks, with a port that then refuses a
new one, means that the process is gone: `on_process_died` reports it within milliseconds, long
before a session times out. A hung process still has its port: timeouts detect it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Protocol

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.schema import Message
from headrace_broker.protocol.types import NodeId
from headrace_broker.server.peers.peer_connection import PeerConnection, PeerUnavailable, api_key_of
from headrace_broker.server.peers.peer_destination import (
    BACKOFF_SECONDS_MAX,
    CONNECT_TIMEOUT_MS,
    Address,
    LaneConnection,
)

__all__ = ["Address", "Lane", "PeerConnections", "PeerUnavailable"]

REQUEST_TIMEOUT_MS = 5000
_CONTROLLER_RETRY_SECONDS = 0.02
_FORMER_CONTROLLER_SECONDS = 0.1


class Lane(Enum):
    """Groups of requests that may wait for one another: each lane has its own connection.

    A server answers a connection's requests in order, so a fetch that waits for data would hold up
    a vote.
    """

    FETCH = "fetch"
    QUORUM = "quorum"
    HEARTBEAT = "heartbeat"
    MARKERS = "markers"
    PRODUCE = "produce"
    REQUEST = "request"
    WATCH = "watch"


_LANES = {
    ApiKey.FETCH: Lane.FETCH,
    ApiKey.FETCH_SNAPSHOT: Lane.FETCH,
    ApiKey.VOTE: Lane.QUORUM,
    ApiKey.BEGIN_QUORUM_EPOCH: Lane.QUORUM,
    ApiKey.END_QUORUM_EPOCH: Lane.QUORUM,
    ApiKey.BROKER_HEARTBEAT: Lane.HEARTBEAT,
    ApiKey.BROKER_REGISTRATION: Lane.HEARTBEAT,
    ApiKey.WRITE_TXN_MARKERS: Lane.MARKERS,
    ApiKey.PRODUCE: Lane.PRODUCE,
}


class AddressBook(Protocol):
    """The current addresses of nodes; None if an address is not known."""

    def broker_address(self, node_id: NodeId) -> Address | None:
        """Return a broker's address for other brokers."""
        ...

    def voter_address(self, node_id: NodeId) -> Address | None:
        """Return a controller's address."""
        ...

    def active_controller(self) -> NodeId | None:
        """Return the leader of the metadata quorum, as far as this node knows."""
        ...


ProcessDied = Callable[[NodeId], None]
LocalCall = Callable[[Message, int | None], Awaitable[Any]]


class PeerConnections:
    """The connections of one node to all others. `close` ends them."""

    def __init__(
        self,
        book: AddressBook,
        *,
        client_id: str,
        frame_bytes_max: int,
        own: tuple[NodeId, LocalCall] | None = None,
    ) -> None:
        """`own`: this node's id, and what serves its requests while it is the controller itself."""
        self._book = book
        self._own = own
        self._client_id = client_id
        self._frame_bytes_max = frame_bytes_max
        self._loop = asyncio.get_running_loop()
        self._destinations: dict[tuple[Address, Lane], LaneConnection] = {}
        self._broker_died: list[ProcessDied] = []
        self._voter_died: list[ProcessDied] = []
        self._watched: dict[NodeId, asyncio.Task[None]] = {}
        self._brokers: dict[Address, NodeId] = {}
        self._voters: dict[Address, NodeId] = {}
        self._is_closed = False

    # requests

    async def send(
        self,
        destination: NodeId | Address,
        request: Message,
        *,
        version: int | None = None,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        lane: Lane | None = None,
    ) -> Any:
        """Send `request` to a broker, on its inter-broker listener, or to an address.

        Returns the response; raises PeerUnavailable. Without a version, the highest common one is
        used.
        """
        key = api_key_of(request)
        deadline = self._loop.time() + timeout_ms / 1000
        connection = await self.connect(
            destination, lane or _LANES.get(key, Lane.REQUEST), timeout_ms
        )
        left_ms = max(1, int((deadline - self._loop.time()) * 1000))
        if version is None:
            version = common_version(connection, key, request)
        return await connection.request(request, version, left_ms)

    async def connect(
        self, destination: NodeId | Address, lane: Lane, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> PeerConnection:
        """Return the open connection of a lane to a broker or an address; otherwise like `send`."""
        if not isinstance(destination, tuple):
            node_id = destination
            address = self._book.broker_address(node_id)
            if address is None:
                raise PeerUnavailable(f"broker {node_id} has no address", was_sent=False)
            self._brokers[address] = node_id
            destination = address
        return await self._destination(destination, lane).connect(timeout_ms)

    async def send_to_voter(
        self,
        node_id: NodeId,
        request: Message,
        *,
        version: int | None = None,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        lane: Lane | None = None,
    ) -> Any:
        """Send `request` to a controller, on its controller listener; otherwise like `send`."""
        address = self._book.voter_address(node_id)
        if address is None:
            raise PeerUnavailable(f"controller {node_id} has no address", was_sent=False)
        self.note_voter(address, node_id)
        return await self.send(address, request, version=version, timeout_ms=timeout_ms, lane=lane)

    async def to_controller(
        self,
        request: Message,
        *,
        version: int | None = None,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        lane: Lane | None = None,
    ) -> Any:
        """Send `request` to the active controller; wait for one and retry within the timeout.

        It is retried only if it was certainly not applied: it was not sent, or the receiver
        answered NOT_CONTROLLER. Raises PeerUnavailable.
        """
        deadline = self._loop.time() + timeout_ms / 1000
        last = PeerUnavailable("there is no active controller", was_sent=False)
        while True:
            left_ms = int((deadline - self._loop.time()) * 1000)
            if left_ms <= 0:
                raise last
            leader = self._book.active_controller()
            if leader is not None:
                try:
                    if self._own is not None and leader == self._own[0]:
                        response = await self._own[1](request, version)
                    else:
                        response = await self.send_to_voter(
                            leader, request, version=version, timeout_ms=left_ms, lane=lane
                        )
                except PeerUnavailable as error:
                    if error.was_sent:
                        raise
                    last = error
                else:
                    if not says_not_controller(response):
                        return response
                    last = PeerUnavailable(f"{leader} is not the controller", was_sent=False)
            await asyncio.sleep(_CONTROLLER_RETRY_SECONDS)

    def controller_address(self) -> Address | None:
        """Return the active controller's address; None if it is not known, or is this node."""
        leader = self._book.active_controller()
        if leader is None or (self._own is not None and leader == self._own[0]):
            return None
        return self._book.voter_address(leader)

    def controller_changed(self, leader: NodeId | None) -> None:
        """Soon after a new controller is known, fail requests that the former one has not answered.

        The former one may hang, and then only a timeout would release the callers.
        """
        if leader is not None and not self._is_closed:
            self._loop.call_later(_FORMER_CONTROLLER_SECONDS, self._drop_requests, leader)

    def _drop_requests(self, leader: NodeId) -> None:
        if self._book.active_controller() != leader:
            return
        for (address, lane), destination in list(self._destinations.items()):
            owner = self._voters.get(address)
            if owner not in {None, leader} and lane in {Lane.REQUEST, Lane.HEARTBEAT}:
                destination.drop_requests()

    # the life of other processes

    def on_process_died(self, callback: ProcessDied) -> None:
        """Call `callback(node_id)` whenever a broker's port refuses a connection."""
        self._broker_died.append(callback)

    def on_voter_died(self, callback: ProcessDied) -> None:
        """Call `callback(node_id)` whenever a controller's port refuses a connection.

        A broker's port is not a controller's: a starting process refuses clients while it votes.
        """
        self._voter_died.append(callback)

    def note_voter(self, address: Address, node_id: NodeId) -> None:
        """Register an address as a controller's, for `on_voter_died`."""
        if node_id >= 0:
            self._voters[address] = node_id

    def watch(self, node_id: NodeId) -> None:
        """Keep a connection to a broker, so that its death is noticed at once."""
        if node_id not in self._watched and not self._is_closed:
            self._watched[node_id] = self._loop.create_task(
                self._keep_watch(node_id), name=f"watch broker {node_id}"
            )

    def unwatch(self, node_id: NodeId) -> None:
        """Stop watching a broker."""
        task = self._watched.pop(node_id, None)
        if task is not None:
            task.cancel()

    @property
    def watched(self) -> frozenset[NodeId]:
        """The watched brokers."""
        return frozenset(self._watched)

    async def close(self) -> None:
        """End every connection."""
        self._is_closed = True
        watchers = list(self._watched.values())
        self._watched.clear()
        for task in watchers:
            task.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        for destination in self._destinations.values():
            destination.close()

    async def _keep_watch(self, node_id: NodeId) -> None:
        while True:
            address = self._book.broker_address(node_id)
            if address is None:
                await asyncio.sleep(BACKOFF_SECONDS_MAX)
                continue
            self._brokers[address] = node_id
            destination = self._destination(address, Lane.WATCH)
            try:
                await destination.connect(CONNECT_TIMEOUT_MS)
            except PeerUnavailable:
                continue  # connect() keeps the pauses between attempts
            await destination.wait_lost()

    def _destination(self, address: Address, lane: Lane) -> LaneConnection:
        found = self._destinations.get((address, lane))
        if found is None:
            if self._is_closed:
                raise PeerUnavailable("this node is stopping", was_sent=False)
            found = LaneConnection(address, self._client_id, self._frame_bytes_max, self._refused)
            self._destinations[address, lane] = found
        return found

    @property
    def broken(self) -> frozenset[NodeId]:
        """The brokers whose connection broke, with none made since.

        An unused lane is not reconnected, so any newer connection shows that the process is back.
        """
        broken: dict[Address, float] = {}
        for (address, _), destination in self._destinations.items():
            if destination.is_broken and address in self._brokers:
                broken[address] = max(broken.get(address, -1.0), destination.lost_at)
        if broken:
            for (address, _), destination in self._destinations.items():
                if destination.connected_at > broken.get(address, destination.connected_at):
                    del broken[address]
        return frozenset(self._brokers[address] for address in broken)

    @property
    def refusing(self) -> frozenset[NodeId]:
        """The brokers whose port refused the latest connection: their processes are gone."""
        return self.broken & {
            self._brokers[address]
            for (address, _), destination in self._destinations.items()
            if destination.is_refused and address in self._brokers
        }

    def _refused(self, address: Address) -> None:
        if self._is_closed:
            return
        for owners, callbacks in (
            (self._brokers, self._broker_died),
            (self._voters, self._voter_died),
        ):
            node_id = owners.get(address)
            if node_id is not None:
                for callback in callbacks:
                    callback(node_id)


def says_not_controller(response: Any) -> bool:
    """Whether a response says that its sender is not the active controller."""
    code = getattr(response, "error_code", None)
    if code is not None:
        return bool(code == ErrorCode.NOT_CONTROLLER)
    for name in response.__slots__:
        value = getattr(response, name)
        if isinstance(value, list) and value:
            return getattr(value[0], "error_code", None) == ErrorCode.NOT_CONTROLLER
    return False


def common_version(
    connection: PeerConnection, key: ApiKey, request: Message | type[Message]
) -> int:
    """Return the highest common version; raise PeerUnavailable if there is none."""
    served = connection.versions.get(key)
    own = request.info.versions
    if served is None:
        raise PeerUnavailable(f"the peer does not serve {key.name}", was_sent=False)
    version = min(own.high, served[1])
    if version < max(own.low, served[0]):
        raise PeerUnavailable(f"no version of {key.name} in common", was_sent=False)
    return version
