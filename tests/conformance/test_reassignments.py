"""Replicas are moved, dropped and left where they are by Kafka's own tool and by kafka-python.

A move is held to its throttle by the size of the copy while it grows (KIP-73, KIP-455).
"""

import json
import re
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from kafka import KafkaAdminClient, TopicPartition

from support.headrace_cluster import HeadraceCluster
from support.kafka_peer import run_tool
from support.processes import wait_until
from support.streams import FAST_PRODUCER, read_partition

_SIZE = 4000  # digits; Python reads 4300 at most as one number
_RECORDS = 2000
_TOTAL = _SIZE * _RECORDS
_RATE = 2_000_000
_CRAWL = 20_000
_FETCH = 500_000
_SECONDS = 60
_BROKER_THROTTLES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_TOPIC_THROTTLES = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    properties = {
        "replica.fetch.max.bytes": str(_FETCH),
        "replica.fetch.response.max.bytes": str(_FETCH),
        "auto.leader.rebalance.enable": "false",
    }
    with HeadraceCluster(tmp_path_factory.mktemp("moves"), 3, properties) as running:
        yield running


@pytest.fixture
def create(cluster, request):
    """Return a function that creates and fills a topic of one partition with these replicas."""

    def create(replicas):
        name = re.sub(r"\W+", "-", request.node.name).strip("-")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topic = NewTopic(name, 1, replica_assignment=[replicas], config={"min.insync.replicas": 1})
        admin.create_topics([topic])[name].result(_SECONDS)
        cluster.wait_in_sync(name)
        producer = Producer({**FAST_PRODUCER, "bootstrap.servers": cluster.bootstrap})
        for number in range(_RECORDS):
            producer.produce(name, b"%0*d" % (_SIZE, number), partition=0)
        assert producer.flush(_SECONDS) == 0
        return name

    return create


class JavaMover:
    """kafka-reassign-partitions.sh."""

    def __init__(self, cluster, directory):
        self._where = ("--bootstrap-server", cluster.bootstrap)
        self._file = directory / "move.json"

    def _run(self, *arguments):
        file = ("--reassignment-json-file", str(self._file))
        return run_tool("reassign-partitions", *self._where, *file, *arguments)

    def move(self, topic, replicas, rate):
        moves = [{"topic": topic, "partition": 0, "replicas": replicas}]
        self._file.write_text(json.dumps({"version": 1, "partitions": moves}))
        said = self._run("--execute", "--throttle", str(rate))
        assert "Successfully started partition reassignment" in said

    def cancel(self, topic):
        said = self._run("--cancel")
        assert f"Successfully cancelled partition reassignment for: {topic}-0" in said, said

    def verify(self):
        return self._run("--verify")


class KafkaPythonMover:
    """kafka-python's admin client, with the throttles that the tool would set."""

    def __init__(self, cluster, _):
        self._bootstrap = cluster.bootstrap

    def _alter(self, topic, replicas):
        client = KafkaAdminClient(bootstrap_servers=self._bootstrap.split(","))
        try:
            client.alter_partition_reassignments({TopicPartition(topic, 0): replicas})
        finally:
            client.close()

    def move(self, topic, replicas, rate):
        rates = dict.fromkeys(_BROKER_THROTTLES, str(rate))
        for node_id in (1, 2, 3):
            run_config(self._bootstrap, ConfigResource.Type.BROKER, str(node_id), rates)
        every = dict.fromkeys(_TOPIC_THROTTLES, "*")
        run_config(self._bootstrap, ConfigResource.Type.TOPIC, topic, every)
        self._alter(topic, replicas)

    def cancel(self, topic):
        self._alter(topic, None)


@pytest.fixture(
    params=[pytest.param(JavaMover, marks=pytest.mark.java), KafkaPythonMover],
    ids=["java", "kafka-python"],
)
def mover(request, cluster, tmp_path):
    yield request.param(cluster, tmp_path)
    for node_id in (1, 2, 3):
        nothing = dict.fromkeys(_BROKER_THROTTLES)
        run_config(cluster.bootstrap, ConfigResource.Type.BROKER, str(node_id), nothing)


def run_config(bootstrap, kind, name, settings):
    """Set settings, or delete them where the value is None (IncrementalAlterConfigs)."""
    entries = [
        ConfigEntry(
            key,
            value,
            incremental_operation=(
                AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
            ),
        )
        for key, value in settings.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(_SECONDS)


def _throttles(cluster, topic):
    """Return the throttles that are set anywhere."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic)]
    resources += [ConfigResource(ConfigResource.Type.BROKER, str(id_)) for id_ in (1, 2, 3)]
    return {
        (resource.name, entry.name): entry.value
        for resource in resources  # one request each: a broker is asked about itself
        for entry in admin.describe_configs([resource])[resource].result(_SECONDS).values()
        if entry.name in _BROKER_THROTTLES + _TOPIC_THROTTLES
        and not entry.is_default
        and entry.value
    }


def _replicas(cluster, topic):
    return sorted(cluster.partitions(topic)[0].replicas)


def _copied(cluster, node_id, topic):
    """Return the size of a broker's copy on its disk."""
    directory = cluster.node(node_id).log_directory / f"{topic}-0"
    return sum(path.stat().st_size for path in directory.glob("*.log"))


def _assert_whole(cluster, topic):
    read = read_partition(cluster.bootstrap, topic, 0)
    assert read == [(number, number) for number in range(_RECORDS)]


@pytest.mark.java
def test_a_throttled_move_stays_near_its_bound_and_verify_lifts_it(cluster, create, tmp_path):
    topic = create([1, 2])
    mover = JavaMover(cluster, tmp_path)
    began = time.monotonic()
    mover.move(topic, [1, 3], _RATE)
    samples = []
    while _replicas(cluster, topic) != [1, 3]:
        size = _copied(cluster, 3, topic)
        samples.append((time.monotonic(), size))
        assert time.monotonic() - began < _SECONDS
        time.sleep(0.05)
    ended = time.monotonic()
    assert len(_throttles(cluster, topic)) > 0
    assert "is completed" in mover.verify()
    assert _throttles(cluster, topic) == {}
    # One second's bytes are free, and one fetch may overdraw what time then pays back.
    started = max((at for at, size in samples if size == 0), default=began)
    for at, size in samples:
        assert size <= _RATE * (1 + 1.1 * (at - started)) + 2 * _FETCH
    assert ended - started > (_TOTAL - _RATE - _FETCH) / (1.1 * _RATE)
    assert ended - started < 4 * _TOTAL / _RATE, "it is not starved either"
    _assert_whole(cluster, topic)


def test_a_move_that_is_cancelled_leaves_the_replicas_that_were(cluster, create, mover):
    topic = create([1, 2])
    mover.move(topic, [1, 3], _CRAWL)
    wait_until(lambda: _replicas(cluster, topic) == [1, 2, 3], _SECONDS, "the move's beginning")
    wait_until(lambda: _copied(cluster, 3, topic) > 0, _SECONDS, "some bytes")
    mover.cancel(topic)
    wait_until(lambda: _replicas(cluster, topic) == [1, 2], _SECONDS, "the replicas that were")
    cluster.wait_in_sync(topic)
    wait_until(
        lambda: not (cluster.node(3).log_directory / f"{topic}-0").exists(), _SECONDS, "its removal"
    )
    _assert_whole(cluster, topic)


def test_dropped_replicas_go_and_the_one_that_stays_leads(cluster, create, mover):
    topic = create([1, 2, 3])
    mover.move(topic, [3], _RATE)
    wait_until(lambda: _replicas(cluster, topic) == [3], _SECONDS, "one replica")
    assert cluster.leader(topic).node_id == 3
    for node_id in (1, 2):
        directory = cluster.node(node_id).log_directory / f"{topic}-0"
        wait_until(lambda found=directory: not found.exists(), _SECONDS, "the files' removal")
    _assert_whole(cluster, topic)
