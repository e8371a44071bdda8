"""`headrace produce-cpu-load`: this machine's real CPU usage as records.

One JSON record for each CPU and reading, keyed by host name:
`{"hostname": "web-1", "cpu": 0, "usage": 12.5, "occurred_at": "2026-01-31T10:00:00.000Z"}`.
`usage` is per cent of the time since the reading before.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.clients import Target, explain_kafka_errors, quiet_kafka_logs
from headrace_cli.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["produce_cpu_load", "readings"]

REPORT_SECONDS = 60.0
LINGER_MS = 20
# Brokers on a laptop may restart: retry for long; idempotence keeps the order.
DELIVERY_TIMEOUT_MS = 10 * 60 * 1000


def produce_cpu_load(
    bootstrap_servers: Annotated[
        str,
        typer.Option("--bootstrap-servers", "--bootstrap-server", help="Brokers (host:port,…)."),
    ],
    topic: Annotated[str, typer.Option("--topic", help="Topic to write to.")] = "cpu-load",
    rate: Annotated[
        float,
        typer.Option("--rate", help="Records a second for each CPU.", min=0.01, max=10_000),
    ] = 1.0,
) -> None:
    """Write this machine's CPU readings to a topic until stopped."""
    quiet_kafka_logs()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with explain_kafka_errors(Target(bootstrap_servers=bootstrap_servers)):
        count = _produce(bootstrap_servers, topic, rate, stopped)
    typer.echo(f"stopped after {count} records")


def readings(usages: Sequence[float], hostname: str, at: datetime) -> Iterator[bytes]:
    """Encode one reading of every CPU."""
    occurred_at = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    for cpu, usage in enumerate(usages):
        yield json.dumps(
            {"hostname": hostname, "cpu": cpu, "usage": usage, "occurred_at": occurred_at}
        ).encode()


def _produce(bootstrap_servers: str, topic: str, rate: float, stopped: threading.Event) -> int:
    import psutil
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap_servers.split(","),
        client_id="headrace-cpu-load",
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
    )
    failures: list[BaseException] = []
    hostname = socket.gethostname()
    key = hostname.encode()
    psutil.cpu_percent(percpu=True)  # the first call has no reading before it to compare with
    count, next_at, report_at = 0, time.monotonic(), time.monotonic() + REPORT_SECONDS
    typer.echo(f"writing to {topic}: {rate:g} records/s for each of {psutil.cpu_count()} CPUs")
    while not _wait_until(next_at := next_at + 1 / rate, stopped):
        usages = psutil.cpu_percent(percpu=True)
        for value in readings(usages, hostname, datetime.now(UTC)):
            producer.send(topic, value=value, key=key).add_errback(failures.append)
            count += 1
        _raise_failure(failures)
        if time.monotonic() > report_at:
            typer.echo(f"{count} records so far")
            report_at += REPORT_SECONDS
        # After a suspended laptop or a long retry: do not make up for missed readings, and never
        # measure twice in one moment.
        next_at = max(next_at, time.monotonic() - 0.5 / rate)
    _close(producer)
    _raise_failure(failures)
    return count


def _wait_until(moment: float, stopped: threading.Event) -> bool:
    sys.stdout.flush()
    return stopped.wait(max(0.0, moment - time.monotonic()))


def _raise_failure(failures: list[BaseException]) -> None:
    if failures:
        raise CommandError(f"a record was not stored: {failures[0]!r}")


def _close(producer: Any) -> None:
    producer.flush(timeout=5)
    producer.close(timeout=5)
