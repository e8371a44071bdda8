"""The readers of these tests go on where a client has locked itself out (librdkafka issue 5476).

No broker can cause that, and none can end it. Here only the client's close is made to say so.
"""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support import kube_cluster, streams
from support.processes import wait_until

PARTITIONS = 2


@pytest.fixture
def locked(monkeypatch):
    """Let the first client that is closed be one that does not close."""
    closed = []

    def is_closed(consumer):
        consumer.close()
        closed.append(consumer)
        return len(closed) > 1

    monkeypatch.setattr(streams, "is_closed", is_closed)


@pytest.fixture
def topic(broker):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("locked", PARTITIONS, 1)])["locked"].result(30)
    return "locked"


def produce(broker, topic, values):
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        for partition in range(PARTITIONS):
            producer.produce(topic, str(value), partition=partition)
    assert producer.flush(30) == 0


def wait_read(reader, count):
    wait_until(lambda: all(len(reader.reads[each]) >= count for each in range(PARTITIONS)), 30)


@pytest.mark.parametrize(
    "make",
    [
        lambda broker, topic: streams.ConsumerStream(broker.bootstrap, topic, range(PARTITIONS)),
        lambda broker, topic: kube_cluster.GroupReader(broker.bootstrap, topic, "readers"),
    ],
    ids=["assigned", "group"],
)
@pytest.mark.usefixtures("locked")
def test_another_client_reads_on_from_where_it_was(broker, topic, make):
    produce(broker, topic, range(50))
    with make(broker, topic) as reader:
        wait_read(reader, 50)
        assert reader.replace_if_locked()
        produce(broker, topic, range(50, 90))
        wait_read(reader, 90)
        assert not reader.replace_if_locked()
    assert reader.locked_out == 1
    expected = [(number, number) for number in range(90)]
    for partition in range(PARTITIONS):
        assert list(dict.fromkeys(reader.reads[partition])) == expected
