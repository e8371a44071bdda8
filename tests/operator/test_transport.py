"""Requests to an API server that has too much to do: a real HTTP server that says when to come."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from headrace_operator.kubernetes.api.client import KubernetesClient
from headrace_operator.kubernetes.api.connection import Connection
from headrace_operator.kubernetes.api.rights import LACKING_SECONDS, Lacking, Right, needed_right
from headrace_operator.kubernetes.api.transport import FencedError, KubernetesError, Transport
from support.answering import answering

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
            async with (
                answering(self.answer) as connection,
                Transport(connection, fence=fence) as transport,
            ):
                return await transport.write("PATCH", path, "ConfigMap", body={})

        return asyncio.run(scenario())


def test_an_event_is_no_longer_than_the_api_server_takes() -> None:
    sent: list[Any] = []

    async def take(request: web.Request) -> web.Response:
        if request.method == "POST":
            sent.append(await request.json())
            return web.json_response({})
        kind = {"name": "events", "kind": "Event", "namespaced": True}
        return web.json_response({"resources": [kind]})

    async def scenario() -> None:
        async with answering(take) as connection, KubernetesClient(connection) as client:
            name = "a" * 235 + "." + "b" * 17
            metadata = {"name": name, "namespace": "n", "uid": "u"}
            topic = {"apiVersion": "v1", "kind": "Topic", "metadata": metadata}
            await client.event(topic, reason="Why", message="é" * 1024)

    asyncio.run(scenario())
    (event,) = sent
    assert len(event["metadata"]["name"]) <= 253
    assert "a." in event["metadata"]["name"]
    assert ".." not in event["metadata"]["name"]
    assert len(event["note"].encode()) <= 1024


def test_credentials_that_cannot_be_read_now_are_an_error_of_the_request(tmp_path: Path) -> None:
    token, busy = tmp_path / "token", Busy(0)

    async def scenario() -> None:
        app = web.Application()
        app.router.add_route("*", "/{any:.*}", busy.answer)
        async with TestServer(app) as server:
            url = str(server.make_url("")).rstrip("/")
            async with Transport(Connection(server=url, token_path=token)) as transport:
                with pytest.raises(KubernetesError, match="Unreachable"):
                    await transport.read(PATH)
                token.write_text("t")
                assert await transport.read(PATH) == {"kind": "ConfigMap"}
            missing = Connection(server=url, ca_path=str(tmp_path / "none"))
            async with Transport(missing) as transport:
                with pytest.raises(KubernetesError, match="Unreachable"):
                    await transport.read(PATH)

    asyncio.run(scenario())


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


@pytest.mark.parametrize(
    ("client", "asked"),
    # That of the lease is so short that its own end is the answer.
    [(15.0, "10s"), (4.0, None)],
)
def test_a_write_is_to_be_answered_before_nobody_waits_for_it(
    client: float, asked: str | None
) -> None:
    queries: list[tuple[str, str | None]] = []

    async def take(request: web.Request) -> web.Response:
        queries.append((request.method, request.query.get("timeout")))
        return web.json_response({})

    async def scenario() -> None:
        async with (
            answering(take) as connection,
            Transport(connection, timeout_seconds=client) as transport,
        ):
            await transport.read(PATH)
            for method in ("POST", "PATCH", "PUT", "DELETE"):
                await transport.write(method, PATH, "ConfigMap", body={}, query={"a": "b"})

    asyncio.run(scenario())
    written = [(method, asked) for method in ("POST", "PATCH", "PUT", "DELETE")]
    assert queries == [("GET", None), *written]


def test_nothing_is_sent_again_once_the_lease_is_lost() -> None:
    busy = Busy(1, **{"Retry-After": "0"})

    def fence() -> None:
        if busy.asked:
            raise FencedError

    with pytest.raises(FencedError):
        busy.ask(fence=fence)
    assert len(busy.asked) == 1


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("GET", "/api/v1/namespaces/n/pods", Right("list", "pods", "n")),
        ("GET", "/api/v1/nodes/a", Right("get", "nodes")),
        ("GET", "/api/v1/namespaces", Right("list", "namespaces")),
        ("GET", "/api/v1/namespaces/n", Right("get", "namespaces")),
        ("POST", "/api/v1/namespaces/n/pods/p/eviction", Right("create", "pods/eviction", "n")),
        ("PATCH", "/apis/apps/v1/namespaces/n/statefulsets/s/scale",
         Right("patch", "statefulsets.apps/scale", "n")),
        ("DELETE", "/apis/apps/v1/namespaces/n/statefulsets/s",
         Right("delete", "statefulsets.apps", "n")),
        ("DELETE", "/api/v1/namespaces/n/pods", Right("deletecollection", "pods", "n")),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/n/leases/l",
         Right("update", "leases.coordination.k8s.io", "n")),
        ("GET", "/apis/apps/v1", None),
        ("GET", "/api/v1", None),
    ],
)  # fmt: skip
def test_a_request_needs_a_right_in_the_words_of_roles(
    method: str, path: str, right: Right | None
) -> None:
    assert needed_right(method, path) == right


def test_a_right_of_the_whole_cluster_that_is_lacking_is_not_asked_for_in_every_pass() -> None:
    now = [0.0]
    lacking = Lacking(lambda: now[0])
    lacking.note(nodes := Right("list", "nodes"), "no")
    lacking.note(pods := Right("list", "pods", "n"), "no")
    assert lacking.message(nodes) == "no"
    assert not lacking.message(pods)
    assert not lacking.message(Right("get", "nodes"))
    now[0] += LACKING_SECONDS
    assert not lacking.message(nodes)


def test_what_is_not_allowed_is_asked_once_and_counted() -> None:
    asked: list[str] = []
    counted: list[tuple[Right, int]] = []

    async def refuse(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"reason": "Forbidden", "message": "cannot"}, status=403)

    async def scenario() -> None:
        async with answering(refuse) as connection:
            transport = Transport(connection, on_request=lambda *each: counted.append(each))
            async with transport:
                for path in ("/api/v1/nodes", "/api/v1/nodes", PATH, PATH):
                    with pytest.raises(KubernetesError, match="cannot") as caught:
                        await transport.read(path)
                    assert caught.value.status == 403

    asyncio.run(scenario())
    assert asked == ["/api/v1/nodes", PATH, PATH]
    assert counted[0] == (Right("list", "nodes"), 403)
