"""Brokers that the command line reaches though their pods came after it had begun."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer

from headrace_cli.errors import CommandError
from headrace_cli.kubernetes.choice import Choice
from headrace_cli.kubernetes.cluster import KubernetesCluster, find_kubernetes_cluster

CLUSTER = {
    "apiVersion": "headrace.dev/v1beta1",
    "kind": "Cluster",
    "metadata": {"name": "c", "namespace": "n", "uid": "u"},
    "spec": {"pools": [{"name": "a", "replicas": 3}], "listeners": [{"name": "plain"}]},
}


class ApiServer:
    """An API server with one Cluster, whose pods come and go; each echoes with its name."""

    def __init__(self) -> None:
        self.phases: dict[str, str] = {}
        self.may_list = True
        self.lists = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/n/pods/{pod}/portforward", self._forward)
        app.router.add_get("/{path:.*}", self._answer)
        self._server = TestServer(app)
        self.run(self._server.start_server())
        self.url = str(self._server.make_url("")).rstrip("/")

    def close(self) -> None:
        self.run(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _answer(self, request: web.Request) -> web.Response:
        if request.path.endswith("/clusters"):
            return web.json_response({"metadata": {}, "items": [CLUSTER]})
        if request.path.endswith("/pods"):
            self.lists += 1
            if not self.may_list:
                return web.json_response({"reason": "Forbidden", "message": "no"}, status=403)
            return web.json_response({"metadata": {}, "items": [*map(self._pod, self.phases)]})
        listed = [
            {"name": name, "kind": kind, "namespaced": True}
            for name, kind in (("clusters", "Cluster"), ("pods", "Pod"))
        ]
        return web.json_response({"resources": listed})

    def _pod(self, name: str) -> dict[str, Any]:
        labels = {"headrace.dev/pool": "a", "headrace.dev/broker": "true"}
        return {
            "metadata": {"name": name, "namespace": "n", "labels": labels},
            "status": {"phase": self.phases[name]},
        }

    async def _forward(self, request: web.Request) -> web.WebSocketResponse:
        name = request.match_info["pod"]
        if self.phases.get(name) != "Running":
            raise web.HTTPBadRequest
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        port = int(request.query["ports"]).to_bytes(2, "little")
        for channel in (b"\0", b"\1"):
            await socket.send_bytes(channel + port)
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                await socket.send_bytes(b"\0" + name.encode())
        return socket


@pytest.fixture
def server() -> Iterator[ApiServer]:
    running = ApiServer()
    yield running
    running.close()


Opened = Callable[[], KubernetesCluster]


@pytest.fixture
def opened(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
        "clusters": [{"name": "k", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    ends: list[Callable[[], None]] = []
    yield lambda: find_kubernetes_cluster(
        Choice(context=None, namespace=None, at_end=ends.append), None
    )
    for end in ends:
        end()


def reach(cluster: KubernetesCluster, pod: str) -> bytes:
    """Connect to a pod's broker by its advertised name, and return what it says."""

    async def say() -> bytes:
        port = int(cluster.proxy_url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            name = f"{pod}.c-brokers.n.svc".encode()
            writer.write(b"\5\1\0\5\1\0\3" + bytes([len(name)]) + name + (9092).to_bytes(2) + b"?")
            head = await asyncio.wait_for(reader.readexactly(12), 30)
            if head[3]:
                return head[3:4]
            return await asyncio.wait_for(reader.readexactly(len(pod)), 30)
        finally:
            writer.close()
            await writer.wait_closed()

    return asyncio.run(say())


def test_a_pod_that_joins_later_or_restarts_now_is_reached(
    server: ApiServer, opened: Opened
) -> None:
    server.phases = {"c-a-0": "Running", "c-a-1": "Pending"}
    cluster = opened()
    assert cluster.bootstrap_servers == "c-a-0.c-brokers.n.svc:9092"
    assert reach(cluster, "c-a-0") == b"c-a-0"
    assert reach(cluster, "c-a-1") == b"\4"  # not now
    server.phases = {"c-a-0": "Running", "c-a-1": "Running", "c-a-2": "Running"}
    assert reach(cluster, "c-a-1") == b"c-a-1"
    assert "c-a-2.c-brokers.n.svc" not in cluster.pools
    assert reach(cluster, "c-a-2") == b"c-a-2"
    assert cluster.pools["c-a-2.c-brokers.n.svc"] == "a"
    assert len(cluster.http) == 2
    assert server.lists == 2


def test_pods_are_not_listed_for_each_of_many_questions(server: ApiServer, opened: Opened) -> None:
    server.phases = {"c-a-0": "Running"}
    cluster = opened()
    for _ in range(10):
        assert reach(cluster, "c-a-7") == b"\2"
    assert "is no pod of the cluster" in cluster.tunnel.problem
    assert server.lists < 6


def test_who_may_not_list_any_more_is_told(server: ApiServer, opened: Opened) -> None:
    server.phases = {"c-a-0": "Running"}
    cluster = opened()
    server.may_list = False
    assert reach(cluster, "c-a-1") == b"\2"
    assert "Forbidden" in cluster.tunnel.problem
    assert reach(cluster, "c-a-0") == b"c-a-0"


def test_a_cluster_none_of_whose_brokers_runs_is_said(server: ApiServer, opened: Opened) -> None:
    server.phases = {"c-a-0": "Pending"}
    with pytest.raises(CommandError, match="has no broker that runs"):
        opened()
