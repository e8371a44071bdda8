"""What one client writes, every other client reads: keys, values, headers, times, compression."""

import time

import kafka
import pytest
from confluent_kafka import Producer

from support.kafka_peer import run_tool
from support.records import (
    CODECS,
    CONSUMERS,
    PRODUCERS,
    Sent,
    consume_confluent,
    produce_confluent,
    sample_text,
)

_PAIRS = [
    (writer, reader, codec)
    for writer, codecs in CODECS.items()
    for reader, readable in CODECS.items()
    for codec in sorted(codecs & readable)
    if writer != reader
]


@pytest.mark.parametrize(("writer", "reader", "codec"), _PAIRS)
def test_one_client_reads_what_another_wrote(bootstrap, new_topic, writer, reader, codec):
    topic = new_topic()
    headers = (("trace", b"abc"), ("trace", b"again"))
    sent = [
        Sent(key=b"k%d" % i, value=sample_text(40 + i * 30), headers=headers) for i in range(50)
    ]

    PRODUCERS[writer](bootstrap, topic, sent, codec)
    read = CONSUMERS[reader](bootstrap, topic, len(sent))

    assert [record.offset for record in read] == list(range(len(sent)))
    assert [(record.key, record.value, record.headers) for record in read] == [
        (record.key, record.value, record.headers) for record in sent
    ]


@pytest.mark.parametrize("writer", ["confluent-kafka", "aiokafka", "kafka-python"])
def test_null_keys_null_values_and_empty_ones_stay_apart(bootstrap, new_topic, writer):
    topic = new_topic()
    sent = [
        Sent(key=None, value=b"v"),
        Sent(key=b"", value=b"v"),
        Sent(key=b"k", value=None),
        Sent(key=b"k", value=b""),
    ]
    PRODUCERS[writer](bootstrap, topic, sent, "none")
    for reader in ("confluent-kafka", "aiokafka", "kafka-python"):
        read = CONSUMERS[reader](bootstrap, topic, len(sent))
        assert [(r.key, r.value) for r in read] == [(s.key, s.value) for s in sent], reader


@pytest.mark.parametrize("writer", ["confluent-kafka", "aiokafka", "kafka-python"])
def test_create_time_is_the_producers(bootstrap, new_topic, writer):
    topic = new_topic(retention_ms="-1")
    sent = [Sent(value=b"v", timestamp_ms=1_700_000_000_000 + i * 1000) for i in range(10)]
    PRODUCERS[writer](bootstrap, topic, sent, "none")
    read = consume_confluent(bootstrap, topic, len(sent))
    assert [record.timestamp_ms for record in read] == [record.timestamp_ms for record in sent]


def test_log_append_time_is_the_brokers(bootstrap, new_topic):
    topic = new_topic(message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    produce_confluent(bootstrap, topic, [Sent(value=b"v", timestamp_ms=1000)] * 5, "gzip")
    after = int(time.time() * 1000)
    for reader, consume in CONSUMERS.items():
        for record in consume(bootstrap, topic, 5):
            assert before <= record.timestamp_ms <= after, reader


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_level_of_acknowledgement_is_answered(bootstrap, new_topic, acks):
    topic = new_topic()
    offsets: list[int] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": acks, "linger.ms": 5})
    for i in range(500):
        producer.produce(
            topic, b"%d" % i, on_delivery=lambda _, message: offsets.append(message.offset())
        )
    assert producer.flush(30) == 0
    read = consume_confluent(bootstrap, topic, 500)
    assert [record.value for record in read] == [b"%d" % i for i in range(500)]
    if acks != "0":
        assert offsets == list(range(500))


def test_a_record_above_the_topics_maximum_is_refused_and_the_next_is_taken(bootstrap, new_topic):
    topic = new_topic(max_message_bytes="2000")
    errors: list[str | None] = []

    def delivered(error, _):
        errors.append(None if error is None else error.name())

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for size in (100, 5000, 100):
        producer.produce(topic, bytes(size), on_delivery=delivered)
        producer.flush(30)
    assert errors == [None, "MSG_SIZE_TOO_LARGE", None]


@pytest.mark.java
def test_java_and_librdkafka_put_a_key_into_the_same_partition(bootstrap, new_topic):
    """The partition of a key is the client's choice (murmur2): the broker must keep it."""
    keys = [f"key-{i}" for i in range(40)]
    by_java, by_librdkafka = new_topic(partitions=7), new_topic(partitions=7)
    lines = "".join(f"{key}\tv\n" for key in keys)
    options = ["--reader-property", "parse.key=true"]
    where = ["--bootstrap-server", bootstrap, "--topic", by_java]
    run_tool("console-producer", *where, *options, standard_input=lines)
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(by_librdkafka, b"v", key=key.encode())
    assert producer.flush(30) == 0

    assert _partition_of_keys(bootstrap, by_java) == _partition_of_keys(bootstrap, by_librdkafka)
    assert len(_partition_of_keys(bootstrap, by_java)) == len(keys)


def _partition_of_keys(bootstrap, topic):
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=1500)
    partitions = [kafka.TopicPartition(topic, i) for i in range(7)]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    found = {message.key: message.partition for message in consumer}
    consumer.close()
    return found
