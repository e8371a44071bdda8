"""Brokers with two log directories of which one fails for real: a disk that fills, or is read-only.

Only what is in it goes out of service; whatever was acknowledged stays (KIP-112, KIP-858).
"""

import json
import time

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from faults.disk import can_mount, fill, read_only, small_disk
from faults.workload import Workload, create_topic
from support.headrace_cluster import HeadraceCluster
from support.kafka_peer import run_tool
from support.metrics import scrape
from support.processes import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not can_mount(), reason="mounting a small disk needs root"),
]


@pytest.fixture
def two_directories(tmp_path):
    """Three brokers with two log directories each; the second of broker 1 is a disk of 64 MB."""
    cluster = HeadraceCluster(tmp_path)
    for node in cluster.nodes:
        node.settings["log.dirs"] = f"{node.log_directory},{_second(node)}"
    with small_disk(_second(cluster.nodes[0]), 64), cluster:
        yield cluster


def _second(node):
    return node.directory / "second"


def _folders(path):
    """The indexes of topic `t` that a directory holds."""
    return {int(each.name.rpartition("-")[2]) for each in path.glob("t-*") if each.is_dir()}


def _create(cluster, partitions):
    """Create `t`, and wait until all brokers, each in its own time, have made their replicas."""
    create_topic(cluster, "t", partitions)
    for node in cluster.nodes:
        wait_until(lambda node=node: len(_all_folders(node)) == partitions, 20, "its replicas")


def _all_folders(node):
    return [*_folders(node.log_directory), *_folders(_second(node))]


def _out_of_sync(cluster, node_id):
    return {index for index, each in cluster.partitions("t").items() if node_id not in each.isr}


def _offline(node):
    """How many log directories a broker counts as failed, by its metrics."""
    name = "headrace_broker_log_directories_offline"
    try:
        return next(each.value for each in scrape(node.http_port) if each.name == name)
    except OSError:
        return None  # a node serves clients a moment before it serves metrics


def _described(node):
    """What Kafka's own tool says of a broker's directories, by path."""
    where = ["--bootstrap-server", node.bootstrap, "--broker-list", str(node.node_id)]
    printed = run_tool("log-dirs", *where, "--describe", "--topic-list", "t")
    found = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    return {each["logDir"]: each for each in found["brokers"][0]["logDirs"]}


def test_a_directory_that_fails_takes_only_its_partitions_offline(two_directories):
    cluster, node = two_directories, two_directories.nodes[0]
    _create(cluster, 6)
    first, second = _folders(node.log_directory), _folders(_second(node))
    assert first | second == set(range(6))
    assert not first & second
    assert {len(first), len(second)} <= {2, 3, 4}
    with Workload(cluster, "t", partitions=6) as workload:
        began = time.monotonic()
        filler = fill(_second(node))
        wait_until(lambda: _out_of_sync(cluster, 1) == second, 20, "the failure")
        workload.progress(300)
        assert node.is_running
        assert _out_of_sync(cluster, 1) == second
        assert all(each.leader > 0 for each in cluster.partitions("t").values())
        assert workload.longest_gap(began) < 5
        assert _offline(node) == 1
        assert _offline(cluster.nodes[1]) == 0
        filler.unlink()
        node.stop()
        node.start()
        cluster.wait_complete()
        cluster.wait_in_sync("t")
        workload.progress()
        workload.assert_nothing_is_lost()
    assert (_folders(node.log_directory), _folders(_second(node))) == (first, second)


def test_a_directory_that_does_not_open_leaves_the_others_in_service(two_directories):
    cluster, node = two_directories, two_directories.nodes[0]
    _create(cluster, 6)
    second = _folders(_second(node))
    with Workload(cluster, "t", partitions=6) as workload:
        node.stop()
        with read_only(_second(node)):
            node.start()
            cluster.wait_complete()
            wait_until(lambda: _out_of_sync(cluster, 1) == second, 20, "the others")
            wait_until(lambda: _offline(node) == 1, 10, "its metrics")
            workload.progress()
            node.stop()
        node.start()
        cluster.wait_complete()
        cluster.wait_in_sync("t")
        workload.progress()
        workload.assert_nothing_is_lost()


def test_the_only_replica_in_a_failed_directory_is_away_and_comes_back_with_it(two_directories):
    cluster, node = two_directories, two_directories.nodes[0]
    create_topic(cluster, "other", 1)
    _topic_on(cluster, "t", node, partitions=4)
    lost = min(_folders(_second(node)))
    kept = min(_folders(node.log_directory))
    assert _send(cluster, lost, b"before") == 0
    filler = fill(_second(node))
    with pytest.raises(KafkaException):
        _send(cluster, lost, bytes(200_000), seconds=3)
    wait_until(lambda: cluster.partitions("t")[lost].leader < 0, 20, "no leader")
    assert cluster.partitions("t")[kept].leader == 1
    assert _send(cluster, kept, b"meanwhile") == 0
    filler.unlink()
    node.kill()
    node.start()
    cluster.wait_complete()
    cluster.wait_in_sync("t")
    assert _first(cluster, lost) == b"before"


def test_a_cordoned_directory_gets_no_new_replicas(tmp_path):
    cluster = HeadraceCluster(tmp_path)
    for node in cluster.nodes:
        node.settings["log.dirs"] = f"{node.log_directory},{_second(node)}"
    with cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        entry = ConfigEntry(
            "cordoned.log.dirs",
            str(_second(cluster.nodes[0])),
            incremental_operation=AlterConfigOpType.SET,
        )
        cordon = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
        for future in admin.incremental_alter_configs([cordon]).values():
            future.result(10)
        _create(cluster, 4)
        first, other, _ = cluster.nodes
        assert (_folders(first.log_directory), _folders(_second(first))) == ({0, 1, 2, 3}, set())
        assert len(_folders(_second(other))) == 2


@pytest.mark.java
def test_kafkas_own_tool_lists_the_directories_and_what_failed(two_directories):
    cluster, node = two_directories, two_directories.nodes[0]
    _create(cluster, 6)
    described = _described(node)
    for path in (node.log_directory, _second(node)):
        found = described[str(path)]
        assert found["error"] is None
        indexes = {int(each["partition"].rpartition("-")[2]) for each in found["partitions"]}
        assert indexes == _folders(path)
    fill(_second(node))
    with Workload(cluster, "t", partitions=6):
        wait_until(lambda: _out_of_sync(cluster, 1), 20, "the failure")
    described = _described(node)
    assert described[str(node.log_directory)]["error"] is None
    assert "KafkaStorageException" in described[str(_second(node))]["error"]


def test_without_the_directory_of_the_metadata_log_the_process_ends_with_a_clear_word(tmp_path):
    cluster = HeadraceCluster(tmp_path)
    node = cluster.nodes[0]
    node.settings["log.dirs"] = f"{node.log_directory},{_second(node)}"
    with small_disk(node.log_directory, 64), cluster:
        _create(cluster, 6)
        fill(node.log_directory)
        with Workload(cluster, "t", partitions=6) as workload:
            wait_until(lambda: not node.is_running, 20, "its end")
            workload.progress()
            workload.assert_nothing_is_lost()
        said = (node.directory / "broker.log").read_text()
        assert "log directory failed" in said
        assert str(node.log_directory) in said


def _topic_on(cluster, name, node, *, partitions):
    """Create a topic whose only replicas are on one broker."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topic = NewTopic(
        name,
        num_partitions=partitions,
        replica_assignment=[[node.node_id]] * partitions,
        config={"min.insync.replicas": "1"},
    )
    admin.create_topics([topic])[name].result(10)
    cluster.wait_in_sync(name)
    wait_until(lambda: len(_all_folders(node)) == partitions, 20, "its replicas")


def _send(cluster, partition, value, seconds=20):
    """Return the offset of an acknowledged record; raise KafkaException where it is none."""
    sent = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "acks": "all",
            "message.timeout.ms": 1000 * seconds,
        }
    )
    producer.produce("t", value, partition=partition, on_delivery=lambda *each: sent.append(each))
    producer.flush(2 * seconds)
    ((error, message),) = sent
    if error is not None:
        raise KafkaException(error)
    return message.offset()


def _first(cluster, partition):
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader"})
    try:
        consumer.assign([TopicPartition("t", partition, 0)])
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()
