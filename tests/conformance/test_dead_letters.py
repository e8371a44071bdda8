"""Dead-letter topics of share groups (KIP-1191): librdkafka's and Java's share consumers judge."""

import time
import urllib.request
import uuid

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer
from confluent_kafka.admin import (
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

from support.kafka_peer import run_tool
from support.processes import wait_until
from support.wire import RawConnection

SECONDS = 30
BROKER, GROUP = 4, 32


def alter(bootstrap, kind, name, settings):
    """Set what a resource is set to; return the error's name and message."""
    resource = AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=tuple(
            AlterableConfig(name=key, config_operation=0, value=value)
            for key, value in settings.items()
        ),
    )
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    with RawConnection(bootstrap, SECONDS) as connection:
        (result,) = connection.call(request).responses
    return result.error_code.name, result.error_message


def configure(bootstrap, group, topic, **more):
    """Say where a group's dead letters go; return what is said of that."""
    settings = {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.topic.name": topic,
    } | {f"errors.deadletterqueue.{key.replace('_', '.')}": item for key, item in more.items()}
    return alter(bootstrap, GROUP, group, settings)


@pytest.fixture
def dead(admin):
    """A topic of three partitions that may be a dead-letter topic."""
    return _make(admin, partitions=3)


def _make(admin, partitions=1, enabled="true"):
    name = f"dlq.{uuid.uuid4().hex[:10]}"
    config = {"errors.deadletterqueue.group.enable": enabled}
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(SECONDS)
    return name


def send(bootstrap, topic, count, partition=0):
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        value, key = f"v{number}".encode(), f"k{number}".encode()
        producer.produce(topic, value, key, partition=partition, headers={"h": b"1"})
    assert producer.flush(SECONDS) == 0


def share_consumer(bootstrap, group, topic):
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
        }
    )
    consumer.subscribe([topic])
    return consumer


def work(consumer, decide, count, seconds=SECONDS):
    """Take so many records, each with the word that `decide` has for its offset."""
    found, end = [], time.monotonic() + seconds
    while len(found) < count and time.monotonic() < end:
        for message in consumer.poll(1.0):
            assert message.error() is None
            found.append(message.offset())
            consumer.acknowledge(message, decide(message.offset()))
        outcomes = consumer.commit_sync(SECONDS)
        assert all(error is None for error in outcomes.values()), outcomes
    return found


def dead_letters(bootstrap, topic, count, seconds=SECONDS):
    """Return what is in a dead-letter topic as (partition, key, value, headers)."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found, end = [], time.monotonic() + seconds
    while len(found) < count and time.monotonic() < end:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            headers = {name: value.decode() for name, value in message.headers()}
            found.append((message.partition(), message.key(), message.value(), headers))
    consumer.close()
    return found


def context(topic, partition, offset, group, count, message):
    return {
        "__dlq.errors.topic": topic,
        "__dlq.errors.partition": str(partition),
        "__dlq.errors.offset": str(offset),
        "__dlq.errors.group": group,
        "__dlq.errors.delivery.count": str(count),
        "__dlq.errors.message": message,
    }


def test_rejected_records_go_to_the_dead_letter_topic_and_say_where_they_come_from(
    bootstrap, new_topic, new_group, dead, peer
):
    topic, group = new_topic(5), new_group()
    configure(bootstrap, group, dead)
    send(bootstrap, topic, 6, partition=4)
    with share_consumer(bootstrap, group, topic) as consumer:
        work(
            consumer,
            lambda offset: AcknowledgeType.REJECT if offset % 2 else AcknowledgeType.ACCEPT,
            6,
        )
    found = dead_letters(bootstrap, dead, 3)
    expected = [
        (1, None, None, context(topic, 4, offset, group, 1, "Offset rejected by client."))
        for offset in (1, 3, 5)
    ]
    assert found == expected, "in the partition of the source's number, modulo the count"
    with urllib.request.urlopen(f"{peer.http_address}/metrics", timeout=30) as response:  # noqa: S310 (our own)
        metrics = response.read().decode()
    labels = f'{{outcome="written",sharegroup="{group}"}}'
    assert f"headrace_sharegroup_dead_letter_records_total{labels} 3.0" in metrics


def test_a_record_that_fails_at_every_delivery_goes_there_with_its_key_and_value(
    bootstrap, new_topic, new_group, dead
):
    topic, group = new_topic(), new_group()
    configure(bootstrap, group, dead, copy_record_enable="true")
    send(bootstrap, topic, 1)
    with share_consumer(bootstrap, group, topic) as consumer:
        assert work(consumer, lambda _: AcknowledgeType.RELEASE, 6, seconds=8) == [0] * 5
    too_often = "Offset delivery count exceeded the threshold."
    assert dead_letters(bootstrap, dead, 1) == [
        (0, b"k0", b"v0", context(topic, 0, 0, group, 5, too_often))
    ], "the record's own headers are not copied"


def test_the_topic_is_made_where_the_cluster_allows_it_and_may_be_a_group_s_then(
    bootstrap, new_topic, new_group, admin
):
    topic, group, missing = new_topic(), new_group(), f"dlq.{uuid.uuid4().hex[:10]}"
    made = "errors.deadletterqueue.auto.create.topics.enable"
    alter(bootstrap, BROKER, "", {made: "true"})
    try:
        configure(bootstrap, group, missing)
        send(bootstrap, topic, 1)
        with share_consumer(bootstrap, group, topic) as consumer:
            work(consumer, lambda _: AcknowledgeType.REJECT, 1)
        assert len(dead_letters(bootstrap, missing, 1)) == 1
    finally:
        alter(bootstrap, BROKER, "", {made: "false"})
    resource = ConfigResource(ResourceType.TOPIC, missing)
    (described,) = admin.describe_configs([resource]).values()
    setting = described.result(SECONDS)["errors.deadletterqueue.group.enable"]
    assert setting.value == "true"


def test_a_topic_that_comes_late_is_waited_for(bootstrap, new_topic, new_group, admin):
    topic, group, late = new_topic(), new_group(), f"dlq.{uuid.uuid4().hex[:10]}"
    configure(bootstrap, group, late)
    send(bootstrap, topic, 2)
    with share_consumer(bootstrap, group, topic) as consumer:
        work(consumer, lambda _: AcknowledgeType.REJECT, 2)
        config = {"errors.deadletterqueue.group.enable": "true"}
        admin.create_topics([NewTopic(late, 1, 1, config=config)])[late].result(SECONDS)
        assert len(dead_letters(bootstrap, late, 2)) == 2


def test_a_topic_that_does_not_allow_it_gets_nothing_and_the_group_goes_on(
    bootstrap, new_topic, new_group, admin, peer
):
    topic, group, other = new_topic(), new_group(), _make(admin, enabled="false")
    configure(bootstrap, group, other)
    send(bootstrap, topic, 2)
    lost = f'headrace_sharegroup_dead_letter_records_total{{outcome="lost",sharegroup="{group}"}}'

    def is_counted():
        with urllib.request.urlopen(f"{peer.http_address}/metrics", timeout=30) as response:  # noqa: S310 (our own)
            return f"{lost} 2.0" in response.read().decode()

    with share_consumer(bootstrap, group, topic) as consumer:
        work(consumer, lambda _: AcknowledgeType.REJECT, 2)
        wait_until(is_counted, SECONDS, "two dead letters given up")
        send(bootstrap, topic, 1)
        assert work(consumer, lambda _: AcknowledgeType.ACCEPT, 1) == [2]
    assert dead_letters(bootstrap, other, 1, seconds=2) == []


@pytest.mark.parametrize(
    ("name", "says"),
    [("orders", "must begin with 'dlq.'"), ("__consumer_offsets", "own"), ("dlq.a b", "ASCII")],
)
def test_a_bad_name_is_refused_and_says_why(bootstrap, new_group, name, says):
    code, message = configure(bootstrap, new_group(), name)
    assert code == "invalid_config"
    assert says in message


def test_one_broker_alone_cannot_have_another_prefix(bootstrap, admin):
    node_id = str(next(iter(admin.list_topics(timeout=SECONDS).brokers)))
    prefix = {"errors.deadletterqueue.topic.name.prefix": "x."}
    code, message = alter(bootstrap, BROKER, node_id, prefix)
    assert (code, "cannot be altered" in message) == ("invalid_config", True)


@pytest.mark.java
def test_javas_share_consumer_rejects_and_javas_consumer_reads_the_dead_letters(
    bootstrap, new_topic, new_group, dead
):
    topic, group = new_topic(), new_group()
    where = ["--bootstrap-server", bootstrap]
    settings = f"errors.deadletterqueue.topic.name={dead},share.auto.offset.reset=earliest"
    of = ["--entity-type", "groups", "--entity-name", group]
    run_tool("configs", *where, *of, "--alter", "--add-config", settings)
    assert f"errors.deadletterqueue.topic.name={dead}" in run_tool(
        "configs", *where, *of, "--describe"
    )
    send(bootstrap, topic, 5)
    read = ["--topic", topic, "--group", group, "--max-messages", "5", "--timeout-ms", "30000"]
    run_tool("console-share-consumer", *where, *read, "--reject")
    printed = run_tool(
        "console-consumer",
        *[*where, "--topic", dead, "--from-beginning", "--max-messages", "5"],
        *["--timeout-ms", "30000", "--property", "print.headers=true"],
    )
    rows = [line for line in printed.splitlines() if "__dlq.errors.offset" in line]
    assert len(rows) == 5
    assert {
        f"__dlq.errors.topic:{topic},__dlq.errors.partition:0,__dlq.errors.offset:{offset}"
        in printed
        for offset in range(5)
    } == {True}
