"""Access to pods for clients without Kubernetes support: a local SOCKS proxy (RFC 1928).

Owns a thread with an event loop, and the session with the API server. Clients ask for brokers by
their advertised names; each connection becomes one through the API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from headrace_operator.kubernetes.api.client import KubernetesClient, KubernetesError
from headrace_operator.kubernetes.api.connection import ConnectionSourceError
from headrace_operator.kubernetes.api.port_forward import connect_to_pod

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from headrace_operator.kubernetes.api.connection import Connection

__all__ = ["Tunnel"]

LOOPBACK = "127.0.0.1"
SOCKS, NO_LOGIN, CONNECT = 5, 0, 1
#: Kinds of addresses, and the length of those with a fixed one.
IPV4, NAME, IPV6 = 1, 3, 4
ADDRESS_BYTES = {IPV4: 4, IPV6: 16}
GRANTED, NOT_ALLOWED, HOST_UNREACHABLE, NOT_SUPPORTED = 0, 2, 4, 7
#: Version, answer, reserved, and an address that no client reads.
_ANSWER = struct.Struct(">BBxB4xH")
#: Clients ask for a host again and again; pods are listed at most this often.
LOOK_SECONDS = 1.0

_T = TypeVar("_T")


class Tunnel:
    """Connections to the pods of one namespace. Close it."""

    def __init__(self, connection: Connection, namespace: str) -> None:
        """Start; no connection is made before a client asks for one."""
        self._namespace = namespace
        self._pods: dict[str, str] = {}
        self._list_hosts: Callable[[], Awaitable[Mapping[str, str]]] | None = None
        self._looking = asyncio.Lock()
        self._looked_at = float("-inf")
        self._servers: list[asyncio.Server] = []
        self._carried: set[asyncio.Task[Any]] = set()
        #: Why the last connection failed; '' if none did.
        self.problem = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tunnel", daemon=True)
        self._thread.start()
        self.client = KubernetesClient(connection)
        self._proxy_port = self.run(self._serve_proxy())

    def close(self) -> None:
        """End all connections."""
        if self._thread.is_alive():
            self.run(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the tunnel's thread, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def proxy_url(self) -> str:
        """The proxy's address for clients; the proxy looks up names, not the clients."""
        return f"socks5h://{LOOPBACK}:{self._proxy_port}"

    def add_hosts(
        self,
        pods: Mapping[str, str],
        list_again: Callable[[], Awaitable[Mapping[str, str]]] | None = None,
    ) -> None:
        """Map names of hosts to pods. `list_again` is asked for those that are not known yet.

        It may raise KubernetesError.
        """
        self._pods |= pods
        self._list_hosts = list_again

    def forward(self, pod: str, port: int) -> int:
        """Return a port of this machine that is forwarded to a pod's port."""

        async def serve() -> int:
            return await self._listen(lambda reader, writer: self._carry(reader, writer, pod, port))

        return self.run(serve())

    # In the tunnel's thread

    async def _serve_proxy(self) -> int:
        return await self._listen(self._greet)

    async def _listen(self, handle: Any) -> int:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            if task is not None:
                self._carried.add(task)
                task.add_done_callback(self._carried.discard)
            try:
                await handle(reader, writer)
            except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                # Either end closed; the client sees the end of its connection.
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(accept, LOOPBACK, 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, methods = await reader.readexactly(2)
        await reader.readexactly(methods)
        writer.write(bytes([SOCKS, NO_LOGIN]))
        _, command, _, kind = await reader.readexactly(4)
        length = ADDRESS_BYTES.get(kind) or (await reader.readexactly(1))[0]
        host = (await reader.readexactly(length)).decode(errors="replace")
        port = int.from_bytes(await reader.readexactly(2))
        if command != CONNECT or kind != NAME:
            writer.write(_ANSWER.pack(SOCKS, NOT_SUPPORTED, IPV4, 0))
            return
        if (pod := await self._find_pod(host, port)) is None:
            writer.write(_ANSWER.pack(SOCKS, NOT_ALLOWED, IPV4, 0))
            return
        await self._carry(reader, writer, pod, port, is_socks=True)

    async def _find_pod(self, host: str, port: int) -> str | None:
        """Return the pod of a host; None, with the reason in `problem`, if there is none."""
        reason = f"{host}:{port} is no pod of the cluster"
        async with self._looking:
            is_due = self._loop.time() - self._looked_at >= LOOK_SECONDS
            if host not in self._pods and self._list_hosts is not None and is_due:
                # A pod that joined, or that was just restarted when we listed them.
                try:
                    self._pods |= await self._list_hosts()
                except (KubernetesError, ConnectionSourceError) as error:
                    reason = f"{reason} so far as is known: {error}"
                self._looked_at = self._loop.time()
        pod = self._pods.get(host)
        if pod is None:
            self.problem = reason
        return pod

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pod: str,
        port: int,
        *,
        is_socks: bool = False,
    ) -> None:
        try:
            connection = await connect_to_pod(self.client, self._namespace, pod, port)
        except (KubernetesError, ConnectionSourceError) as error:
            self.problem = _explain(error, pod, port)
            if is_socks:
                writer.write(_ANSWER.pack(SOCKS, HOST_UNREACHABLE, IPV4, 0))
            return
        if is_socks:
            writer.write(_ANSWER.pack(SOCKS, GRANTED, IPV4, 0))
        try:
            await connection.pump(reader, writer)
        except ConnectionError as error:
            self.problem = f"pod {pod}, port {port}: {error}"

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in tuple(self._carried):
            task.cancel()
        await asyncio.gather(*self._carried, return_exceptions=True)
        with contextlib.suppress(KubernetesError):
            await self.client.close()


def _explain(error: Exception, pod: str, port: int) -> str:
    if isinstance(error, KubernetesError) and error.is_forbidden:
        return f"you may not forward ports of pods (get and create on pods/portforward): {error}"
    return f"pod {pod}, port {port}: {error}"
