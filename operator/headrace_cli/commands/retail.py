"""`headrace produce-retail`: a shop's sales, shipments and products as records, by a seed.

Records are sent at the moments of the shop's day: late, out of order and twice as `retail_events`
has it. Each partition of sales and shipments gets a heartbeat every second, `{"heartbeat": true,
"occurred_at": …}`, so that a reader knows how far it has come when nothing is sold.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated

import typer

from headrace_cli.clients import Target, explain_kafka_errors, quiet_kafka_logs
from headrace_cli.errors import CommandError
from headrace_cli.retail_events import Shop, shop_day

if TYPE_CHECKING:
    from kafka import KafkaProducer

__all__ = ["produce_retail"]

DELIVERY_TIMEOUT_MS = 10 * 60 * 1000
HEARTBEAT_SECONDS = 1.0
# Longer than the delay of any record.
_GRACE_MS = 1000
_TOPICS = {"product": "products", "shipment": "shipments", "sale": "sales"}


def produce_retail(
    bootstrap_servers: Annotated[
        str, typer.Option("--bootstrap-servers", help="Brokers (host:port,…).")
    ],
    prefix: Annotated[
        str, typer.Option("--prefix", help="Topics are PREFIX-sales, -shipments, -products.")
    ] = "retail",
    rate: Annotated[float, typer.Option("--rate", help="Sales a second.", min=0.1)] = 10.0,
    sales: Annotated[int, typer.Option("--sales", help="Then only heartbeats.", min=1)] = 100_000,
    seed: Annotated[int, typer.Option("--seed", help="The same seed is the same day.")] = 1,
) -> None:
    """Write a shop's sales, shipments and products to topics until stopped."""
    quiet_kafka_logs()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    shop = Shop(seed=seed, sales=sales, sales_per_second=rate)
    with explain_kafka_errors(Target(bootstrap_servers=bootstrap_servers)):
        count = _produce(bootstrap_servers, prefix, shop, stopped)
    typer.echo(f"stopped after {count} records")


def _produce(bootstrap_servers: str, prefix: str, shop: Shop, stopped: threading.Event) -> int:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap_servers.split(","),
        client_id="headrace-retail",
        acks="all",
        enable_idempotence=True,
        linger_ms=20,
        delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
    )
    writer = _Writer(producer, prefix)
    begin = time.time()
    typer.echo(f"writing to {prefix}-sales: about {shop.sales_per_second:g} records/s")
    sys.stdout.flush()
    for record in shop_day(shop, begin_ms=int(begin * 1000)):
        while not stopped.is_set() and (wait := begin + record.at_seconds - time.time()) > 0:
            stopped.wait(min(wait, HEARTBEAT_SECONDS))
            writer.heartbeat()
        if stopped.is_set():
            break
        writer.send(record.kind, record.key, record.value)
    if not stopped.is_set():
        typer.echo(f"the day is over after {writer.count} records: heartbeats until stopped")
        sys.stdout.flush()
    while not stopped.wait(HEARTBEAT_SECONDS):
        writer.heartbeat()
    producer.flush(timeout=5)
    producer.close(timeout=5)
    writer.raise_failure()
    return writer.count


class _Writer:
    """Sends records and heartbeats, and counts those that were not stored."""

    def __init__(self, producer: KafkaProducer, prefix: str) -> None:
        self._producer = producer
        self._prefix = prefix
        self._failures: list[BaseException] = []
        self._beaten_at = 0.0
        self.count = 0

    def send(self, kind: str, key: str, value: str) -> None:
        topic = f"{self._prefix}-{_TOPICS[kind]}"
        sent = self._producer.send(topic, key=key.encode(), value=value.encode())
        sent.add_errback(self._failures.append)
        self.count += 1
        self.raise_failure()

    def heartbeat(self) -> None:
        """Send every partition the time, once a second."""
        if time.time() < self._beaten_at + HEARTBEAT_SECONDS:
            return
        self._beaten_at = time.time()
        record = {"heartbeat": True, "occurred_at": int(self._beaten_at * 1000) - _GRACE_MS}
        for kind in ("shipment", "sale"):
            topic = f"{self._prefix}-{_TOPICS[kind]}"
            for partition in self._producer.partitions_for(topic):
                sent = self._producer.send(
                    topic, value=json.dumps(record).encode(), partition=partition
                )
                sent.add_errback(self._failures.append)
        self.raise_failure()

    def raise_failure(self) -> None:
        if self._failures:
            raise CommandError(f"a record was not stored: {self._failures[0]!r}")
