"""Requests to an API server that has too much to do: a real HTTP server that says when to come."""

import asyncio
import time
from collections.abc import Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from headrace_operator.kubernetes.api.connection import Connection
from headrace_operator.kubernetes.api.transport import FencedError, KubernetesError, Transport

PATH = "/api/v1/namespaces/n/configmaps/c"


class Busy:
    """A server that answers 429 so many times, and 200 then."""

    def __init__(self, times: int, **headers: str) -> None:
        self.times, self.headers = times, headers
        self.asked: list[float] = []

    async def answer(self, _: web.Request) -> web.Response:
        self.asked.append(time.monotonic())
        if len(self.asked) <= self.times:
            return web.Response(status=429, text="Too many requests", headers=self.headers)
        return web.json_response({"kind": "ConfigMap"})

    def ask(self, path: str = PATH, fence: Callable[[], None] = lambda: None) -> object:
        async def scenario() -> object:
            app = web.Application()
            app.router.add_route("*", "/{any:.*}", self.answer)
            async with TestServer(app) as server:
                connection = Connection(server=str(server.make_url("")).rstrip("/"))
                async with Transport(connection, fence=fence) as transport:
                    return await transport.write("PATCH", path, "ConfigMap", body={})

        return asyncio.run(scenario())


def test_it_is_asked_again_when_it_says_so() -> None:
    busy = Busy(1, **{"Retry-After": "1"})
    assert busy.ask() == {"kind": "ConfigMap"}
    first, second = busy.asked
    assert second - first >= 1


def test_it_is_not_asked_for_ever_nor_where_it_says_nothing() -> None:
    busy = Busy(99, **{"Retry-After": "0"})
    with pytest.raises(KubernetesError, match="429"):
        busy.ask()
    assert len(busy.asked) == 4
    silent = Busy(99)
    with pytest.raises(KubernetesError):
        silent.ask()
    assert len(silent.asked) == 1


def test_an_eviction_that_a_budget_forbids_is_an_answer() -> None:
    busy = Busy(99, **{"Retry-After": "10"})
    with pytest.raises(KubernetesError):
        busy.ask("/api/v1/namespaces/n/pods/p/eviction")
    assert len(busy.asked) == 1


def test_nothing_is_sent_again_once_the_lease_is_lost() -> None:
    busy = Busy(1, **{"Retry-After": "0"})

    def fence() -> None:
        if busy.asked:
            raise FencedError

    with pytest.raises(FencedError):
        busy.ask(fence=fence)
    assert len(busy.asked) == 1
