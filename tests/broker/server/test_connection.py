"""What becomes of a connection whose request will never be answered."""

import asyncio
import contextlib
import struct

from headrace_broker.server.broker import Broker
from headrace_broker.server.config.broker_config import parse_config

API_VERSIONS = 18


def test_a_request_that_was_given_up_ends_its_connection_so_that_the_client_asks_again(tmp_path):
    """The answers behind it would wait for ever."""

    async def scenario():
        text = f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path}\n"
        broker = Broker(parse_config(text), on_failure=print)
        await broker.start()
        try:
            listener = broker.listeners[0]
            given_up = asyncio.get_running_loop().create_future()
            listener.apis[API_VERSIONS].handle = lambda *_: given_up
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            request = struct.pack(">hhih", API_VERSIONS, 0, 1, -1)
            writer.write(struct.pack(">i", len(request)) + request)
            await asyncio.sleep(0.05)
            given_up.cancel()
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(1), 10) == b""
            writer.close()
        finally:
            await broker.stop()

    asyncio.run(scenario())
