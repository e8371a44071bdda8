"""The three kinds of groups as our own commands tell of them and move them."""

import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from support.processes import wait_until

SECONDS = 60
KINDS = ["classic", "consumer", "share"]


def run(bootstrap, *arguments, status=0):
    command = str(Path(sys.executable).with_name("headrace"))
    done = subprocess.run(
        [command, *arguments, "--bootstrap-server", bootstrap],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def send(bootstrap, topic, count, partition=0):
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=partition)
    assert producer.flush(SECONDS) == 0


def begin_at_earliest(bootstrap, group):
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        settings = {"share.auto.offset.reset": "earliest"}
        admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, group, settings)])
    finally:
        admin.close()


@contextmanager
def reader(bootstrap, kind, group, topic):
    """A member of a group of this kind, whose `client.id` is the kind's name."""
    common = {"bootstrap.servers": bootstrap, "group.id": group, "client.id": kind}
    if kind == "share":
        begin_at_earliest(bootstrap, group)
        consumer = ShareConsumer(common | {"share.acknowledgement.mode": "explicit"})
    else:
        more = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer(common | more | {"group.protocol": kind})
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def read(consumer, count):
    """Take so many records and no more, and have the group be done with them."""
    done, end = 0, time.monotonic() + SECONDS
    if isinstance(consumer, ShareConsumer):
        while done < count and time.monotonic() < end:
            for message in consumer.poll(1.0):
                done += done < count
                kind = AcknowledgeType.ACCEPT if message.offset() < count else None
                consumer.acknowledge(message, kind or AcknowledgeType.RELEASE)
        assert all(error is None for error in consumer.commit_sync(SECONDS).values())
        return
    message = None
    while done < count and time.monotonic() < end:
        message = consumer.poll(1.0) or message
        done += message is not None
    assert done == count
    consumer.commit(message=message, asynchronous=False)


def row(bootstrap, group):
    listed = run(bootstrap, "get", "groups")
    return next((line.split() for line in listed.splitlines() if line.startswith(f"{group} ")), [])


@pytest.mark.parametrize("kind", KINDS)
def test_get_and_describe_tell_kind_state_members_and_lag(bootstrap, new_topic, new_group, kind):
    topic, group = new_topic(1), new_group()
    send(bootstrap, topic, 10)
    with reader(bootstrap, kind, group, topic) as consumer:
        read(consumer, 4)
        assert row(bootstrap, group)[1:5] == [kind, "Stable", "1", "6"], "type, state, members, lag"
        described = run(bootstrap, "describe", "group", group)
    fields = dict(line.split(":", 1) for line in described.splitlines() if ":" in line)
    assert fields["Type"].strip() == kind
    assert fields["Lag"].strip().startswith("6 records")
    position = next(
        line.split() for line in described.splitlines() if line.strip().startswith(topic)
    )
    assert position[1:5] == ["0", "4", "10", "6"], "partition, position, end, lag"
    member = next(line.split() for line in described.splitlines() if f" {kind} " in line)
    assert member[-1] == f"{topic}-0", "client, host, assignment"
    wait_until(
        lambda: row(bootstrap, group)[1:4] == [kind, "Empty", "0"], SECONDS, "an empty group"
    )


def test_what_a_share_group_has_acknowledged_out_of_order_is_no_lag(
    bootstrap, new_topic, new_group
):
    topic, group = new_topic(1), new_group()
    send(bootstrap, topic, 10)
    with reader(bootstrap, "share", group, topic) as consumer:
        taken, end = 0, time.monotonic() + SECONDS
        while taken < 10 and time.monotonic() < end:
            for message in consumer.poll(1.0):
                is_late = message.offset() >= 4
                taken += 1
                consumer.acknowledge(
                    message, AcknowledgeType.ACCEPT if is_late else AcknowledgeType.RELEASE
                )
        assert all(error is None for error in consumer.commit_sync(SECONDS).values())
    assert row(bootstrap, group)[4] == "4"
    described = run(bootstrap, "describe", "group", group)
    position = next(
        line.split() for line in described.splitlines() if line.strip().startswith(topic)
    )
    assert position[1:5] == ["0", "0", "10", "4"], "partition, start, end, lag"


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_moves_a_group_that_is_empty(bootstrap, new_topic, new_group, kind):
    topic, group = new_topic(1), new_group()
    send(bootstrap, topic, 10)
    reset = ["groups", "reset", group, "--topic", topic, "--execute", "--to"]
    with reader(bootstrap, kind, group, topic) as consumer:
        read(consumer, 10)
        assert row(bootstrap, group)[4] == "0"
        assert "stop them first" in run(bootstrap, *reset, "earliest", status=1)
    wait_until(lambda: row(bootstrap, group)[2] == "Empty", SECONDS, "an empty group")
    run(bootstrap, *reset, "earliest")
    assert row(bootstrap, group)[1:5] == [kind, "Empty", "0", "10"]
    with reader(bootstrap, kind, group, topic) as consumer:
        read(consumer, 10)
    wait_until(lambda: row(bootstrap, group)[2] == "Empty", SECONDS, "an empty group")
    run(bootstrap, *reset, "offset:7")
    assert row(bootstrap, group)[4] == "3"
    run(bootstrap, "delete", "group", group, "--yes")
    assert row(bootstrap, group) == []
