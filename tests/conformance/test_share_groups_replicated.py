"""A share group over three brokers, one of which is killed: nothing is lost or comes twice."""

import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from support.headrace_cluster import HeadraceCluster
from support.share_consumers import configure_group, explicit_share_consumer

PARTITIONS = 3
RECORDS = 300
SECONDS = 150


def poll(consumer: ShareConsumer) -> list[int]:
    """Poll once, acknowledge and commit; return what is acknowledged for certain."""
    messages = [message for message in consumer.poll(1.0) if message.error() is None]
    for message in messages:
        consumer.acknowledge(message)
    try:
        outcomes = consumer.commit_sync(30.0)
    except KafkaException:
        return []
    durable = {(where.topic, where.partition) for where, error in outcomes.items() if error is None}
    return [
        int(message.value())
        for message in messages
        if (message.topic(), message.partition()) in durable
    ]


@pytest.mark.slow
def test_acknowledged_records_never_come_again_and_none_is_lost_though_a_leader_dies(
    tmp_path: Path,
):
    with HeadraceCluster(
        tmp_path,
        properties={
            "offsets.topic.replication.factor": "3",
            "share.coordinator.state.topic.replication.factor": "3",
        },
    ) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(30)
        configure_group(cluster.bootstrap, "queue", {"share.auto.offset.reset": "earliest"})
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})

        def send(numbers: range) -> None:
            for number in numbers:
                producer.produce("t", str(number).encode(), partition=number % PARTITIONS)
            assert producer.flush(60) == 0

        send(range(RECORDS // 2))
        consumer = explicit_share_consumer(cluster.bootstrap, "queue", "t")
        acknowledged: list[int] = []
        was_killed = False
        end = time.monotonic() + SECONDS
        while len(set(acknowledged)) < RECORDS and time.monotonic() < end:
            acknowledged += poll(consumer)
            if not was_killed and acknowledged:
                was_killed = True
                cluster.leader("t", 0).kill()
                send(range(RECORDS // 2, RECORDS))
        consumer.close()
        assert sorted(acknowledged) == list(range(RECORDS)), "each once, and all of them"
        late = explicit_share_consumer(cluster.bootstrap, "queue", "t")
        rest = [number for _ in range(5) for number in poll(late)]
        late.close()
        assert rest == []
