"""Waiting inside an event loop."""

import asyncio
from collections.abc import Callable

_POLL_SECONDS = 0.005


async def until(condition: Callable[[], object], timeout_seconds: float = 60) -> None:
    """Let the loop run until `condition` holds; raise `TimeoutError` when it never does."""
    async with asyncio.timeout(timeout_seconds):
        while not condition():  # noqa: ASYNC110 (states without an event)
            await asyncio.sleep(_POLL_SECONDS)
