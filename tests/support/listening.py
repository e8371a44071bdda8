"""A broker's listener in the test's own event loop."""

import asyncio
import contextlib
import time

from headrace_broker.server.broker import Broker
from headrace_broker.server.config.broker_config import parse_config


@contextlib.asynccontextmanager
async def listening(directory, settings=""):
    """A broker's listener."""
    text = f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={directory}\n{settings}"
    broker = Broker(parse_config(text), on_failure=print)
    await broker.start()
    try:
        yield broker.listeners[0]
    finally:
        await broker.stop()


async def until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
