"""Groups of the consumer protocol (KIP-848): librdkafka's and Java's consumers, Kafka's tools."""

import time
from collections import Counter

import kafka
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConsumerGroupListing,
)

from headrace_cli.objects import load_groups
from support.kafka_peer import run_tool, start_tool
from support.members import PARTITIONS, fill, is_shared_out
from support.processes import wait_until

_SECONDS = 60
_NEW = {"group.protocol": "consumer"}
_OLD = {"partition.assignment.strategy": "cooperative-sticky"}


def _read(*members):
    return sum((member.read for member in members), start=Counter())


def _groups(bootstrap, *arguments):
    return run_tool("groups", "--bootstrap-server", bootstrap, *arguments)


# Without one the broker chooses, and that is `uniform`: named, it proves the same again.
@pytest.mark.parametrize(
    "assignor", [None, "range", pytest.param("uniform", marks=pytest.mark.long)]
)
def test_members_share_a_topic_and_read_each_record_once(bootstrap, new_topic, join, assignor):
    topic = new_topic(partitions=PARTITIONS)
    settings = {**_NEW, **({"group.remote.assignor": assignor} if assignor else {})}
    members = [join(topic, **settings)]
    wait_until(lambda: is_shared_out(*members), _SECONDS, "the first member's assignment")
    members.append(join(topic, **settings))
    wait_until(lambda: is_shared_out(*members), _SECONDS, "two members' assignment")
    fill(bootstrap, topic, 600)
    wait_until(lambda: sum(_read(*members).values()) >= 600, _SECONDS, "all records")
    assert set(_read(*members).values()) == {1}
    leaving = members.pop()
    leaving.stop()
    wait_until(lambda: is_shared_out(*members), _SECONDS, "the remaining member's assignment")


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(new_topic, join):
    topic = new_topic(partitions=PARTITIONS)
    first = join(topic, **_NEW)
    second = join(topic, **_NEW, **{"group.instance.id": "i"})
    wait_until(lambda: is_shared_out(first, second), _SECONDS, "two members' assignment")
    owned, before = set(second.owned), first.rebalances
    second.stop()
    second = join(topic, **_NEW, **{"group.instance.id": "i"})
    wait_until(lambda: second.owned == owned, _SECONDS, "the same partitions")
    assert first.rebalances == before


def test_a_regular_expression_follows_the_topics(bootstrap, new_topic, new_group):
    topic = new_topic(partitions=2)
    prefix = topic[:-3]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": new_group(), **_NEW})
    try:
        consumer.subscribe([f"^{prefix}.*"])
        wait_until(
            lambda: (consumer.poll(0.1), len(consumer.assignment()) == 2)[1], _SECONDS, "two"
        )
        assert {item.topic for item in consumer.assignment()} == {topic}
    finally:
        consumer.close()


def test_a_bad_regular_expression_is_refused_by_name(bootstrap, new_group):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": new_group(), **_NEW})
    try:
        consumer.subscribe(["^a{2000}"])  # RE2 repeats up to a thousand times
        with pytest.raises(KafkaException) as refusal:  # noqa: PT012  polled until it is told
            deadline = time.monotonic() + _SECONDS
            while time.monotonic() < deadline:
                message = consumer.poll(0.2)
                if message is not None and message.error() is not None:
                    raise KafkaException(message.error())
        assert "regular expression" in str(refusal.value).lower()
    finally:
        consumer.close()


def test_a_commit_of_somebody_else_is_refused(bootstrap, new_topic, join):
    topic = new_topic(partitions=PARTITIONS)
    member = join(topic, **_NEW)
    wait_until(lambda: is_shared_out(member), _SECONDS, "the assignment")
    outsider = Consumer({"bootstrap.servers": bootstrap, "group.id": join.group})
    try:
        with pytest.raises(KafkaException, match="UNKNOWN_MEMBER_ID"):
            outsider.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
    finally:
        outsider.close()


def test_headrace_shows_the_group_with_its_type_and_members(bootstrap, new_topic, join):
    topic = new_topic(partitions=PARTITIONS)
    member = join(topic, **_NEW)
    wait_until(lambda: is_shared_out(member), _SECONDS, "the assignment")
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        group = load_groups(admin, [join.group])[join.group]
    finally:
        admin.close()
    assert (group.type, group.state) == ("consumer", "Stable")
    (shown,) = group.members
    assert shown.assignment == tuple((topic, index) for index in range(PARTITIONS))


def test_a_live_group_moves_to_the_consumer_protocol_and_back_under_load(
    bootstrap, admin, new_topic, join
):
    """Members are exchanged one by one while records flow; each record is read, none is lost."""
    topic = new_topic(partitions=PARTITIONS)
    old = [join(topic, **_OLD), join(topic, **_OLD)]
    wait_until(lambda: is_shared_out(*old), _SECONDS, "the classic group")
    fill(bootstrap, topic, 300)
    new = [join(topic, **_NEW)]
    wait_until(lambda: is_shared_out(*old, *new), _SECONDS, "both protocols in one group")
    assert _type_of(admin, join.group) == "CONSUMER"
    fill(bootstrap, topic, 300)
    for member in old:
        member.stop()
    wait_until(lambda: is_shared_out(*new), _SECONDS, "the consumer group")
    back = join(topic, **_OLD)
    wait_until(lambda: is_shared_out(*new, back), _SECONDS, "a classic member again")
    fill(bootstrap, topic, 300)
    new[0].stop()
    wait_until(lambda: is_shared_out(back), _SECONDS, "the classic group again")
    assert _type_of(admin, join.group) == "CLASSIC"
    members = (*old, *new, back)
    wait_until(lambda: len(_read(*members)) >= 900, _SECONDS, "all records")
    assert len(_read(*members)) == 900


def _type_of(admin, group):
    listed: list[ConsumerGroupListing] = admin.list_consumer_groups().result(_SECONDS).valid
    return next(item.type.name for item in listed if item.group_id == group)


@pytest.mark.java
def test_javas_consumer_and_tools_know_the_group(bootstrap, new_topic, new_group, tmp_path):
    topic, group = new_topic(partitions=4), new_group()
    where = ["--bootstrap-server", bootstrap]
    consumer = start_tool(
        "console-consumer",
        tmp_path / "consumer.log",
        *where,
        "--topic",
        topic,
        "--group",
        group,
        "--from-beginning",
        "--command-property",
        "group.protocol=consumer",
    )
    try:
        wait_until(
            lambda: topic in _groups(bootstrap, "--describe", "--group", group), _SECONDS, "member"
        )
        listed = _groups(bootstrap, "--list", "--type", "consumer", "--state")
        assert any(
            line.split()[:3] == [group, "Consumer", "Stable"] for line in listed.splitlines()
        )
        members = _groups(bootstrap, "--describe", "--group", group, "--members", "--verbose")
        assert topic in members
        state = _groups(bootstrap, "--describe", "--group", group, "--state")
        assert "uniform" in state
        run_tool("console-producer", *where, "--topic", topic, standard_input="one\ntwo\n")
        wait_until(
            lambda: "two" in (tmp_path / "consumer.log").read_text(), _SECONDS, "the records"
        )
    finally:
        consumer.stop()
    wait_until(
        lambda: "Empty" in _groups(bootstrap, "--describe", "--group", group, "--state"),
        _SECONDS,
        "an empty group",
    )
    reset = ["--reset-offsets", "--to-earliest", "--topic", topic, "--execute", "--group", group]
    assert topic in _groups(bootstrap, *reset)
    assert "was successful" in _groups(bootstrap, "--delete", "--group", group)


def test_a_groups_own_settings_reach_its_members(admin, new_group):
    resource = ConfigResource(
        ConfigResource.Type.GROUP,
        new_group(),
        incremental_configs=[
            ConfigEntry(
                "consumer.heartbeat.interval.ms",
                "6000",
                incremental_operation=AlterConfigOpType.SET,
            )
        ],
    )
    admin.incremental_alter_configs([resource])[resource].result(_SECONDS)
    described = admin.describe_configs([resource])[resource].result(_SECONDS)
    assert described["consumer.heartbeat.interval.ms"].value == "6000"
    assert described["consumer.session.timeout.ms"].value == "45000"
