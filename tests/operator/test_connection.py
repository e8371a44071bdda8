"""Who we are for the API server: what kubeconfigs say, and what their plugins print."""

import asyncio
import base64
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer

from headrace_cli.kubernetes.choice import Choice, open_connection
from headrace_cli.kubernetes.tunnel import Tunnel
from headrace_operator.kubernetes.api import connection as connections
from headrace_operator.kubernetes.api.connection import (
    Connection,
    ConnectionSourceError,
    find_connection,
    read_kubeconfig,
)
from headrace_operator.kubernetes.api.transport import KubernetesError, Transport
from headrace_operator.kubernetes.api.watches import run_watches

PLUGIN = """\
#!/bin/sh
echo asked >> "$FOLDER/asked"
cat "$FOLDER/credential.json"
"""


class Plugin:
    """A kubeconfig whose user is logged in by a plugin."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "plugin").write_text(PLUGIN)
        (folder / "plugin").chmod(0o755)
        self.entry = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./plugin",
            "interactiveMode": "Never",
            "env": [{"name": "FOLDER", "value": str(folder)}],
        }

    def prints(self, word: str, expires: str = "2999-01-01T00:00:00Z") -> None:
        """Let the plugin print a token from now on."""
        status = {"token": word, "expirationTimestamp": expires}
        (self.folder / "credential.json").write_text(json.dumps({"status": status}))

    def connection(self, server: str = "https://api") -> Connection:
        """Read the kubeconfig."""
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"exec": self.entry}}],
        }
        (file := self.folder / "config").write_text(yaml.safe_dump(config))
        return read_kubeconfig(file)

    @property
    def times(self) -> int:
        """How often it was asked."""
        return len((self.folder / "asked").read_text().splitlines())


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


def test_a_plugin_is_asked_once_while_what_it_said_holds(plugin: Plugin) -> None:
    plugin.prints("first")
    connection = plugin.connection()
    assert [connection.read_token() for _ in range(3)] == ["first"] * 3
    assert plugin.times == 1


def test_a_plugin_is_asked_again_when_its_token_expires(plugin: Plugin) -> None:
    plugin.prints("first", "2001-01-01T00:00:00Z")
    connection = plugin.connection()
    connection.read_token()
    plugin.prints("second")
    assert connection.read_token() == "second"
    assert plugin.times == 2


def test_a_plugin_is_asked_again_when_the_server_does_not_take_its_token(plugin: Plugin) -> None:
    plugin.prints("revoked")

    async def answer(request: web.Request) -> web.Response:
        plugin.prints("good")
        is_good = request.headers["Authorization"] == "Bearer good"
        return web.json_response({"kind": "Status"}, status=200 if is_good else 401)

    async def scenario() -> object:
        app = web.Application()
        app.router.add_get("/api", answer)
        async with TestServer(app) as server:
            connection = plugin.connection(str(server.make_url("")))
            async with Transport(connection) as transport:
                return await transport.read("/api")

    assert asyncio.run(scenario()) == {"kind": "Status"}
    assert plugin.times == 2


@pytest.mark.parametrize(
    ("command", "printed", "expected"),
    [
        ("./not-there", "{}", "install it by hand"),
        ("./plugin", "{}", "no ExecCredential"),
        ("./plugin", "not JSON", "no ExecCredential"),
        ("./plugin", '{"status": {}}', "neither a token nor a certificate"),
        ("false", "", "ended with 1"),
    ],
)
def test_what_is_wrong_with_a_plugin_is_said(
    plugin: Plugin, command: str, printed: str, expected: str
) -> None:
    plugin.entry |= {"command": command, "installHint": "install it by hand"}
    (plugin.folder / "credential.json").write_text(printed)
    with pytest.raises(ConnectionSourceError, match=expected):
        plugin.connection().read_token()


class Kubelets:
    """An API server that forwards ports of pods: `echo` says back what it is told."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/n/pods/{pod}/portforward", self._forward)
        self._server = TestServer(app)
        self._run(self._server.start_server())
        self.connection = Connection(server=str(self._server.make_url("")).rstrip("/"))

    def close(self) -> None:
        self._run(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()  # type: ignore[arg-type]  # a coroutine

    async def _forward(self, request: web.Request) -> web.WebSocketResponse:
        if request.match_info["pod"] == "forbidden":
            raise web.HTTPForbidden
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        port = int(request.query["ports"]).to_bytes(2, "little")
        for channel in (b"\0", b"\1"):
            await socket.send_bytes(channel + port)
        if request.match_info["pod"] == "deaf":
            await socket.send_bytes(b"\1nobody listens")
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                await socket.send_bytes(b"\0" + message.data[1:])
        return socket


@pytest.fixture
def kubelets() -> Iterator[Kubelets]:
    running = Kubelets()
    yield running
    running.close()


@pytest.fixture
def tunnel(kubelets: Kubelets) -> Iterator[Tunnel]:
    running = Tunnel(kubelets.connection, "n")
    yield running
    running.close()


async def say(port: int, first: bytes, expected: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(first)
        return await asyncio.wait_for(reader.readexactly(expected), 30)
    finally:
        writer.close()
        await writer.wait_closed()


def socks(host: str, port: int, payload: bytes = b"") -> bytes:
    """What a client says that has names looked up by the proxy (RFC 1928)."""
    name = host.encode()
    request = b"\5\1\0\3" + bytes([len(name)]) + name + port.to_bytes(2) + payload
    return b"\5\1\0" + request


def test_a_port_of_this_machine_stands_for_one_of_a_pod(tunnel: Tunnel) -> None:
    text = bytes(range(256)) * 1000
    assert asyncio.run(say(tunnel.forward("echo", 9404), text, len(text))) == text


def test_brokers_are_reached_by_the_names_that_they_advertise(tunnel: Tunnel) -> None:
    tunnel.add_hosts({"echo.c-brokers.n.svc": "echo"})
    port = int(tunnel.proxy_url.rpartition(":")[2])
    answer = asyncio.run(say(port, socks("echo.c-brokers.n.svc", 9092, b"hello"), 2 + 10 + 5))
    assert answer == b"\5\0" + b"\5\0\0\1" + bytes(6) + b"hello"


@pytest.mark.parametrize(
    ("host", "code", "expected"),
    [
        ("example.org", 2, "example.org:9092 is no pod of the cluster"),
        ("forbidden.c", 4, "you may not forward ports"),
    ],
)
def test_what_is_not_reached_says_why(tunnel: Tunnel, host: str, code: int, expected: str) -> None:
    tunnel.add_hosts({"forbidden.c": "forbidden"})
    port = int(tunnel.proxy_url.rpartition(":")[2])
    answer = asyncio.run(say(port, socks(host, 9092), 12))
    assert answer[3] == code
    assert expected in tunnel.problem


def test_a_port_that_nobody_listens_on_ends_the_connection(tunnel: Tunnel) -> None:
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        asyncio.run(say(tunnel.forward("deaf", 1), b"hello", 1))
    assert "nobody listens" in tunnel.problem


def test_a_server_that_does_not_answer_is_reported() -> None:
    tunnel = Tunnel(Connection(server="http://127.0.0.1:1"), "n")
    try:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            asyncio.run(say(tunnel.forward("echo", 1), b"hello", 1))
        assert "Unreachable" in tunnel.problem
    finally:
        tunnel.close()


def write_config(file: Path, current: str, **entries: dict[str, dict[str, str]]) -> Path:
    """Write a kubeconfig: by plural, what each name stands for."""
    config: dict[str, object] = {"current-context": current}
    for plural, named in entries.items():
        singular = plural.removesuffix("s")
        config[plural] = [{"name": name, singular: each} for name, each in named.items()]
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump(config))
    return file


def test_several_kubeconfigs_are_one_of_which_the_first_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_config(
        tmp_path / "a" / "config",
        "",
        contexts={"work": {"cluster": "k", "user": "u", "namespace": "streams"}},
        users={"u": {"tokenFile": "token"}},
    )
    second = write_config(
        tmp_path / "b" / "config",
        "home",
        contexts={
            "home": {"cluster": "k", "user": "u"},
            "work": {"cluster": "none", "user": "none"},
        },
        clusters={"k": {"server": "https://k", "certificate-authority": "ca.crt"}},
        users={"u": {"token": "another"}},
    )
    (tmp_path / "a" / "token").write_text("of the first\n")
    files = [str(first), str(tmp_path / "is-not-there"), "", str(second)]
    monkeypatch.setenv("KUBECONFIG", ":".join(files))
    current = find_connection()
    assert (current.server, current.default_namespace) == ("https://k", "default")
    assert current.read_token() == "of the first"
    # What a file names is beside that file.
    assert current.ca_path == str(tmp_path / "b" / "ca.crt")
    assert find_connection(context="work").default_namespace == "streams"
    with pytest.raises(ConnectionSourceError, match="no usable context nowhere"):
        find_connection(context="nowhere")


def test_a_kubeconfig_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/a:{tmp_path}/b")
    with pytest.raises(ConnectionSourceError, match=f"{tmp_path}/a:{tmp_path}/b"):
        find_connection()


@pytest.fixture
def in_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this process look like a pod's; returns its home folder."""
    account = tmp_path / "serviceaccount"
    account.mkdir()
    for name in ("token", "ca.crt", "namespace"):
        (account / name).write_text(f"of-the-pod-{name}")
    monkeypatch.setattr(connections, "SERVICE_ACCOUNT", account)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


def write_home(home: Path, current: str = "home") -> None:
    write_config(
        home / ".kube" / "config",
        current,
        contexts={name: {"cluster": name, "user": "u"} for name in ("home", "staging")},
        clusters={name: {"server": f"https://{name}"} for name in ("home", "staging")},
        users={"u": {"token": "t"}},
    )


def test_a_context_in_a_pod_is_never_the_pods_own_cluster(in_pod: Path) -> None:
    with pytest.raises(ConnectionSourceError, match="could have the context staging"):
        find_connection(context="staging")
    write_home(in_pod)
    assert find_connection(context="staging").server == "https://staging"
    with pytest.raises(ConnectionSourceError, match="no usable context nope"):
        find_connection(context="nope")


def test_a_pods_kubeconfig_comes_before_its_account_as_for_kubectl(in_pod: Path) -> None:
    assert find_connection().server == "https://10.0.0.1:443"
    write_home(in_pod, current="")
    assert find_connection().server == "https://10.0.0.1:443"
    write_home(in_pod)
    assert find_connection().server == "https://home"


def one_context(
    folder: Path, cluster: dict[str, object], user: dict[str, object], server: str = "http://k"
) -> Connection:
    """Read a kubeconfig of one cluster and one user."""
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    (file := folder / "config").write_text(yaml.safe_dump(config))
    return read_kubeconfig(file)


IMPERSONATED: dict[str, object] = {
    "token": "t",
    "as": "jane",
    "as-uid": "42",
    "as-groups": ["developers", "admins"],
    "as-user-extra": {"example.org/reason": ["on call", "drill"]},
}


class Heard:
    """An API server without kinds that notes the headers of each request."""

    def __init__(self, status: int = 404) -> None:
        self._status = status
        self.headers: list[list[tuple[str, str]]] = []
        self.targets: list[str] = []
        self.was_asked = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        self.headers.append(list(request.headers.items()))
        self.was_asked.set()
        self.targets.append(str(request.url))
        nothing: dict[str, list[str]] = {"versions": [], "groups": [], "resources": []}
        return web.json_response(nothing, status=self._status)

    def server(self) -> TestServer:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        return TestServer(app)


def check_impersonated(headers: list[tuple[str, str]]) -> None:
    assert [each for each in headers if each[0].startswith(("Impersonate", "Authorization"))] == [
        ("Authorization", "Bearer t"),
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "42"),
        ("Impersonate-Group", "developers"),
        ("Impersonate-Group", "admins"),
        ("Impersonate-Extra-example.org%2Freason", "on call"),
        ("Impersonate-Extra-example.org%2Freason", "drill"),
    ]


def test_requests_and_forwarded_ports_are_made_as_whom_the_user_impersonates(
    tmp_path: Path,
) -> None:
    heard = Heard()

    async def scenario() -> None:
        async with heard.server() as server:
            connection = one_context(tmp_path, {}, IMPERSONATED, str(server.make_url("")))
            async with Transport(connection) as transport:
                with pytest.raises(KubernetesError):
                    await transport.read("/api")
                with pytest.raises(KubernetesError):
                    await transport.open_websocket("/api", {}, "any")

    asyncio.run(scenario())
    assert len(heard.headers) == 2
    for headers in heard.headers:
        check_impersonated(headers)


def test_watches_are_made_as_whom_the_user_impersonates(tmp_path: Path) -> None:
    heard = Heard(200)

    async def scenario() -> None:
        stop = asyncio.Event()
        async with heard.server() as server:
            connection = one_context(tmp_path, {}, IMPERSONATED, str(server.make_url("")))
            watching = asyncio.create_task(
                run_watches(connection, ["n"], [("v1", "Pod")], lambda *_: None, stop)
            )
            async with asyncio.timeout(30):
                await heard.was_asked.wait()
            stop.set()
            await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(scenario())
    check_impersonated(heard.headers[0])


def test_a_proxy_of_the_kubeconfig_is_used(tmp_path: Path) -> None:
    proxy = Heard()

    async def scenario() -> None:
        async with proxy.server() as server:
            cluster: dict[str, object] = {"proxy-url": str(server.make_url(""))}
            connection = one_context(tmp_path, cluster, {"token": "t"}, "http://api.invalid")
            async with Transport(connection) as transport:
                with pytest.raises(KubernetesError) as caught:
                    await transport.read("/api")
                assert caught.value.status == 404
                with pytest.raises(KubernetesError) as caught:
                    await transport.open_websocket("/api", {}, "any")
                assert caught.value.status == 404

    asyncio.run(scenario())
    assert proxy.targets == ["http://api.invalid/api"] * 2


def test_the_servers_certificate_may_have_another_name(tmp_path: Path) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=api.example", "-addext", "subjectAltName=DNS:api.example"]
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(certificate, key)
    asked: list[str | None] = []
    served.sni_callback = lambda _socket, name, _context: asked.append(name)
    authority = base64.b64encode(certificate.read_bytes()).decode()
    trusted: dict[str, object] = {"certificate-authority-data": authority}

    async def status(cluster: dict[str, object]) -> int:
        server = TestServer(web.Application(), scheme="https")
        await server.start_server(ssl=served)
        url = str(server.make_url("")).rstrip("/")
        connection = one_context(tmp_path, cluster, {"token": "t"}, url)
        try:
            async with Transport(connection) as transport:
                with pytest.raises(KubernetesError) as caught:
                    await transport.read("/api")
                return caught.value.status
        finally:
            await server.close()

    assert asyncio.run(status({**trusted, "tls-server-name": "api.example"})) == 404
    assert asked == ["api.example"]
    assert asyncio.run(status({**trusted, "tls-server-name": "another.example"})) == 0
    assert asyncio.run(status(trusted)) == 0


@pytest.mark.parametrize(
    ("cluster", "user", "expected"),
    [
        ({"proxy-url": "socks5://p:1"}, {}, "proxy-url socks5://p:1: only http://"),
        ({}, {"as-groups": ["admins"]}, "need its `as`"),
        ({}, {"auth-provider": {"name": "gcp"}}, "auth-provider is not supported"),
        ({}, {"username": "jane", "password": "p"}, "username is not supported"),
    ],
)
def test_what_a_kubeconfig_asks_for_and_is_not_there_is_refused_by_name(
    tmp_path: Path, cluster: dict[str, object], user: dict[str, object], expected: str
) -> None:
    with pytest.raises(ConnectionSourceError, match=expected):
        one_context(tmp_path, cluster, user)


@pytest.mark.parametrize(
    ("said", "expected"), [(None, "default"), ("streams", "streams"), ("=streams", "streams")]
)
def test_a_namespace_may_be_given_as_kubectl_takes_it(
    in_pod: Path, said: str | None, expected: str
) -> None:
    write_home(in_pod)
    choice = Choice(context=None, namespace=said, at_end=lambda _: None)
    assert open_connection(choice)[1] == expected
