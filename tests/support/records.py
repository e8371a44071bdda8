"""A record as every client can say it, and the clients that write and read it.

Each `produce_…` writes records to partition 0 and returns when all are acknowledged; each
`consume_…` reads the first `count` records of partition 0.
"""

import asyncio
import base64
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

_SECONDS = 30


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A record's content."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class Read(Sent):
    """A record as it was read."""

    offset: int
    timestamp_ms: int


Produce = Callable[[str, str, list[Sent], str], None]
Consume = Callable[[str, str, int], list[Read]]


def produce_confluent(bootstrap: str, topic: str, records: list[Sent], compression: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": compression,
            "linger.ms": 50,
            "enable.idempotence": True,
        }
    )
    failures: list[object] = []
    for record in records:
        producer.produce(
            topic,
            partition=0,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
            timestamp=record.timestamp_ms or 0,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    if producer.flush(_SECONDS) or failures:
        raise AssertionError(f"not delivered: {failures}")


def consume_confluent(bootstrap: str, topic: str, count: int) -> list[Read]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Read] = []
    try:
        while len(found) < count:
            messages = consumer.consume(count - len(found), timeout=_SECONDS)
            if not messages:
                raise AssertionError(f"{len(found)} of {count} records came")
            for message in messages:
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                found.append(
                    Read(
                        key=message.key(),
                        value=message.value(),
                        headers=tuple(message.headers() or ()),
                        timestamp_ms=message.timestamp()[1],
                        offset=message.offset(),
                    )
                )
    finally:
        consumer.close()
    return found


def produce_aiokafka(bootstrap: str, topic: str, records: list[Sent], compression: str) -> None:
    async def produce() -> None:
        codec = None if compression == "none" else compression
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type=codec, linger_ms=50, acks="all"
        ) as producer:
            futures = [
                await producer.send(
                    topic,
                    partition=0,
                    key=record.key,
                    value=record.value,
                    headers=list(record.headers),
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            await asyncio.gather(*futures)

    asyncio.run(asyncio.wait_for(produce(), _SECONDS))


def consume_aiokafka(bootstrap: str, topic: str, count: int) -> list[Read]:
    async def consume() -> list[Read]:
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            found = [await consumer.getone() for _ in range(count)]
        return [
            Read(
                key=message.key,
                value=message.value,
                headers=tuple(message.headers),
                timestamp_ms=message.timestamp,
                offset=message.offset,
            )
            for message in found
        ]

    return asyncio.run(asyncio.wait_for(consume(), _SECONDS))


def produce_kafka_python(bootstrap: str, topic: str, records: list[Sent], compression: str) -> None:
    codec = None if compression == "none" else compression
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap, compression_type=codec, linger_ms=50, acks="all"
    )
    try:
        futures = [
            producer.send(
                topic,
                partition=0,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                timestamp_ms=record.timestamp_ms,
            )
            for record in records
        ]
        for future in futures:
            future.get(_SECONDS)
    finally:
        producer.close()


def consume_kafka_python(bootstrap: str, topic: str, count: int) -> list[Read]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, consumer_timeout_ms=_SECONDS * 1000, enable_auto_commit=False
    )
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    found: list[Read] = []
    try:
        for message in consumer:
            found.append(
                Read(
                    key=message.key,
                    value=message.value,
                    headers=tuple(message.headers),
                    timestamp_ms=message.timestamp,
                    offset=message.offset,
                )
            )
            if len(found) == count:
                return found
    finally:
        consumer.close()
    raise AssertionError(f"{len(found)} of {count} records came")


def run_kcat(*arguments: str, standard_input: bytes = b"") -> str:
    """Run kcat to its end; the test is skipped, with the reason, where kcat is not installed."""
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed (Debian: apt-get install kcat)")
    done = subprocess.run(
        ["kcat", *arguments], check=False, capture_output=True, input=standard_input, timeout=60
    )
    if done.returncode != 0:
        raise AssertionError(f"kcat {arguments}: {done.stderr.decode()}")
    return done.stdout.decode()


def produce_kcat(bootstrap: str, topic: str, records: list[Sent], compression: str) -> None:
    """Write records whose headers are those of the first and whose key is never null."""
    headers = [
        part for name, value in records[0].headers for part in ("-H", f"{name}={value.decode()}")
    ]
    lines = b"".join(b"%b:%b\n" % (record.key or b"", record.value or b"") for record in records)
    codec = ["-X", f"compression.codec={compression}"]
    where = ["-P", "-b", bootstrap, "-t", topic, "-p", "0", "-K", ":"]
    run_kcat(*where, *codec, *headers, standard_input=lines)


def consume_kcat(bootstrap: str, topic: str, count: int) -> list[Read]:
    where = ["-C", "-b", bootstrap, "-t", topic, "-p", "0", "-o", "beginning", "-c", str(count)]
    found = [json.loads(line) for line in run_kcat(*where, "-q", "-J").splitlines()]
    return [
        Read(
            key=_bytes(message["key"]),
            value=_bytes(message["payload"]),
            headers=tuple(_pairs(message.get("headers", []))),
            timestamp_ms=message["ts"],
            offset=message["offset"],
        )
        for message in found
    ]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _pairs(flat: list[str]) -> list[tuple[str, bytes]]:
    return [(name, value.encode()) for name, value in zip(flat[::2], flat[1::2], strict=True)]


PRODUCERS: dict[str, Produce] = {
    "confluent-kafka": produce_confluent,
    "aiokafka": produce_aiokafka,
    "kafka-python": produce_kafka_python,
    "kcat": produce_kcat,
}
CONSUMERS: dict[str, Consume] = {
    "confluent-kafka": consume_confluent,
    "aiokafka": consume_aiokafka,
    "kafka-python": consume_kafka_python,
    "kcat": consume_kcat,
}
# kafka-python needs further packages for the other codecs.
CODECS = {
    "confluent-kafka": {"none", "gzip", "snappy", "lz4", "zstd"},
    "aiokafka": {"none", "gzip", "snappy", "lz4", "zstd"},
    "kafka-python": {"none", "gzip"},
    "kcat": {"none", "gzip", "snappy", "lz4", "zstd"},
}


def sample_text(size: int) -> bytes:
    """Return compressible text of `size` bytes without a delimiter that a tool could trip over."""
    return base64.b64encode(bytes(i * 7 % 251 for i in range(size)))[:size]
