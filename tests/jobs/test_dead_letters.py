"""Dead letters that are too large for their topic: cut, with their neighbours whole."""

import uuid

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace_jobs.progress.group import GroupClient
from headrace_jobs.sinks.dead_letters import DeadLetters

pytestmark = pytest.mark.spark

SCHEMA = (
    "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY,"
    " headers ARRAY<STRUCT<key: STRING, value: BINARY>>, reason STRING, watermark TIMESTAMP"
)


class Metrics:
    """Counts what is reported."""

    written, failed = 0, 0

    def dead_letters_written(self, count):
        self.written += count

    def dead_letters_failed(self):
        self.failed += 1


def read(bootstrap, topic, count):
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found = consumer.consume(count, 30)
    consumer.close()
    return found


@pytest.mark.parametrize("bytes_max", [None, 20_000, 2_000_000])
def test_a_dead_letter_that_is_too_large_is_cut_and_loses_no_other(spark, broker, bytes_max):
    topic = f"letters-{uuid.uuid4().hex[:8]}"
    config = {} if bytes_max is None else {"max.message.bytes": str(bytes_max)}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(30)
    client = GroupClient(broker.bootstrap, client_id="test")
    limit = client.max_message_bytes(topic)
    client.close()
    assert limit == (bytes_max or 1_048_588)
    own = [("own", b"h" * 100)]
    large = [
        (b"k", b"v" * (limit - 300), own),
        (b"k" * limit, b"v" * limit, own),
        (b"k", b"v" * limit, [("own", b"h" * limit)]),
        (None, b"v" * (3 * limit), None),
    ]
    small = (b"k", b"small", own)
    rows = [
        ("in", 3, offset, *each, "it is no reading", None)
        for offset, each in enumerate([small, *large, small])
    ]
    metrics = Metrics()
    letters = DeadLetters(
        bootstrap_servers=broker.bootstrap, topic=topic, job="j", record_bytes_max=limit
    )
    letters.write(spark.createDataFrame(rows, SCHEMA), 0, metrics)
    assert (metrics.written, metrics.failed) == (6, 0)
    found = read(broker.bootstrap, topic, 6)
    headers = [dict(each.headers()) for each in found]
    assert [each["headrace.offset"] for each in headers] == [str(n).encode() for n in range(6)]
    for letter, given in ((found[0], headers[0]), (found[5], headers[5])):
        assert (letter.key(), letter.value(), given["own"]) == (b"k", b"small", b"h" * 100)
        assert "headrace.original-bytes" not in given
    cut = list(zip(found[1:5], headers[1:5], large, strict=True))
    for letter, given, (_, value, _) in cut:
        assert letter.value() == value[: len(letter.value())]
        assert limit // 4 < len(letter.value()) < len(value)
        assert int(given["headrace.original-bytes"]) >= len(value)
    assert [letter.key() for letter, *_ in cut] == [b"k", None, b"k", None]
    assert ["own" in given for _, given, _ in cut] == [True, True, False, False]
