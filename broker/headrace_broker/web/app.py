"""The broker's HTTP side: `/healthz`, `/readyz`, `/metrics`, `/api/v1/balance`.

Owns its own port, so that a probe or a scrape never waits behind clients' connection limits.
"""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from headrace_broker.web.balance import add_balance_routes
from headrace_broker.web.metrics import build_registry
from headrace_broker.web.status import BrokerStatus

_STATUS = web.AppKey("status", BrokerStatus)
_REGISTRY = web.AppKey("registry", CollectorRegistry)


def build_app(status: BrokerStatus) -> web.Application:
    """Return the application for one broker."""
    app = web.Application(client_max_size=65536)
    app[_STATUS] = status
    app[_REGISTRY] = build_registry(status)
    app.router.add_get("/healthz", _healthz)
    app.router.add_get("/readyz", _readyz)
    app.router.add_get("/metrics", _metrics)
    add_balance_routes(app, status)
    return app


async def start_http(status: BrokerStatus, host: str, port: int) -> web.AppRunner:
    """Serve on host:port until the runner's `cleanup()`. Raises OSError where the port is taken."""
    runner = web.AppRunner(build_app(status), access_log=None, handle_signals=False)
    await runner.setup()
    await web.TCPSite(runner, host, port, shutdown_timeout=1.0).start()
    return runner


async def _healthz(request: web.Request) -> web.Response:
    return _probe(request.app[_STATUS].unhealthy_reasons())


async def _readyz(request: web.Request) -> web.Response:
    return _probe(request.app[_STATUS].unready_reasons())


def _probe(reasons: list[str]) -> web.Response:
    """Answer 200 `ok`, or 503 with one reason a line."""
    if reasons:
        return web.Response(status=503, text="\n".join(reasons) + "\n")
    return web.Response(text="ok\n")


async def _metrics(request: web.Request) -> web.Response:
    body = generate_latest(request.app[_REGISTRY])
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
