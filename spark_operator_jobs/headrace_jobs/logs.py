"""Logging of jobs: one line per event, on standard error; standard output is for results."""

from __future__ import annotations

import logging
import sys

import structlog

__all__ = ["configure"]


def configure() -> None:
    """Set up structlog for a job's process."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), sort_keys=False),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    # Its client's warnings (a broker is not up yet) are logged here, once.
    logging.getLogger("kafka").setLevel(logging.ERROR)
    # It logs the stack of every exception, and raises it as well.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
