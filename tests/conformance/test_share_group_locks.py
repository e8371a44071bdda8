"""Acquisition locks of a share group: they time out, and are renewed by whoever still works."""

import subprocess
import time
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from support.headrace_broker import HeadraceBroker
from support.kafka_peer import jar_directory

SECONDS = 60
LOCK_MS = 2_000
RENEW_LOCKS = Path(__file__).parent / "engines" / "RenewLocks.java"


@pytest.fixture(scope="module")
def quick_broker(tmp_path_factory):
    """A broker whose locks time out soon."""
    properties = {
        "group.share.min.record.lock.duration.ms": "1000",
        "group.share.record.lock.duration.ms": str(LOCK_MS),
    }
    with HeadraceBroker(tmp_path_factory.mktemp("locks"), properties) as broker:
        yield broker


@pytest.fixture
def topic(quick_broker):
    name = f"locks-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": quick_broker.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    producer = Producer({"bootstrap.servers": quick_broker.bootstrap})
    producer.produce(name, b"work")
    assert producer.flush(30) == 0
    return name


@pytest.fixture
def group(quick_broker):
    name = f"group-{uuid.uuid4().hex[:8]}"
    admin = KafkaAdminClient(bootstrap_servers=quick_broker.bootstrap)
    settings = {"share.auto.offset.reset": "earliest"}
    admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, name, settings)])
    admin.close()
    return name


def share_consumer(broker, group, topic):
    consumer = ShareConsumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
        }
    )
    consumer.subscribe([topic])
    return consumer


def poll_one(consumer):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for message in consumer.poll(1.0):
            assert message.error() is None, message.error()
            return message
    raise AssertionError("nothing came")


def finish(consumer, message):
    """Accept a record; on a busy machine its lock may time out before, and it comes again."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        consumer.acknowledge(message)
        if all(error is None for error in consumer.commit_sync(SECONDS).values()):
            return
        message = poll_one(consumer)
    raise AssertionError("never accepted")


def test_what_one_member_holds_for_too_long_goes_to_another(quick_broker, topic, group):
    with (
        share_consumer(quick_broker, group, topic) as slow,
        share_consumer(quick_broker, group, topic) as other,
    ):
        held = poll_one(slow)
        again = poll_one(other)
        assert (again.offset(), again.value()) == (held.offset(), b"work")
        slow.acknowledge(held)
        assert all(error is not None for error in slow.commit_sync(SECONDS).values()), (
            "the lock is another's"
        )
        finish(other, again)


@pytest.mark.java
def test_a_java_consumer_renews_a_lock_and_nobody_else_gets_the_record(quick_broker, topic, group):
    worked = ["java", "-cp", f"{jar_directory()}/*", str(RENEW_LOCKS)]
    arguments = [quick_broker.bootstrap, topic, group, str(4 * LOCK_MS)]
    done = subprocess.run(
        [*worked, *arguments], check=False, capture_output=True, text=True, timeout=120
    )
    assert "accepted work" in done.stdout, done.stderr
    assert int(done.stdout.split("renewed ")[1].split()[0]) >= 2
    with share_consumer(quick_broker, group, topic) as other:
        found = [message for _ in range(3) for message in other.poll(1.0)]
        assert found == []
