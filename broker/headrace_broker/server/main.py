"""Runs one broker as this process: settings, logs, signals, exit status.

Exit status: 0 after a clean stop, 1 if the broker failed, 2 if the settings are wrong. Imports are
inside the functions: most of a broker's start is imports, and their order matters.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.config.broker_config import BrokerConfig
    from headrace_broker.server.membership.beats import Beats

EXIT_FAILED = 1
EXIT_BAD_SETTINGS = 2


def run(path: Path) -> int:
    """Run the broker of the settings file at `path` until SIGTERM or SIGINT."""
    with _without_rich():
        import structlog  # noqa: F401 (imported here, before anything else imports it)
    import uvloop

    from headrace_broker.server.config.broker_config import ConfigError, read_config

    _configure_logging()
    _raise_descriptor_limit()
    try:
        config = read_config(path)
    except ConfigError as error:
        for problem in error.problems:
            sys.stderr.write(f"headrace broker: {problem}\n")
        return EXIT_BAD_SETTINGS
    return uvloop.run(_serve(config))


@contextlib.contextmanager
def _without_rich() -> Iterator[None]:
    """Keep structlog from importing rich for coloured tracebacks: 0.2 s and 10 MB for nothing."""
    if "rich" in sys.modules:
        yield
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # the import system's way to say "not there"
    try:
        yield
    finally:
        del sys.modules["rich"]


def _raise_descriptor_limit() -> None:
    """Take as many file descriptors as the process may have, as a JVM does: segments need one each.

    The soft limit is low for the sake of programs that use `select`.
    """
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(config: BrokerConfig) -> int:
    import structlog

    from headrace_broker.server.broker import Broker

    log = structlog.get_logger()
    if config.without_meaning:
        log.warning("settings without meaning here", settings=", ".join(config.without_meaning))
    stopping = asyncio.Event()
    failures: list[BaseException] = []

    def fail(error: BaseException) -> None:
        failures.append(error)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    broker = Broker(config, on_failure=fail)
    # A node that waits for the rest of its cluster must still be stoppable.
    starting = asyncio.ensure_future(broker.start())
    stopped = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done() and (error := starting.exception()) is not None:
        log.critical(
            "broker cannot start", cause=f"{type(error).__name__}: {error}", exc_info=error
        )
        return EXIT_FAILED
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
    # Objects from start-up live as long as the process; collections need not visit them again.
    # Requests leave no cycles, and collecting at Python's default pace (every 700 objects) took a
    # fifth of the time of a small request.
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    beats = _beats(broker)
    await stopping.wait()
    if beats is not None:
        beats.close()
    if failures:
        # Nothing is flushed or marked clean: the next start recovers from what is on disk.
        log.critical("broker fails", cause=str(failures[0]), exc_info=failures[0])
        return EXIT_FAILED
    await broker.stop()
    return 0


def _beats(broker: Broker) -> Beats | None:
    """Start the heartbeat thread if another process may be the controller."""
    config = broker.config
    if not config.is_broker or config.quorum.is_alone:
        return None
    from headrace_broker.server.membership.beats import Beats

    beats = Beats(
        config.node_id,
        config.values["broker.session.timeout.ms"],
        controller=broker.peers.controller_address,
        epoch=lambda: broker.lifecycle.epoch,
    )
    beats.start()
    return beats


def _configure_logging() -> None:
    import structlog

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        ],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
