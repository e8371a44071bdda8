"""Readiness of brokers by their own HTTP checks. Owns no state."""

from __future__ import annotations

import asyncio
import http.client
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["is_ready", "wait_ready"]

POLL_SECONDS = 0.05
REQUEST_TIMEOUT_SECONDS = 2.0


def is_ready(base_url: str) -> bool:
    """Whether `/readyz` answers 200 now."""
    target = urlsplit(base_url)
    connection = http.client.HTTPConnection(
        target.hostname or "127.0.0.1", target.port, timeout=REQUEST_TIMEOUT_SECONDS
    )
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


async def wait_ready(
    base_url: str, *, timeout_seconds: float, gave_up: Callable[[], bool] = lambda: False
) -> float:
    """Wait for `/readyz`; returns the seconds it took.

    `TimeoutError` if it is not ready in time or `gave_up()` says that it never will be.
    """
    began = time.monotonic()
    while not await asyncio.to_thread(is_ready, base_url):
        waited = time.monotonic() - began
        if waited > timeout_seconds or gave_up():
            raise TimeoutError(f"{base_url}/readyz is not ready after {waited:.1f} s")
        await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - began
