"""Connections to pods through the API server, like those of `kubectl port-forward`.

One WebSocket per connection, with the subprotocol that kubelets use: the first byte of a message is
its channel, 0 data and 1 errors, and each channel begins with the port as two bytes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp

from headrace_operator.kubernetes.api.transport import KubernetesError

if TYPE_CHECKING:
    from headrace_operator.kubernetes.api.transport import Transport

__all__ = ["PodConnection", "connect_to_pod"]

SUBPROTOCOL = "v4.channel.k8s.io"
CONNECT_SECONDS_MAX = 15.0
CHUNK_BYTES = 64 * 1024
DATA, ERROR = 0, 1


class PodConnection:
    """One connection to a port of a pod."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """`socket`: after the two messages that name the port."""
        self._socket = socket

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy bytes both ways until either end closes. Raises ConnectionError with the reason."""
        there = asyncio.create_task(self._send_all(reader))
        back = asyncio.create_task(self._receive_all(writer))
        try:
            done, _ = await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (there, back):
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            await self._socket.close()

    async def _send_all(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._socket.send_bytes(bytes([DATA]) + data)

    async def _receive_all(self, writer: asyncio.StreamWriter) -> None:
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            if message.data[0] == ERROR:
                raise ConnectionError(message.data[1:].decode(errors="replace"))
            writer.write(message.data[1:])
            await writer.drain()


async def connect_to_pod(
    transport: Transport, namespace: str, pod: str, port: int
) -> PodConnection:
    """Connect to a port of a pod, also one on its loopback. Raises KubernetesError.

    If nothing listens there, the error comes later, on the connection's error channel.
    """
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward"
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            socket = await transport.open_websocket(path, {"ports": str(port)}, SUBPROTOCOL)
            for _ in (DATA, ERROR):
                await socket.receive_bytes()
    except (TimeoutError, TypeError) as error:
        raise KubernetesError(
            0, "Unreachable", f"no answer from pod {pod}, port {port}", f"GET {path}"
        ) from error
    return PodConnection(socket)
