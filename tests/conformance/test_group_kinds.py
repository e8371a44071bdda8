"""The three kinds of groups as our own commands tell of them and move them."""

import json
import time
from contextlib import contextmanager

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from headrace_cli.share_records import share_records
from support.command_line import run_headrace
from support.headrace_broker import HeadraceBroker
from support.processes import wait_until

SECONDS = 60
KINDS = ["classic", "consumer", "share"]
ASSIGNORS = {"classic": "range", "consumer": "uniform", "share": "simple"}


def run(bootstrap, *arguments, status=0):
    done = run_headrace(*arguments, "--bootstrap-server", bootstrap)
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


def fields_of(described):
    """Return what `describe` prints above its tables."""
    pairs = (line.split(":", 1) for line in described.splitlines() if ":" in line)
    return {name: text.strip() for name, text in pairs}


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_describe_names_the_instances_of_static_members(bootstrap, new_topic, new_group, kind):
    topic, group = new_topic(2), new_group()
    settings = {"group.instance.id": "worker-7", "group.protocol": kind, "client.id": kind}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group} | settings)
    consumer.subscribe([topic])
    try:
        end = time.monotonic() + SECONDS
        while len(consumer.assignment()) < 2 and time.monotonic() < end:
            consumer.poll(0.2)
        described = run(bootstrap, "describe", "group", group, "-o", "json")
    finally:
        consumer.close()
    (member,) = json.loads(described)["members"]
    assert member["instance"] == "worker-7"
    assert member["assignment"] == f"{topic}-0,{topic}-1"


def test_describe_tells_what_a_share_group_s_records_went_through(
    peer, bootstrap, new_topic, new_group
):
    if not isinstance(peer, HeadraceBroker):
        pytest.skip("only our brokers count that")
    topic, group = new_topic(1), new_group()
    send(bootstrap, topic, 10)
    with reader(bootstrap, "share", group, topic) as consumer:
        kinds = [AcknowledgeType.ACCEPT] * 3 + [AcknowledgeType.REJECT]
        kinds += [AcknowledgeType.RELEASE] * 6
        for _ in range(2):
            taken, end = 0, time.monotonic() + SECONDS
            while taken < len(kinds) and time.monotonic() < end:
                messages = consumer.poll(1.0)
                taken += len(messages)
                for message in messages if len(kinds) == 10 else ():
                    consumer.acknowledge(message, kinds[message.offset()])
            assert taken == len(kinds)
            if len(kinds) == 10:
                assert all(error is None for error in consumer.commit_sync(SECONDS).values())
            kinds = kinds[4:]
        http = ("--http", peer.http_address)
        fields = fields_of(run(bootstrap, "describe", "group", group, *http))
        unknown = run(bootstrap, "describe", "group", group)
    assert fields["In flight"] == fields["Redelivered"] == "6"
    assert fields["Archived"] == "1 rejected, 0 delivered too often"
    assert "Dead letters" not in fields
    assert fields["Lag"].startswith("6 records")
    assert fields_of(unknown)["In flight"] == "-"
    assert "say where it is with --http" in unknown
    silent = run(bootstrap, "describe", "group", group, *http, "--http", "http://127.0.0.1:1")
    assert "led by http://127.0.0.1:1: no answer" in silent


@pytest.mark.parametrize("kind", KINDS)
def test_get_and_describe_tell_kind_state_members_and_lag(bootstrap, new_topic, new_group, kind):
    topic, group = new_topic(1), new_group()
    send(bootstrap, topic, 10)
    with reader(bootstrap, kind, group, topic) as consumer:
        read(consumer, 4)
        assert row(bootstrap, group)[1:5] == [kind, "Stable", "1", "6"], "type, state, members, lag"
        described = run(bootstrap, "describe", "group", group)
    fields = fields_of(described)
    assert fields["Type"] == kind
    assert fields["Assignor"] == ASSIGNORS[kind]
    assert fields["Lag"].startswith("6 records")
    position = next(
        line.split() for line in described.splitlines() if line.strip().startswith(topic)
    )
    assert position[1:5] == ["0", "4", "10", "6"], "partition, position, end, lag"
    member = next(line.split() for line in described.splitlines() if f" {kind} " in line)
    assert member[-1] == f"{topic}-0", "client, host, epoch, assignment"
    if kind == "classic":
        assert "Epoch" not in fields
    else:
        assert int(fields["Epoch"]) > 0
        assert [fields["Assignment epoch"], member[-2]] == [fields["Epoch"]] * 2
    wait_until(
        lambda: row(bootstrap, group)[1:4] == [kind, "Empty", "0"], SECONDS, "an empty group"
    )


def test_what_several_brokers_say_of_a_share_group_is_added_up():
    of = 'sharegroup="g\\"1"'
    first = f"""
# TYPE headrace_sharegroup_records_in_flight gauge
headrace_sharegroup_records_in_flight{{{of},topic="t"}} 2.0
headrace_sharegroup_records_in_flight{{{of},topic="u"}} 3.0
headrace_sharegroup_records_in_flight{{sharegroup="g2",topic="u"}} 70.0
headrace_broker_partitions 7.0
"""
    second = f"""
headrace_sharegroup_records_in_flight{{{of},topic="t"}} 4.0
headrace_sharegroup_archived_records_total{{{of},reason="rejected"}} 5.0
headrace_sharegroup_archived_records_total{{{of},reason="delivery_limit"}} 6.0
headrace_sharegroup_dead_letter_records_total{{{of},outcome="written"}} 8.0
headrace_sharegroup_dead_letter_records_total{{{of},outcome="lost"}} 9.0
"""
    found = share_records([first, second], 'g"1')
    assert (found.in_flight, found.redelivered) == (9, 0)
    assert (found.rejected, found.undeliverable) == (5, 6)
    assert (found.dead_lettered, found.dead_letters_lost) == (8, 9)


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
