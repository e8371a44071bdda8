"""Dead letters over three brokers, of which both leaders are killed: each comes at least once."""

import time
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType, Consumer, KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from support.headrace_cluster import HeadraceCluster
from support.share_consumers import configure_group, explicit_share_consumer

PARTITIONS = 2
RECORDS = 400
SECONDS = 120


def reject(consumer: ShareConsumer) -> tuple[list[int], list[int]]:
    """Poll once and reject; return what was delivered, and what is rejected for certain."""
    messages = [message for message in consumer.poll(1.0) if message.error() is None]
    for message in messages:
        consumer.acknowledge(message, AcknowledgeType.REJECT)
    delivered = [int(message.value()) for message in messages]
    try:
        outcomes = consumer.commit_sync(30.0)
    except KafkaException:
        return delivered, []
    durable = {(where.topic, where.partition) for where, error in outcomes.items() if error is None}
    return delivered, [
        int(message.value())
        for message in messages
        if (message.topic(), message.partition()) in durable
    ]


def read_dead_letters(bootstrap: str, count: int) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["dlq.t"])
    found: list[int] = []
    end = time.monotonic() + SECONDS
    while len(set(found)) < count and time.monotonic() < end:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append(int(message.value()))
    consumer.close()
    return found


@pytest.mark.slow
def test_every_rejected_record_becomes_a_dead_letter_though_leaders_die(tmp_path: Path):
    properties = {
        "offsets.topic.replication.factor": "3",
        "share.coordinator.state.topic.replication.factor": "3",
    }
    with HeadraceCluster(tmp_path, properties=properties) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        safe = {"min.insync.replicas": "2"}
        allowed = safe | {"errors.deadletterqueue.group.enable": "true"}
        topics = [
            NewTopic("t", PARTITIONS, 3, config=safe),
            NewTopic("dlq.t", PARTITIONS, 3, config=allowed),
        ]
        for made in admin.create_topics(topics).values():
            made.result(30)
        configure_group(
            cluster.bootstrap,
            "queue",
            {
                "share.auto.offset.reset": "earliest",
                "errors.deadletterqueue.topic.name": "dlq.t",
                "errors.deadletterqueue.copy.record.enable": "true",
            },
        )
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        consumer = explicit_share_consumer(cluster.bootstrap, "queue", "t")
        rejected: set[int] = set()
        for first, victim in ((0, "t"), (RECORDS // 2, "dlq.t")):
            for number in range(first, first + RECORDS // 2):
                producer.produce("t", str(number).encode(), partition=number % PARTITIONS)
            assert producer.flush(60) == 0
            was_killed, end = False, time.monotonic() + SECONDS
            while len(rejected) < first + RECORDS // 2 and time.monotonic() < end:
                delivered, certain = reject(consumer)
                assert not rejected.intersection(delivered), "delivered after it was rejected"
                rejected.update(certain)
                if certain and not was_killed:
                    was_killed = True
                    cluster.leader(victim, 0).kill()
            assert rejected == set(range(first + RECORDS // 2))
            cluster.make_whole()
            for name in ("t", "dlq.t", "__share_group_state", "__consumer_offsets"):
                cluster.wait_in_sync(name)
        found = read_dead_letters(cluster.bootstrap, RECORDS)
        consumer.close()
        assert set(found) == set(range(RECORDS)), "at least once"
