"""Requests that do not come to their end, and what they may hold of the memory budget."""

import asyncio
import socket
import struct
from itertools import pairwise
from random import Random

import pytest
import structlog
import uvloop

from headrace_broker.server.network import listener as listener_module
from headrace_broker.server.network.frames import OWN_BUFFER_BYTES
from support.listening import listening, until

API_VERSIONS = 18
BUDGET_BYTES = 1_048_576
SETTING = f"queued.max.request.bytes={BUDGET_BYTES}"


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine: the two kinds of event loop differ in how a connection is paused."""
    return request.param


@pytest.fixture
def deadlines(monkeypatch):
    monkeypatch.setattr(listener_module, "SWEEP_INTERVAL_SECONDS", 0.1)
    monkeypatch.setattr(listener_module, "UNFINISHED_SECONDS_MAX", 2.0)
    monkeypatch.setattr(listener_module, "BLOCKING_SECONDS_MAX", 0.5)


def frame_of(size):
    """A frame of `size` bytes after its length: ApiVersions, with bytes that are skipped."""
    return struct.pack(">ihhih", size, API_VERSIONS, 0, 1, -1) + bytes(size - 10)


async def client_of(listener):
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    client.setblocking(False)  # noqa: FBT003 (socket's own)
    await listener.loop.sock_connect(client, ("127.0.0.1", listener.port))
    return client


async def answered(listener, client):
    """Return the size of a client's next answer, 0 if it was disconnected."""
    try:
        head = await asyncio.wait_for(listener.loop.sock_recv(client, 65536), 20)
    except ConnectionError:
        return 0
    return len(head)


async def ask(listener, client, size):
    """Send a whole frame; return the size of its answer, 0 if the client was disconnected."""
    try:
        await listener.loop.sock_sendall(client, frame_of(size))
    except ConnectionError:
        return 0
    return await answered(listener, client)


def test_an_announced_length_holds_one_small_buffer(run, tmp_path):
    async def scenario():
        async with listening(tmp_path) as listener:
            clients = [await client_of(listener) for _ in range(20)]
            for client in clients:
                await listener.loop.sock_sendall(client, struct.pack(">i", 900_000))
            await until(lambda: listener.metrics.bytes_in == 4 * len(clients))
            assert listener.budget.used == OWN_BUFFER_BYTES * len(clients)
            for client in clients:
                client.close()
            await until(lambda: listener.budget.used == 0)

    run(scenario())


def test_requests_larger_than_the_budget_are_served_one_after_the_other(run, tmp_path):
    async def scenario():
        async with listening(tmp_path, SETTING) as listener:
            used_max = 0
            take = listener.take_buffer

            def observed(size):
                nonlocal used_max
                buffer = take(size)
                used_max = max(used_max, listener.budget.used)
                return buffer

            listener.take_buffer = observed
            size = 5 * BUDGET_BYTES
            clients = [await client_of(listener) for _ in range(10)]
            sizes = await asyncio.gather(*(ask(listener, client, size) for client in clients))
            assert all(sizes)
            # One frame, with the buffer that it was copied from, and the others' first buffers.
            assert used_max <= BUDGET_BYTES + 2 * size + len(clients) * 262_144
            await until(lambda: listener.budget.used == 0)
            for client in clients:
                client.close()

    run(scenario())


async def spend(listener):
    """Return clients whose unfinished requests use up the budget: half of one has arrived."""
    clients = []
    while not listener.budget.is_spent:
        client = await client_of(listener)
        before = listener.metrics.bytes_in
        await listener.loop.sock_sendall(client, frame_of(OWN_BUFFER_BYTES)[:30_000])
        await until(lambda before=before: listener.metrics.bytes_in == before + 30_000)
        clients.append(client)
    return clients


def test_small_requests_in_pieces_are_served_when_the_budget_is_spent(run, tmp_path):
    async def scenario():
        async with listening(tmp_path, SETTING) as listener:
            clients = await spend(listener)
            frame = frame_of(50_000)
            client = await client_of(listener)
            await listener.loop.sock_sendall(client, frame[:20_000])
            await asyncio.sleep(0.1)
            await listener.loop.sock_sendall(client, frame[20_000:])
            assert await answered(listener, client)
            for other in (*clients, client):
                other.close()

    run(scenario())


@pytest.mark.usefixtures("deadlines")
def test_an_unfinished_request_is_closed_after_a_time_without_a_byte(run, tmp_path):
    async def scenario():
        async with listening(tmp_path) as listener:
            silent, slow = await client_of(listener), await client_of(listener)
            await listener.loop.sock_sendall(silent, struct.pack(">i", 900_000))
            frame = frame_of(100)
            with structlog.testing.capture_logs() as logs:
                for place in range(0, len(frame), 20):
                    await listener.loop.sock_sendall(slow, frame[place : place + 20])
                    await asyncio.sleep(0.6)
                assert await answered(listener, silent) == 0
            assert await answered(listener, slow)
            (line,) = [line for line in logs if line["event"] == "connection closed"]
            assert line["reason"] == "the rest of its request did not come"
            silent.close()
            slow.close()

    run(scenario())


@pytest.mark.usefixtures("deadlines")
def test_a_request_that_waits_for_memory_is_closed_after_a_time(run, tmp_path):
    """The one that may grow gets on slowly and is served; those behind it are told in the log."""

    async def scenario():
        async with listening(tmp_path, SETTING) as listener:
            frame = frame_of(3 * BUDGET_BYTES)
            first = await client_of(listener)
            await listener.loop.sock_sendall(first, frame[: 2 * BUDGET_BYTES])
            await until(lambda: listener.metrics.bytes_in == 2 * BUDGET_BYTES)
            second = await client_of(listener)
            with structlog.testing.capture_logs() as logs:
                asking = asyncio.create_task(ask(listener, second, 2 * BUDGET_BYTES))
                for place in range(2 * BUDGET_BYTES, len(frame), 80_000):
                    await listener.loop.sock_sendall(first, frame[place : place + 80_000])
                    await asyncio.sleep(0.25)
                assert await asking == 0
            assert await answered(listener, first)
            (line,) = [line for line in logs if line["event"] == "connection closed"]
            assert line["reason"] == "no memory for its request"
            first.close()
            second.close()

    run(scenario())


@pytest.mark.usefixtures("deadlines")
def test_a_silent_request_gives_way_to_those_that_wait_for_its_memory(run, tmp_path):
    async def scenario():
        async with listening(tmp_path, SETTING) as listener:
            silent = await client_of(listener)
            await listener.loop.sock_sendall(silent, frame_of(3 * BUDGET_BYTES)[: 2 * BUDGET_BYTES])
            await until(lambda: listener.metrics.bytes_in == 2 * BUDGET_BYTES)
            waiting = await client_of(listener)
            assert await ask(listener, waiting, 2 * BUDGET_BYTES)
            silent.close()
            waiting.close()

    run(scenario())


@pytest.mark.usefixtures("deadlines")
def test_a_connection_that_the_broker_does_not_read_is_not_closed(run, tmp_path):
    """Its requests wait for the answer to its first one; the last of them is unfinished."""

    async def scenario():
        async with listening(
            tmp_path, "headrace.max.in.flight.requests.per.connection=1"
        ) as listener:
            entry, answer = listener.apis[API_VERSIONS], listener.unsupported_api_versions()
            waiting = []
            entry.handle = lambda *_: waiting.append(listener.loop.create_future()) or waiting[-1]
            client = await client_of(listener)
            frame = frame_of(50_000)
            await listener.loop.sock_sendall(client, frame_of(100) + frame[:45_000])
            await asyncio.sleep(3)
            waiting[0].set_result(answer)
            assert await answered(listener, client)
            await listener.loop.sock_sendall(client, frame[45_000:])
            await until(lambda: len(waiting) == 2)
            waiting[1].set_result(answer)
            assert await answered(listener, client)
            client.close()

    run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_all_requests_are_answered_however_they_share_the_memory(run, tmp_path, seed):
    """Requests of all sizes, many on one connection, in pieces; answers take their time."""
    random = Random(seed)
    settings = f"{SETTING}\nheadrace.max.in.flight.requests.per.connection=3"
    sizes = [10, 1_000, 50_000, 65_532, 65_536, 200_000, 262_140, 1_000_000, 3_000_000]

    async def talk(listener, requests, pieces):
        client = await client_of(listener)
        reader = asyncio.create_task(read_all(listener, client, len(requests)))
        data = b"".join(map(frame_of, requests))
        for start, end in pairwise(sorted({0, *pieces, len(data)})):
            await listener.loop.sock_sendall(client, data[start:end])
            await asyncio.sleep(0.01)
        await reader
        client.close()

    async def read_all(listener, client, count):
        received, answers = b"", 0
        while answers < count:
            part = await asyncio.wait_for(listener.loop.sock_recv(client, 65536), 20)
            assert part, "disconnected"
            received += part
            while len(received) >= 4 and len(received) >= (
                size := 4 + struct.unpack_from(">i", received)[0]
            ):
                received, answers = received[size:], answers + 1

    async def scenario():
        async with listening(tmp_path, settings) as listener:
            answer = listener.unsupported_api_versions()
            pauses = iter(lambda: random.choice([0, 0.01, 0.1]), None)
            listener.apis[API_VERSIONS].handle = lambda *_: asyncio.sleep(next(pauses), answer)
            talks = []
            for _ in range(15):
                requests = random.choices(sizes, k=6)
                pieces = [random.randrange(sum(requests)) for _ in range(10)]
                talks.append(talk(listener, requests, pieces))
            await asyncio.gather(*talks)
            await until(lambda: listener.budget.used == 0)

    run(scenario())
