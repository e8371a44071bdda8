"""The heartbeats' thread: it speaks while the event loop is held up, and not for ever."""

import asyncio
import functools
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace_broker.protocol.types import BrokerEpoch, NodeId
from headrace_broker.server.membership.beats import Beats, beat_frame
from headrace_broker.server.peers.peer_destination import Address
from support.processes import LOOPBACK

NODE, EPOCH = NodeId(7), BrokerEpoch(41)
SESSION_MS = 300
PATIENCE_SECONDS = 30


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Controller:
    """A port that takes connections, and what was sent to it, which it answers by a byte."""

    def __init__(self) -> None:
        self.answers = True
        self.listener = socket.create_server((LOOPBACK, 0))
        self.listener.settimeout(PATIENCE_SECONDS)
        self.address = Address(*self.listener.getsockname())
        self.connection: socket.socket | None = None

    def beat(self, timeout_seconds: float = PATIENCE_SECONDS) -> bytes:
        """Wait for a whole beat, holding up whoever calls; TimeoutError where none comes."""
        if self.connection is None:
            self.connection, _ = self.listener.accept()
        self.connection.settimeout(timeout_seconds)
        beat = b""
        while len(beat) < len(beat_frame(NODE, EPOCH)):
            part = self.connection.recv(len(beat_frame(NODE, EPOCH)) - len(beat))
            if not part:
                raise ConnectionResetError
            beat += part
        if self.answers:
            self.connection.send(b"a")
        return beat

    def read_to_the_end(self) -> None:
        """Read beats; ConnectionResetError where the connection ends."""
        while True:
            self.beat()

    def silence(self) -> None:
        """Read what comes until nothing has come for ten sessions."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            try:
                self.beat(10 * SESSION_MS / 1000)
            except TimeoutError:
                return
        raise AssertionError("the beats do not stop")

    def close(self) -> None:
        self.listener.close()
        if self.connection is not None:
            self.connection.close()


@on_a_loop
async def test_beats_come_while_the_loop_is_held_up_but_not_for_ever() -> None:
    controller = Controller()
    beats = Beats(NODE, SESSION_MS, controller=lambda: controller.address, epoch=lambda: EPOCH)
    beats.start()
    try:
        # These calls block the event loop.
        assert controller.beat() == controller.beat() == beat_frame(NODE, EPOCH)
        controller.silence()
        await asyncio.sleep(0.1)
        assert controller.beat() == beat_frame(NODE, EPOCH)
    finally:
        beats.close()
        controller.close()


@on_a_loop
async def test_beats_follow_the_controller() -> None:
    first, second = Controller(), Controller()
    addresses = [first.address]
    beats = Beats(NODE, SESSION_MS, controller=lambda: addresses[-1], epoch=lambda: EPOCH)
    beats.start()
    try:
        await asyncio.to_thread(first.beat)
        addresses.append(second.address)
        await asyncio.to_thread(second.beat)
        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(first.read_to_the_end)
        # A connection that breaks is made again.
        assert second.connection is not None
        second.connection.close()
        second.connection = None
        await asyncio.to_thread(second.beat)
    finally:
        beats.close()
        first.close()
        second.close()


@pytest.mark.parametrize("unknown", ["controller", "epoch"])
@on_a_loop
async def test_nothing_is_sent_to_nobody(unknown: str) -> None:
    controller = Controller()
    known = {"controller": controller.address, "epoch": EPOCH}
    missing = {**known, unknown: None if unknown == "controller" else BrokerEpoch(-1)}
    now = missing
    beats = Beats(
        NODE,
        SESSION_MS,
        controller=lambda: now["controller"],  # type: ignore[arg-type, return-value]  # of two types
        epoch=lambda: now["epoch"],  # type: ignore[arg-type, return-value]  # of two types
    )
    beats.start()
    try:
        controller.listener.settimeout(0.5)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(controller.beat)
        controller.listener.settimeout(PATIENCE_SECONDS)
        now = known
        assert await asyncio.to_thread(controller.beat) == beat_frame(NODE, EPOCH)
    finally:
        beats.close()
        controller.close()


@on_a_loop
async def test_a_connection_on_which_nothing_is_answered_is_made_anew() -> None:
    """A network that was cut and has healed may leave it half-open for minutes."""
    controller = Controller()
    controller.answers = False
    beats = Beats(NODE, SESSION_MS, controller=lambda: controller.address, epoch=lambda: EPOCH)
    beats.start()
    try:
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(asyncio.to_thread(controller.read_to_the_end), PATIENCE_SECONDS)
        controller.connection = None
        assert await asyncio.to_thread(controller.beat) == beat_frame(NODE, EPOCH)
    finally:
        beats.close()
        controller.close()
