"""What a broker process that has just started tells its first clients."""

import time
from contextlib import suppress

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.headrace_broker import HeadraceBroker
from support.wire import RawConnection, request_class

_METADATA = request_class(3, 4)
_PARTITIONS = 20


def _first_answer(address, seconds=30):
    """Return the first answer to Metadata; the port is asked from when nobody listens there."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(OSError), RawConnection(address) as connection:
            return connection.call(_METADATA(topics=None, allow_auto_topic_creation=False))
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody answers at {address}")
        time.sleep(0.001)


@pytest.fixture
def broker(tmp_path):
    with HeadraceBroker(tmp_path) as broker:
        yield broker


@pytest.mark.slow
def test_the_first_metadata_of_a_process_names_its_leaders(broker):
    """Leader -1 in the answer of the only broker: librdkafka may ask nobody any more (its 5301)."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("numbers", _PARTITIONS, 1)])["numbers"].result(10)
    for _ in range(3):
        broker.kill()
        broker.begin()
        answer = _first_answer(broker.bootstrap)
        (topic,) = [each for each in answer.topics if each.name == "numbers"]
        assert [each.leader_id for each in topic.partitions] == [1] * _PARTITIONS
        assert [each.node_id for each in answer.brokers] == [1]
