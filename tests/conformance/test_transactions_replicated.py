"""Transactions over several brokers: remote verification and markers, and a leader that dies."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.headrace_cluster import HeadraceCluster

PARTITIONS = 6
TRANSACTIONS = 30


def read_committed(bootstrap: str, topic: str, count: int) -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    found: list[str] = []
    silent = 0
    while len(found) < count or silent < 2:
        message = consumer.poll(5)
        if message is None:
            silent += 1
            if silent > 6:
                break
        elif not message.error():
            silent = 0
            found.append(message.value().decode())
    consumer.close()
    return found


@pytest.mark.slow
def test_whole_transactions_are_read_though_a_leader_dies(tmp_path: Path):
    with HeadraceCluster(
        tmp_path, properties={"transaction.state.log.replication.factor": "3"}
    ) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        created = admin.create_topics([NewTopic("t", PARTITIONS, 3)])
        created["t"].result(30)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "x"})
        producer.init_transactions(60)
        committed: list[str] = []
        unknown: list[str] = []
        for number in range(TRANSACTIONS):
            if number == TRANSACTIONS // 2:
                cluster.leader("t", 0).kill()
            values = [f"{number}/{partition}" for partition in range(PARTITIONS)]
            producer.begin_transaction()
            for partition, value in enumerate(values):
                producer.produce("t", value, partition=partition)
            if number % 3 == 2:
                producer.flush(60)
                producer.abort_transaction(60)
                continue
            try:
                producer.commit_transaction(60)
                committed += values
            except KafkaException as error:
                # A request that the killed broker had may end the transaction, not the producer.
                if not error.args[0].txn_requires_abort():
                    raise
                producer.abort_transaction(60)
                unknown += values
        found = read_committed(cluster.bootstrap, "t", len(committed))
        assert sorted(found) == sorted(committed)
        assert len(unknown) <= 2 * PARTITIONS
