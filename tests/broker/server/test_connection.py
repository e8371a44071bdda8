"""What becomes of a connection whose request is never answered, or whose answer is not read."""

import asyncio
import contextlib
import resource
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import uvloop

from headrace_broker.server.network import listener as listener_module
from support.listening import listening, until

API_VERSIONS = 18
REQUEST = struct.pack(">ihhih", 10, API_VERSIONS, 0, 1, -1)


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine: the two kinds of event loop differ in how a connection ends."""
    return request.param


def answer_later(listener) -> list[asyncio.Future[Any]]:
    """Have requests wait for a future each; returns these."""
    entry = listener.apis[API_VERSIONS]
    entry.handle = lambda *_: waiting.append(listener.loop.create_future()) or waiting[-1]
    waiting: list[asyncio.Future[Any]] = []
    return waiting


def test_a_request_that_was_given_up_ends_its_connection_so_that_the_client_asks_again(
    run, tmp_path
):
    """The answers behind it would wait for ever."""

    async def scenario():
        async with listening(tmp_path) as listener:
            waiting = answer_later(listener)
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(REQUEST)
            await until(lambda: waiting)
            waiting[0].cancel()
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(1), 10) == b""
            writer.close()

    run(scenario())


@pytest.mark.parametrize("in_flight_max", [1, 2, 100])
def test_a_half_closed_connection_is_closed_when_its_requests_are_answered(
    run, tmp_path, in_flight_max
):
    """Those, too, that wait because too many requests are under way."""
    setting = f"headrace.max.in.flight.requests.per.connection={in_flight_max}"

    async def scenario():
        async with listening(tmp_path, setting) as listener:
            answer = listener.unsupported_api_versions()
            waiting = answer_later(listener)
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(REQUEST * 3)
            writer.write_eof()
            for place in range(3):
                await until(lambda place=place: len(waiting) > place)
                await asyncio.sleep(0.05)
                waiting[place].set_result(answer)
            received = await asyncio.wait_for(reader.read(), 10)
            size = 4 + struct.unpack_from(">i", received)[0]
            assert len(received) == 3 * size
            await until(lambda: not listener.metrics.connections)
            writer.close()

    run(scenario())


async def owed_connection(listener):
    """Return a client that has not read what it was answered, and the broker's end of it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)  # noqa: FBT003 (socket's own)
    await listener.loop.sock_connect(client, ("127.0.0.1", listener.port))
    await until(lambda: listener._connections)
    (connection,) = listener._connections
    server = connection._transport.get_extra_info("socket")
    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection._write([bytes(4_000_000)])
    assert connection.unsent_bytes
    return client, connection


def test_a_client_that_reads_no_answer_and_falls_silent_is_disconnected(run, tmp_path, monkeypatch):
    """What it is owed is less than what keeps its next request waiting."""
    monkeypatch.setattr(listener_module, "SWEEP_INTERVAL_SECONDS", 0.1)
    settings = "connections.max.idle.ms=1000\nheadrace.connection.write.buffer.bytes=100000000"

    async def scenario():
        async with listening(tmp_path, settings) as listener:
            client, _ = await owed_connection(listener)
            await until(lambda: not listener.metrics.connections)
            client.close()

    run(scenario())


def test_a_silent_client_that_still_reads_its_answers_stays(run, tmp_path, monkeypatch):
    monkeypatch.setattr(listener_module, "SWEEP_INTERVAL_SECONDS", 0.1)
    settings = "connections.max.idle.ms=1000\nheadrace.connection.write.buffer.bytes=100000000"

    async def scenario():
        async with listening(tmp_path, settings) as listener:
            client, connection = await owed_connection(listener)
            for _ in range(30):
                for _ in range(16):
                    assert await listener.loop.sock_recv(client, 4096)
                await asyncio.sleep(0.1)
                assert connection.unsent_bytes
            client.close()

    run(scenario())


def descriptors_in_use():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_connections_leave_file_descriptors_for_segments(run, tmp_path, monkeypatch):
    """As soon as others are closed, new ones are accepted again."""
    in_use = descriptors_in_use()
    limit = (in_use + 100) * 4 // 3
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))

    async def scenario():
        async with listening(tmp_path) as listener:
            clients = []
            while not listener.metrics.connections_refused:
                clients.append(await asyncio.open_connection("127.0.0.1", listener.port))
                await asyncio.sleep(0)
                assert len(clients) < 100
            assert descriptors_in_use() < in_use + 110
            for _, writer in clients:
                writer.close()
            await until(lambda: not listener.metrics.connections)
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(REQUEST)
            assert await asyncio.wait_for(reader.readexactly(4), 10)
            writer.close()

    run(scenario())


def test_a_broker_takes_all_descriptors_that_it_may(tmp_path):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    script = (
        "import pathlib, resource; from headrace_broker.server.main import run;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (100, {most}));"
        f"run(pathlib.Path({str(tmp_path / 'bad')!r}));"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    (tmp_path / "bad").write_text("no.such.setting")
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert ran.stdout == f"{most}\n"
