"""An HTTP server that answers as a test says, in an API server's place."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer

from headrace_operator.kubernetes.api.connection import Connection


@asynccontextmanager
async def answering(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[Connection]:
    """Serve every request by `answer`; yield the connection to it."""
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    async with TestServer(app) as server:
        yield Connection(server=str(server.make_url("")).rstrip("/"))
