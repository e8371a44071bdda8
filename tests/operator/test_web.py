"""The operator's HTTP port: whoever holds connections open, probes get through."""

import asyncio

from prometheus_client import CollectorRegistry

from headrace_operator.kubernetes.web import CONNECTIONS_MAX, start_web
from support.processes import LOOPBACK, free_port


async def ask(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def test_the_oldest_connection_gives_way_to_a_new_one() -> None:
    async def run() -> None:
        port = free_port()
        served = await start_web(LOOPBACK, port, CollectorRegistry(), lambda: "", lambda: "not yet")
        held = [await asyncio.open_connection(LOOPBACK, port) for _ in range(CONNECTIONS_MAX + 20)]
        try:
            assert (await ask(port, "/healthz")).startswith(b"HTTP/1.0 200")
            assert (await ask(port, "/readyz")).startswith(b"HTTP/1.0 503")
            for reader, _ in held[:20]:
                try:
                    assert await asyncio.wait_for(reader.read(1), 10) == b""
                except ConnectionResetError:
                    continue
            reader, writer = held[-1]
            writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.0 200")
        finally:
            for _, writer in held:
                writer.close()
            await served.cleanup()

    asyncio.run(run())


def test_the_port_is_free_after_the_end() -> None:
    async def run() -> None:
        port = free_port()
        for _ in range(2):
            served = await start_web(LOOPBACK, port, CollectorRegistry(), lambda: "", lambda: "")
            assert (await ask(port, "/healthz")).startswith(b"HTTP/1.0 200")
            await served.cleanup()

    asyncio.run(run())
