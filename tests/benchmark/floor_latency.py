"""The floor of one write at a time: an echo under the same client and the same event loop.

Run by hand, on a quiet machine: `PYTHONPATH=tests python tests/benchmark/floor_latency.py 20000`.
The echo answers each Produce with the bytes of the first answer and asks a real broker all else, so
what the broker takes beyond it is parsing, checking, appending and writing. Rounds alternate.
"""

import asyncio
import multiprocessing
import socket
import statistics
import struct
import sys
import tempfile
from pathlib import Path

import uvloop

from benchmark.latency import OneAtATime, percentile
from benchmark.measure import fresh_topic
from support.headrace_broker import HeadraceBroker
from support.processes import LOOPBACK, free_port, wait_until
from support.wire import RawConnection, answers_api_versions

_ROUNDS = 5
_WARM_UP = 2000
_PRODUCE = 0


class Echo(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, broker: str) -> None:
        self._broker = RawConnection(broker, timeout_seconds=30)
        self._known: bytes | None = None
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        self._broker.close()

    def data_received(self, data: bytes) -> None:
        held = self._held + data
        while len(held) >= 4 and len(held) >= (size := 4 + struct.unpack_from(">i", held)[0]):
            self._transport.write(self._answer(held[4:size]))
            held = held[size:]
        self._held = held

    def _answer(self, request: bytes) -> bytes:
        if request[:2] == struct.pack(">h", _PRODUCE) and self._known is not None:
            return self._known[:4] + request[4:8] + self._known[8:]
        self._broker.send_frame(request)
        body = self._broker.receive_frame()
        answer = struct.pack(">i", len(body)) + body
        if request[:2] == struct.pack(">h", _PRODUCE):
            self._known = answer
        return answer


def _serve(port: int, broker: str) -> None:
    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Echo(broker), LOOPBACK, port)
        await server.serve_forever()

    uvloop.run(serve())


def _measure(address: str, topic: str, samples: int) -> list[float]:
    producer = OneAtATime(address, topic)
    for _ in range(_WARM_UP):
        producer.send(bytes(100))
    return [producer.send(bytes(100)) for _ in range(samples)]


def main() -> None:
    samples = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    # Each of the two brokers advertises where its clients are to stay.
    echo_port = free_port()
    advertised = {"advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{echo_port}"}
    with (
        tempfile.TemporaryDirectory() as folder,
        HeadraceBroker(Path(folder) / "broker") as broker,
        HeadraceBroker(Path(folder) / "behind", advertised) as behind,
    ):
        context = multiprocessing.get_context("spawn")
        echo = context.Process(target=_serve, args=(echo_port, behind.bootstrap), daemon=True)
        echo.start()
        address = f"{LOOPBACK}:{echo_port}"
        wait_until(lambda: answers_api_versions(address), what="the echo")
        found: dict[str, list[float]] = {"broker": [], "echo": []}
        with fresh_topic(broker) as topic, fresh_topic(behind) as behind_topic:
            for _ in range(_ROUNDS):
                found["broker"] += _measure(broker.bootstrap, topic, samples // _ROUNDS)
                found["echo"] += _measure(address, behind_topic, samples // _ROUNDS)
        echo.terminate()
    for name, times in found.items():
        median, tail = statistics.median(times), percentile(times, 0.99)
        print(f"{name:7s} p50 {median:7.1f} µs   p99 {tail:7.1f} µs")  # noqa: T201 - the result
    floor = statistics.median(found["echo"]) / statistics.median(found["broker"])
    print(f"the echo takes {floor:.2f} of the broker's time")  # noqa: T201 - the result


if __name__ == "__main__":
    main()
