"""Replicas move between a broker's log directories, by Kafka's own tools and by kafka-python.

What is answered is the same by Apache Kafka: the tests with `peers` run against both.
"""

import json
import random
import re
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient

from support.command_line import run_headrace
from support.headrace_cluster import HeadraceCluster
from support.kafka_cluster import KafkaCluster
from support.kafka_peer import run_tool
from support.processes import wait_until
from support.streams import FAST_PRODUCER, read_partition

_SECONDS = 60
_SIZE = 4000  # digits; Python reads 4300 at most as one number
_RECORDS = 1000
_CRAWL = 20_000  # the whole would take minutes

pytestmark = pytest.mark.slow


def _second(node):
    return node.directory / "second"


def _cluster(kind, directory, **properties):
    cluster = kind(directory, 1, properties)
    for node in cluster.nodes:
        node.settings["log.dirs"] = f"{node.log_directory},{_second(node)}"
    return cluster


@pytest.fixture(
    scope="module",
    params=[HeadraceCluster, pytest.param(KafkaCluster, marks=pytest.mark.java)],
    ids=["headrace", "kafka"],
)
def peers(request, tmp_path_factory):
    with _cluster(request.param, tmp_path_factory.mktemp("peers")) as running:
        yield running


@pytest.fixture
def cluster(tmp_path):
    with _cluster(HeadraceCluster, tmp_path) as running:
        yield running


@pytest.fixture
def topic(request):
    return re.sub(r"\W+", "-", request.node.name).strip("-")


def _create(cluster, topic, records=_RECORDS):
    """Create and fill a topic of one partition; return what is in it."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(_SECONDS)
    producer = Producer({**FAST_PRODUCER, "bootstrap.servers": cluster.bootstrap})
    for number in range(records):
        producer.produce(topic, str(number).zfill(_SIZE).encode(), partition=0)
    assert producer.flush(_SECONDS) == 0
    return [(number, number) for number in range(records)]


def _alter(cluster, topic, path, partition=0):
    """Ask by kafka-python; return the error's name."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        asked = {(topic, partition, 1): str(path)}
        (error,) = admin.alter_replica_log_dirs(asked).values()
        return error.__name__
    finally:
        admin.close()


def _described(cluster, topic):
    """What `kafka-log-dirs.sh` says: (path's name, is future) to offset lag."""
    where = ["--bootstrap-server", cluster.bootstrap, "--broker-list", "1"]
    printed = run_tool("log-dirs", *where, "--describe", "--topic-list", topic)
    found = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    return {
        (directory["logDir"].rpartition("/")[2], partition["isFuture"]): partition["offsetLag"]
        for directory in found["brokers"][0]["logDirs"]
        for partition in directory["partitions"]
    }


def _reassign(cluster, topic, path, action, *options):
    plan = cluster.nodes[0].directory / "plan.json"
    move = {"topic": topic, "partition": 0, "replicas": [1], "log_dirs": [str(path)]}
    plan.write_text(json.dumps({"version": 1, "partitions": [move]}))
    where = ["--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", str(plan)]
    return run_tool("reassign-partitions", *where, action, *options)


def _home(cluster, topic):
    """The directory that holds a topic's replica, by its folder; None while there are two."""
    node = cluster.nodes[0]
    found = [path for path in (node.log_directory, _second(node)) if (path / f"{topic}-0").is_dir()]
    return found[0] if len(found) == 1 else None


def _other(cluster, topic):
    node = cluster.nodes[0]
    wait_until(lambda: _home(cluster, topic) is not None, _SECONDS, "the replica")
    return _second(node) if _home(cluster, topic) == node.log_directory else node.log_directory


@pytest.mark.java
def test_kafkas_tool_moves_a_replica_and_says_when_it_is_there(peers, topic):
    written = _create(peers, topic)
    target = _other(peers, topic)
    executed = _reassign(peers, topic, target, "--execute")
    assert (
        f"Successfully started moving log directory to {target} for replica {topic}-0" in executed
    )
    done = f"Reassignment of replica {topic}-0-1 completed successfully."
    wait_until(lambda: done in _reassign(peers, topic, target, "--verify"), _SECONDS, done)
    assert _home(peers, topic) == target
    assert read_partition(peers.bootstrap, topic, 0) == written
    assert _described(peers, topic) == {(target.name, False): 0}


@pytest.mark.java
def test_a_throttled_move_shows_its_copy_and_ends_when_it_is_let_go(peers, topic):
    written = _create(peers, topic)
    target = _other(peers, topic)
    throttle = ("--replica-alter-log-dirs-throttle", str(_CRAWL))
    _reassign(peers, topic, target, "--execute", *throttle)
    described = _described(peers, topic)
    source = next(name for name, is_future in described if not is_future)
    assert (source, target.name) == (_home(peers, topic).name, target.name)
    assert 0 < described[target.name, True] <= _RECORDS
    still = f"Reassignment of replica {topic}-0-1 is still in progress."
    assert still in _reassign(peers, topic, target, "--verify")
    _reassign(peers, topic, target, "--execute", "--additional", *throttle[:1], str(1000 * _CRAWL))
    done = f"Reassignment of replica {topic}-0-1 completed successfully."
    wait_until(lambda: done in _reassign(peers, topic, target, "--verify"), _SECONDS, done)
    assert read_partition(peers.bootstrap, topic, 0) == written


def test_what_cannot_be_is_refused_as_kafka_does(peers, topic):
    _create(peers, topic, 1)
    other = _other(peers, topic)
    here = _home(peers, topic)
    assert _alter(peers, topic, here) == "NoError"
    assert _alter(peers, topic, "/no/such/directory") == "LogDirNotFoundError"
    assert _alter(peers, topic, other, 7) == "UnknownTopicOrPartitionError"
    assert _alter(peers, "x" * 230, other) == "InvalidTopicError"


def test_the_choice_for_a_topic_that_does_not_exist_is_kept(peers, topic):
    node = peers.nodes[0]
    for number, path in enumerate([_second(node)] * 3 + [node.log_directory] * 3):
        name = f"{topic}-{number}"
        assert _alter(peers, name, path) == "UnknownTopicOrPartitionError"
        _create(peers, name, 1)
        wait_until(lambda name=name: _home(peers, name) is not None, _SECONDS, "the replica")
        assert _home(peers, name) == path


@pytest.mark.java
def test_a_move_that_is_taken_back_leaves_nothing(cluster, topic):
    written = _create(cluster, topic)
    target, here = _other(cluster, topic), _home(cluster, topic)
    _reassign(cluster, topic, target, "--execute", "--replica-alter-log-dirs-throttle", str(_CRAWL))
    assert list(target.glob("*-future"))
    assert _alter(cluster, topic, here) == "NoError"
    wait_until(lambda: not list(target.glob("*-future")), _SECONDS, "the copy is still there")
    assert _home(cluster, topic) == here
    assert read_partition(cluster.bootstrap, topic, 0) == written


@pytest.mark.java
def test_a_move_goes_on_after_a_kill(cluster, topic):
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)  # noqa: T201 - to run it again
    chance = random.Random(seed)
    written = _create(cluster, topic)
    target = _other(cluster, topic)
    _reassign(
        cluster, topic, target, "--execute", "--replica-alter-log-dirs-throttle", str(10 * _CRAWL)
    )
    for _ in range(3):
        time.sleep(chance.random())
        cluster.nodes[0].kill()
        cluster.nodes[0].start()
        cluster.wait_complete()
        assert read_partition(cluster.bootstrap, topic, 0) == written
    wait_until(lambda: _home(cluster, topic) == target, 2 * _SECONDS, "the move")
    wait_until(lambda: not list(target.glob("*-future")), _SECONDS, "copies are left")
    assert read_partition(cluster.bootstrap, topic, 0) == written


def test_a_topic_is_deleted_while_it_moves(cluster, topic):
    _create(cluster, topic, 200)
    target = _other(cluster, topic)
    assert _alter(cluster, topic, target) == "NoError"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.delete_topics([topic])[topic].result(_SECONDS)
    node = cluster.nodes[0]

    def is_gone():
        return not any(
            (path / f"{topic}-0").exists() or list(path.glob(f"{topic}-0.*-future"))
            for path in (node.log_directory, _second(node))
        )

    wait_until(is_gone, _SECONDS, "the replica")
    assert node.is_running
    assert len(_create(cluster, topic, 5)) == len(read_partition(cluster.bootstrap, topic, 0))


def _headrace(cluster, *arguments):
    where = ["--bootstrap-server", cluster.bootstrap]
    ended = run_headrace("cluster", "dirs", *arguments, *where, seconds=_SECONDS)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_command_leaves_a_directory_and_spreads_replicas_over_it_again(cluster):
    node, admin = cluster.nodes[0], AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("t", 4, 1)])["t"].result(_SECONDS)

    def replicas():
        shown = json.loads(_headrace(cluster, "-o", "json"))
        return {each["path"]: len(each["replicas"]) for each in shown}

    first, second = str(node.log_directory), str(_second(node))
    wait_until(lambda: replicas() == {first: 2, second: 2}, _SECONDS, "the replicas")
    planned = _headrace(cluster, "--leave", second)
    assert planned.count(second) == 2
    assert replicas() == {first: 2, second: 2}
    _headrace(cluster, "--leave", second, "--execute")
    assert replicas() == {first: 4, second: 0}
    _headrace(cluster, "--balance", "--execute")
    assert replicas() == {first: 2, second: 2}
    assert "online" in _headrace(cluster)
