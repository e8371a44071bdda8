"""The HTTP port of a process: bound with the listeners, served as soon as there is time for it.

If another process has the port, this one exits before it joins a cluster.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any

from headrace_broker.server.network.listener import bind_socket

if TYPE_CHECKING:
    import socket

    from headrace_broker.web.status import BrokerStatus


class HttpPort:
    """Serves `headrace_broker.web` at an address, or does nothing without one."""

    def __init__(self, address: tuple[str, int] | None) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._runner: Any = None

    def bind(self) -> None:
        """Bind the port without listening. Raises OSError if it is taken."""
        if self._address is not None:
            self._socket = bind_socket(*self._address)

    async def start(self, status: BrokerStatus) -> None:
        """Serve; a second call does nothing."""
        if self._socket is None or self._runner is not None:
            return
        # Importing aiohttp takes longer than the rest of the start; clients are served meanwhile.
        web = await asyncio.get_running_loop().run_in_executor(
            None, importlib.import_module, "headrace_broker.web.app"
        )
        self._runner = await web.start_http(status, self._socket)

    async def stop(self) -> None:
        """Stop serving."""
        if self._runner is not None:
            await self._runner.cleanup()
