"""`/healthz`, `/readyz` and `/metrics` over HTTP.

A process is healthy while its watches are fresh: with a dead watch it looks idle and does nothing.
It is ready once it has seen everything, whether it leads or stands by.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import generate_latest

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

__all__ = ["CONNECTIONS_MAX", "start_web"]

#: The same as of a broker's HTTP port.
CONNECTIONS_MAX = 100
#: How long answers in progress may take when the process ends.
SHUTDOWN_SECONDS = 1.0


async def start_web(
    host: str,
    port: int,
    registry: CollectorRegistry,
    unhealthy: Callable[[], str],
    unready: Callable[[], str],
) -> web.AppRunner:
    """Serve; `unhealthy` and `unready` return why, or ''. The caller cleans up the runner."""

    async def healthz(_: web.Request) -> web.Response:
        return _answer(unhealthy())

    async def readyz(_: web.Request) -> web.Response:
        return _answer(unready())

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    application = web.Application()
    application.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics),
        ]
    )
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)

    async def stop(_: web.Application) -> None:
        listening.close()

    application.on_shutdown.append(stop)
    await runner.setup()
    server = runner.server
    if server is None:
        raise RuntimeError("the runner is set up and has no server")
    listening = await asyncio.get_running_loop().create_server(
        lambda: _accept(server), host, port, backlog=CONNECTIONS_MAX
    )
    return runner


def _accept(server: web.Server) -> asyncio.Protocol:
    """Accept a connection. The oldest one gives way: probes get through, whoever holds others."""
    connected = [
        each.transport
        for each in server.connections
        if each.transport is not None and not each.transport.is_closing()
    ]
    for transport in connected[: max(0, len(connected) - CONNECTIONS_MAX + 1)]:
        transport.abort()
    return server()


def _answer(problem: str) -> web.Response:
    if problem:
        return web.Response(status=503, text=problem + "\n")
    return web.Response(text="ok\n")
