"""Read a partition by one client and say how far that went: a process of its own, for it may abort.

`python -m faults.read_values CLIENT BOOTSTRAP TOPIC FIRST_OFFSET COUNT`
"""

import sys
import time
from collections.abc import Iterator

import kafka
from confluent_kafka import Consumer, TopicPartition

_SILENT_SECONDS = 15


def _confluent(bootstrap: str, topic: str, first: int) -> Iterator[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "r", "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, first)])
    heard = time.monotonic()
    while time.monotonic() - heard < _SILENT_SECONDS:
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error() is not None:
            yield f"error: {message.error().name()}".encode()
            return
        heard = time.monotonic()
        yield message.value() or b""


def _kafka_python(bootstrap: str, topic: str, first: int) -> Iterator[bytes]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, consumer_timeout_ms=_SILENT_SECONDS * 1000, check_crcs=True
    )
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, first)
    try:
        for message in consumer:
            yield message.value or b""
    except kafka.errors.KafkaError as error:
        yield f"error: {type(error).__name__}".encode()


_CLIENTS = {"confluent-kafka": _confluent, "kafka-python": _kafka_python}


def main(client: str, bootstrap: str, topic: str, first: str, count: str) -> None:
    """Print how many values came in order, and what came instead of the next one."""
    number, end = int(first), int(first) + int(count)
    rest = ""
    for value in _CLIENTS[client](bootstrap, topic, number):
        if not value.startswith(b"%06d" % number) or len(value) < 7 or value[6:].strip(b"x"):
            rest = f"; then {value[:40].decode(errors='replace')}"
            break
        number += 1
        if number == end:
            break
    sys.stdout.write(f"{number - int(first)} values, in order from {first}{rest}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
