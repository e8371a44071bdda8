"""The simulated network keeps what real sockets promise to the code above them."""

import asyncio
import random

import pytest

from simulation.loop import SimulatedLoop
from simulation.network import Network


class ResetsAtOnce(asyncio.Protocol):
    def connection_made(self, transport):
        transport.peer.lose(ConnectionResetError("reset"))


def test_a_connection_that_is_reset_before_it_is_made_raises():
    loop = SimulatedLoop(random.Random(1))
    network = Network(loop, random.Random(1))
    server, client = loop.process("server", "10.0.0.1"), loop.process("client", "10.0.0.2")

    async def listen():
        network.listen(ResetsAtOnce, "10.0.0.1", 9092)

    async def connect():
        await loop.create_connection(asyncio.Protocol, "10.0.0.1", 9092)

    async def run():
        await loop.start_task(server, listen())
        with pytest.raises(ConnectionResetError):
            await loop.start_task(client, connect())

    loop.run(run(), limit_seconds=5)
