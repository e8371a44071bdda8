"""The broker's HTTP side: `/healthz`, `/readyz`, `/metrics`, `/metrics/summary`, `/api/v1/balance`.

Owns a separate port, so that probes and scrapes never wait behind clients' connection limits.
"""

from __future__ import annotations

import asyncio
import socket

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry

from headrace_broker.web.balance import add_balance_routes
from headrace_broker.web.exposition import exposition
from headrace_broker.web.metrics import build_registry
from headrace_broker.web.status import BrokerStatus

CONNECTIONS_MAX = 100

_STATUS = web.AppKey("status", BrokerStatus)


def build_app(status: BrokerStatus) -> web.Application:
    """Return the application for one broker."""
    app = web.Application(client_max_size=65536)
    app[_STATUS] = status
    app.router.add_get("/healthz", _healthz)
    app.router.add_get("/readyz", _readyz)
    for path, has_partitions in (("/metrics", True), ("/metrics/summary", False)):
        _add_metrics(app, path, status, build_registry(status, has_partitions=has_partitions))
    add_balance_routes(app, status)
    return app


async def start_http(status: BrokerStatus, bound: socket.socket) -> web.AppRunner:
    """Serve on a bound socket until the runner's `cleanup()`."""
    app = build_app(status)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)

    async def stop(_: web.Application) -> None:
        listening.close()

    app.on_shutdown.append(stop)
    await runner.setup()
    server = runner.server
    if server is None:
        raise RuntimeError("the runner is set up and has no server")
    listening = await asyncio.get_running_loop().create_server(
        lambda: _accept(server), sock=bound, backlog=CONNECTIONS_MAX
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


async def _healthz(request: web.Request) -> web.Response:
    return _probe(request.app[_STATUS].unhealthy_reasons())


async def _readyz(request: web.Request) -> web.Response:
    return _probe(request.app[_STATUS].unready_reasons())


def _probe(reasons: list[str]) -> web.Response:
    """Answer 200 `ok`, or 503 with one reason per line."""
    if reasons:
        return web.Response(status=503, text="\n".join(reasons) + "\n")
    return web.Response(text="ok\n")


def _add_metrics(
    app: web.Application, path: str, status: BrokerStatus, registry: CollectorRegistry
) -> None:
    """Serve a registry, after a refresh of values from other brokers."""

    async def metrics(_: web.Request) -> web.Response:
        await status.refresh()
        body = await exposition(registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app.router.add_get(path, metrics)
