"""`/healthz`, `/readyz` and `/metrics` over HTTP.

A process is healthy while its watches are fresh: with a dead watch it looks idle and does nothing.
It is ready once it has seen everything, whether it leads or stands by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import generate_latest

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

__all__ = ["start_web"]


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
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner


def _answer(problem: str) -> web.Response:
    if problem:
        return web.Response(status=503, text=problem + "\n")
    return web.Response(text="ok\n")
