"""Share groups (KIP-932) with other people's clients: librdkafka's and Kafka's own tools."""

import json
import time
import urllib.request
import uuid

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kio.schema.alter_share_group_offsets.v0.request import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest

from support.command_line import run_headrace
from support.kafka_peer import run_tool, start_tool
from support.processes import wait_until
from support.wire import RawConnection

SECONDS = 30


@pytest.fixture
def group(new_group, bootstrap):
    """A share group that begins at the earliest record."""
    name = new_group()
    begin_at(bootstrap, name, "earliest")
    return name


def begin_at(bootstrap, group, policy, **more):
    settings = {"share.auto.offset.reset": policy} | {
        key.replace("_", "."): value for key, value in more.items()
    }
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, group, settings)])
    finally:
        admin.close()


def send(bootstrap, topic, values, partition=0):
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, str(value).encode(), partition=partition)
    assert producer.flush(SECONDS) == 0


def share_consumer(bootstrap, group, topic, *, explicit=True):
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit" if explicit else "implicit",
        }
    )
    consumer.subscribe([topic])
    return consumer


def poll_until(consumer, count, acknowledge=AcknowledgeType.ACCEPT, seconds=SECONDS):
    """Return so many messages, acknowledged (None: not)."""
    found = []
    end = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < end:
        for message in consumer.poll(1.0):
            assert message.error() is None, message.error()
            found.append(message)
            if acknowledge is not None:
                consumer.acknowledge(message, acknowledge)
    return found


def numbers(messages):
    return sorted(int(message.value()) for message in messages)


def commit(consumer):
    outcomes = consumer.commit_sync(SECONDS)
    assert all(error is None for error in outcomes.values()), outcomes


def test_a_member_reads_what_comes_and_acknowledges_it(bootstrap, new_topic, group):
    topic = new_topic(2)
    with share_consumer(bootstrap, group, topic) as consumer:
        send(bootstrap, topic, range(50), 0)
        send(bootstrap, topic, range(50, 100), 1)
        assert numbers(poll_until(consumer, 100)) == list(range(100))
        commit(consumer)
        assert poll_until(consumer, 1, seconds=2) == []


def test_two_members_share_a_partition_and_no_record_goes_to_both(bootstrap, new_topic, group):
    topic = new_topic(1)
    with (
        share_consumer(bootstrap, group, topic) as first,
        share_consumer(bootstrap, group, topic) as second,
    ):
        found = []
        end = time.monotonic() + SECONDS
        sent = 0
        while len(found) < 300 and time.monotonic() < end:
            if sent < 300:
                send(bootstrap, topic, range(sent, sent + 10))
                sent += 10
            for consumer in (first, second):
                for message in consumer.poll(0.2):
                    found.append((consumer, message))
                    consumer.acknowledge(message)
        commit(first)
        commit(second)
    assert numbers(message for _, message in found) == list(range(300))
    assert {id(consumer) for consumer, _ in found} == {id(first), id(second)}


def test_what_is_released_comes_again_and_what_is_rejected_does_not(bootstrap, new_topic, group):
    topic = new_topic(1)
    with share_consumer(bootstrap, group, topic) as consumer:
        send(bootstrap, topic, range(10))
        found = poll_until(consumer, 10, None)
        for message in found:
            kind = AcknowledgeType.RELEASE if message.offset() < 5 else AcknowledgeType.REJECT
            consumer.acknowledge(message, kind)
        commit(consumer)
        again = poll_until(consumer, 5)
        assert numbers(again) == [0, 1, 2, 3, 4]
        commit(consumer)
        assert poll_until(consumer, 1, seconds=2) == []


def test_a_record_is_delivered_five_times_at_most(bootstrap, new_topic, group):
    topic = new_topic(1)
    with share_consumer(bootstrap, group, topic) as consumer:
        send(bootstrap, topic, [7])
        deliveries = 0
        while poll_until(consumer, 1, AcknowledgeType.RELEASE, seconds=5):
            deliveries += 1
            commit(consumer)
        assert deliveries == 5


def test_a_member_that_goes_without_a_word_leaves_its_records_to_the_others(
    bootstrap, new_topic, group
):
    topic = new_topic(1)
    first = share_consumer(bootstrap, group, topic)
    send(bootstrap, topic, range(20))
    assert numbers(poll_until(first, 20, None)) == list(range(20))
    first.close()
    with share_consumer(bootstrap, group, topic) as second:
        assert numbers(poll_until(second, 20)) == list(range(20))
        commit(second)


def test_our_own_command_and_metrics_tell_of_share_groups(bootstrap, new_topic, group, peer):
    topic = new_topic(1)
    send(bootstrap, topic, range(10))
    with share_consumer(bootstrap, group, topic) as consumer:
        for message in poll_until(consumer, 10, None):
            kind = AcknowledgeType.ACCEPT if message.offset() < 4 else AcknowledgeType.RELEASE
            consumer.acknowledge(message, kind)
        commit(consumer)
        listed = headrace("get", "groups", "--bootstrap-server", bootstrap)
        row = next(line.split() for line in listed.splitlines() if line.startswith(group))
        assert row[1:5] == ["share", "Stable", "1", "6"], "type, state, members, lag"
        described = headrace("describe", "group", group, "--bootstrap-server", bootstrap)
        assert topic in described
        where = f"{peer.http_address}/metrics"
        with urllib.request.urlopen(where, timeout=30) as response:  # noqa: S310 (our own)
            metrics = response.read().decode()
        where = f'{{sharegroup="{group}",topic="{topic}"}}'
        assert f"headrace_sharegroup_lag{where} 6.0" in metrics
        assert f"headrace_sharegroup_records_in_flight{where}" in metrics
        of = f'{{reason="rejected",sharegroup="{group}"}}'
        assert f"headrace_sharegroup_archived_records_total{of} 0.0" in metrics


def headrace(*arguments):
    done = run_headrace(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.java
def test_the_console_consumer_reads_and_the_groups_tool_tells_of_it(bootstrap, new_topic, group):
    topic = new_topic(2)
    send(bootstrap, topic, range(50), 0)
    send(bootstrap, topic, range(50, 100), 1)
    where = ["--bootstrap-server", bootstrap]
    read = ["--topic", topic, "--group", group, "--max-messages", "100", "--timeout-ms", "30000"]
    printed = run_tool("console-share-consumer", *where, *read)
    assert sorted(map(int, printed.split())) == list(range(100))

    def tool(*arguments):
        return run_tool("share-groups", *where, *arguments)

    assert group in tool("--list").split()
    state = tool("--describe", "--group", group, "--state")
    assert "Empty" in state
    rows = _offsets(tool("--describe", "--group", group))
    assert {(row["PARTITION"], row["START-OFFSET"], row["LAG"]) for row in rows} == {
        ("0", "50", "0"),
        ("1", "50", "0"),
    }
    dry = ["--reset-offsets", "--group", group, "--topic", topic, "--to-earliest"]
    tool(*dry, "--execute")
    rows = _offsets(tool("--describe", "--group", group))
    assert {row["START-OFFSET"] for row in rows} == {"0"}
    printed = run_tool("console-share-consumer", *where, *read)
    assert sorted(map(int, printed.split())) == list(range(100))
    tool("--delete-offsets", "--group", group, "--topic", topic)
    tool("--delete", "--group", group)
    assert group not in tool("--list").split()


def _offsets(printed):
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    return [dict(zip(lines[0], line, strict=False)) for line in lines[1:]]


@pytest.mark.java
def test_kafkas_verifiable_share_consumers_lose_nothing(bootstrap, new_topic, group, tmp_path):
    topic = new_topic(3)
    for partition in range(3):
        send(bootstrap, topic, range(partition * 100, partition * 100 + 100), partition)
    logs = [tmp_path / f"consumer-{number}.log" for number in range(2)]
    options = ["--bootstrap-server", bootstrap, "--topic", topic, "--group-id", group]
    tools = [
        start_tool("verifiable-share-consumer", log, *options, "--acknowledgement-mode", mode)
        for log, mode in zip(logs, ("sync", "async"), strict=True)
    ]
    try:
        wait_until(lambda: _acknowledged(logs) >= 300, 90, "300 records acknowledged")
    finally:
        for tool in tools:
            tool.stop()
    assert _acknowledged(logs) == 300


def _acknowledged(logs):
    total = 0
    for log in logs:
        for line in log.read_text().splitlines() if log.exists() else ():
            if line.startswith("{"):
                event = json.loads(line)
                if event.get("name") == "offsets_acknowledged":
                    total += event["count"]
    return total


def test_a_group_that_reads_committed_never_sees_what_was_aborted(bootstrap, new_topic, new_group):
    topic, group = new_topic(1), new_group()
    begin_at(bootstrap, group, "earliest", share_isolation_level="read_committed")
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(SECONDS)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, str(number).encode(), partition=0)
        producer.flush(SECONDS)
        if number % 2:
            producer.abort_transaction(SECONDS)
        else:
            producer.commit_transaction(SECONDS)
    with share_consumer(bootstrap, group, topic) as consumer:
        assert numbers(poll_until(consumer, 3)) == [0, 2, 4]
        commit(consumer)
        assert poll_until(consumer, 1, seconds=2) == []


@pytest.mark.java
def test_kafkas_dump_tool_reads_the_state_topic(bootstrap, new_topic, group, peer):
    topic = new_topic(1)
    send(bootstrap, topic, range(10))
    with share_consumer(bootstrap, group, topic) as consumer:
        assert len(poll_until(consumer, 10, AcknowledgeType.RELEASE)) == 10
        commit(consumer)
    written = [
        str(path)
        for path in sorted(peer.log_directory.glob("__share_group_state-*/*.log"))
        if path.stat().st_size
    ]
    dumped = run_tool(
        "dump-log",
        "--share-group-state-decoder",
        "--print-data-log",
        "--files",
        ",".join(written),
    )
    mine = [line for line in dumped.splitlines() if f'"groupId":"{group}"' in line]
    assert any('"snapshotEpoch":0' in line for line in mine), dumped
    assert any('"deliveryCount":1' in line for line in mine), "released, after one delivery"


def alter(bootstrap, group, topic, offset):
    """Have a group begin partition 0 at an offset; return what is said of both."""
    partition = AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=offset)
    request = AlterShareGroupOffsetsRequest(
        group_id=group,
        topics=(AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=(partition,)),),
    )
    with RawConnection(bootstrap, SECONDS) as connection:
        # The first one to ask has __consumer_offsets made.
        connection.call(FindCoordinatorRequest(key_type=0, coordinator_keys=(group,)))
        answer = connection.call(request)
    each = {item.error_code.name for found in answer.responses for item in found.partitions}
    return answer.error_code.name, each


def test_an_administrator_makes_a_group_that_begins_where_he_says(bootstrap, new_topic, new_group):
    topic, group = new_topic(), new_group()
    send(bootstrap, topic, range(20))
    wait_until(lambda: alter(bootstrap, group, topic, 8) == ("none", {"none"}), SECONDS)
    consumer = share_consumer(bootstrap, group, topic)
    try:
        assert numbers(poll_until(consumer, 12)) == list(range(8, 20))
        said, _ = alter(bootstrap, group, topic, 0)
        assert said == "non_empty_group"
    finally:
        consumer.close()


def test_no_share_group_is_made_for_a_group_of_another_kind(join, bootstrap, new_topic):
    topic = new_topic()
    member = join(topic)
    wait_until(lambda: member.owned, SECONDS, "an assignment")
    said, _ = alter(bootstrap, join.group, topic, 0)
    assert said == "group_id_not_found"
    assert alter(bootstrap, "", topic, 0)[0] == "invalid_group_id"
