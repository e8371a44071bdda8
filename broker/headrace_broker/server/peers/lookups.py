"""Lookups of one peer's name, each in a thread of its own.

A name server that loses a packet is asked again after 5 s (resolv.conf(5), `timeout`), for each of
the search domains. A lookup that was given up with its attempt to connect would never end in time:
here it goes on, and the next attempt takes its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading

__all__ = ["Lookups", "is_literal"]

_LOOKUPS_MAX = 2
"""At a time, for one name: a new one may be answered while a former one waits."""


def is_literal(host: str) -> bool:
    """Whether a host is an IP address, which nobody has to look up."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Lookups:
    """Asks for the addresses of one name; lookups outlive the attempts that began them."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._pending: set[asyncio.Future[list[str]]] = set()

    async def find(self, seconds: float) -> list[str]:
        """Return the name's addresses. Raises OSError (socket.gaierror), or TimeoutError."""
        if len(self._pending) < _LOOKUPS_MAX:
            self._pending.add(self._begin())
        done, self._pending = await asyncio.wait(
            self._pending, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            raise TimeoutError(f"the name is looked up for more than {seconds:g} s")
        for each in done:
            if each.exception() is None:
                # What is still under way is older than the next attempt that needs one.
                self._pending = set()
                return each.result()
        return next(iter(done)).result()

    def _begin(self) -> asyncio.Future[list[str]]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[str]] = loop.create_future()
        future.add_done_callback(_retrieve)

        def look_up() -> None:
            try:
                infos = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            except OSError as error:
                _tell(loop, future, error)
            else:
                _tell(loop, future, list(dict.fromkeys(str(info[4][0]) for info in infos)))

        # No executor's: a process must not wait for these when it ends.
        threading.Thread(target=look_up, name=f"lookup-{self._host}", daemon=True).start()
        return future


def _tell(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[list[str]], found: list[str] | OSError
) -> None:
    def settle() -> None:
        if future.done():
            return
        if isinstance(found, OSError):
            future.set_exception(found)
        else:
            future.set_result(found)

    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(settle)


def _retrieve(future: asyncio.Future[list[str]]) -> None:
    """Retrieve the exception of a lookup that may have no waiter left."""
    if not future.cancelled():
        future.exception()
