"""Three real brokers replicate: failover, rejoining, in-sync sets, acks, through librdkafka."""

import threading
import time

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient

from support.headrace_cluster import HeadraceCluster
from support.processes import wait_until

_SECONDS = 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    properties = {"min.insync.replicas": "2", "replica.lag.time.max.ms": "2000"}
    with HeadraceCluster(tmp_path_factory.mktemp("replication"), 3, properties) as running:
        yield running


def _create(cluster, name, partitions=1, **config):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 3, config=settings)])[name].result(_SECONDS)


def _partition(cluster, topic, index=0):
    bootstrap = ",".join(node.bootstrap for node in cluster.nodes if node.is_running)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    # A broker that has not heard of a new topic yet names none of its partitions.
    return admin.list_topics(topic, timeout=5).topics[topic].partitions.get(index)


def _has_isr(cluster, topic, members):
    partition = _partition(cluster, topic)
    return partition is not None and set(partition.isrs) == set(members)


def _wait_isr(cluster, topic, members):
    wait_until(
        lambda: _has_isr(cluster, topic, members),
        _SECONDS,
        f"the in-sync set of {topic} to be {members}",
    )


def _producer(cluster, **config):
    return Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "acks": "all",
            "linger.ms": 0,
            "retry.backoff.ms": 20,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            **config,
        }
    )


def _send(producer, topic, value):
    """Produce one record; return (error or None, offset)."""
    done = []
    producer.produce(topic, value, partition=0, callback=lambda e, m: done.append((e, m.offset())))
    while not done:
        producer.poll(0.05)
    return done[0]


def _read(cluster, topic):
    """Every record of partition 0 up to its high watermark, by offset."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "r", "enable.auto.commit": False}
    )
    at = TopicPartition(topic, 0, 0)
    consumer.assign([at])
    end = consumer.get_watermark_offsets(at, timeout=_SECONDS)[1]
    found, position = {}, 0
    while position < end:
        for message in consumer.consume(1000, 1):
            assert message.error() is None
            found[message.offset()] = message.value()
            position = message.offset() + 1
    consumer.close()
    return found


def _delete(cluster, topic, offset, seconds):
    """Delete records; return the low watermark or the error's name."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    partition = TopicPartition(topic, 0, offset)
    deleting = admin.delete_records([partition], operation_timeout=seconds)[partition]
    try:
        return deleting.result(_SECONDS).low_watermark
    except KafkaException as error:
        return error.args[0].name()


def test_records_are_deleted_once_all_live_replicas_have_deleted_them(cluster):
    """KIP-107: whoever leads next, they are gone."""
    _create(cluster, "deletions")
    _wait_isr(cluster, "deletions", {1, 2, 3})
    producer = _producer(cluster)
    for number in range(4):
        assert _send(producer, "deletions", b"%d" % number)[0] is None
    assert _delete(cluster, "deletions", 2, _SECONDS) == 2
    leader = cluster.node(_partition(cluster, "deletions").leader)
    others = [node for node in cluster.nodes if node is not leader]
    # One that hangs is waited for until it is fenced; nobody waits for one that is not live.
    others[0].pause()
    try:
        assert _delete(cluster, "deletions", 3, 0.3) == "REQUEST_TIMED_OUT"
        assert _delete(cluster, "deletions", 3, _SECONDS) == 3
    finally:
        others[0].resume()
    _wait_isr(cluster, "deletions", {1, 2, 3})
    assert _delete(cluster, "deletions", 4, _SECONDS) == 4


def test_a_killed_leader_costs_writers_a_moment_and_no_record(cluster):
    _create(cluster, "failover")
    _wait_isr(cluster, "failover", {1, 2, 3})
    acknowledged, stop = [], threading.Event()

    def write():
        producer, number = _producer(cluster, **{"enable.idempotence": True}), 0
        while not stop.is_set():
            value = b"%d" % number
            error, offset = _send(producer, "failover", value)
            if error is None:
                acknowledged.append((time.monotonic(), value, offset))
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(1)
    victim = cluster.node(_partition(cluster, "failover").leader)
    victim.kill()
    killed_at = time.monotonic() + 0.001  # what was on its way is answered by then
    time.sleep(5)
    back_at = time.monotonic()
    victim.start()
    _wait_isr(cluster, "failover", {1, 2, 3})
    stop.set()
    writer.join()
    # How long the moment is, the benchmark measures; here it only ends, before the victim is back.
    assert any(killed_at < at < back_at for at, _, _ in acknowledged)
    found = _read(cluster, "failover")
    assert [found[offset] for _, _, offset in acknowledged] == [v for _, v, _ in acknowledged]
    assert sorted(found) == list(range(len(found)))
    assert len(set(found.values())) == len(found)


def test_below_min_insync_replicas_writers_are_refused_and_nothing_new_is_read(cluster):
    _create(cluster, "under", min_insync_replicas="3")
    _wait_isr(cluster, "under", {1, 2, 3})
    assert _send(_producer(cluster), "under", b"all")[0] is None
    leader = _partition(cluster, "under").leader
    victim = next(node for node in cluster.nodes if node.node_id != leader)
    victim.kill()
    _wait_isr(cluster, "under", {1, 2, 3} - {victim.node_id})
    error, _ = _send(_producer(cluster, retries=0), "under", b"refused")
    assert error.code() in (KafkaError.NOT_ENOUGH_REPLICAS, KafkaError._MSG_TIMED_OUT)
    assert _send(_producer(cluster, acks=1), "under", b"leader only")[0] is None
    assert list(_read(cluster, "under").values()) == [b"all"]
    victim.start()
    _wait_isr(cluster, "under", {1, 2, 3})
    wait_until(
        lambda: list(_read(cluster, "under").values()) == [b"all", b"leader only"],
        _SECONDS,
        "what waited to be committed",
    )


def test_with_an_fsync_policy_records_are_committed_by_what_is_on_disk(cluster):
    _create(cluster, "synced", flush_messages="1")
    _wait_isr(cluster, "synced", {1, 2, 3})
    producer = _producer(cluster)
    for number in range(20):
        assert _send(producer, "synced", b"%d" % number) == (None, number)
    assert _send(_producer(cluster, acks=1), "synced", b"20") == (None, 20)


def test_log_directories_tell_what_each_replica_takes(cluster):
    _create(cluster, "sized")
    _wait_isr(cluster, "sized", {1, 2, 3})
    assert _send(_producer(cluster), "sized", b"x" * 1000)[0] is None
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    text = str(admin.describe_log_dirs())
    admin.close()
    assert "sized" in text
    assert str(cluster.nodes[0].log_directory) in text
