"""Cordons and plans on real brokers, asked for by other people's clients."""

import json
import time

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource as KafkaPythonResource
from kafka.admin import ConfigResourceType

from headrace_operator.balance import (
    BalanceError,
    approve,
    change_state,
    cordoned_brokers,
    fetch_plan,
    fetch_progress,
)
from support.command_line import run_headrace
from support.headrace_cluster import HeadraceCluster
from support.kafka_peer import run_tool
from support.processes import wait_until

RECORDS = 3000
SIZE = 1000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with HeadraceCluster(tmp_path_factory.mktemp("balance")) as running:
        yield running


@pytest.fixture
def admin(cluster):
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    yield client
    client.close()


def _http(cluster):
    return [f"http://127.0.0.1:{node.http_port}" for node in cluster.nodes if node.is_running]


def _headrace(cluster, *arguments):
    done = run_headrace(*arguments, "--bootstrap-server", cluster.bootstrap)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _create(cluster, name, **options):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, **options)])[name].result(20)
    wait_until(lambda: cluster.partitions(name), 20, "the topic on the first node")


def _replicas(cluster, topic):
    return {node for each in cluster.partitions(topic).values() for node in each.replicas}


def _fill(cluster, topic, size=SIZE):
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(RECORDS):
        producer.produce(topic, number.to_bytes(4) + bytes(size), partition=number % 6)
    assert producer.flush(60) == 0


def _read(cluster, topic):
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(6)])
    found = []
    deadline = time.monotonic() + 60
    while len(found) < RECORDS and time.monotonic() < deadline:
        found += [
            int.from_bytes(message.value()[:4])
            for message in consumer.consume(500, 1.0)
            if message.error() is None
        ]
    consumer.close()
    return found


def _copied(progress):
    done = {"done", "electing"}
    return sum(move.bytes > 0 and move.state in done for move in progress.plan.moves)


def test_a_cordon_holds_over_a_restart_until_it_is_lifted(cluster, admin):
    resource = KafkaPythonResource(
        ConfigResourceType.BROKER, "3", configs={"cordoned.log.dirs": "*"}
    )
    assert admin.alter_configs([resource])["broker"]["3"] == "OK"
    _create(cluster, "after-cordon", num_partitions=9, replication_factor=2)
    assert _replicas(cluster, "after-cordon") == {1, 2}
    with pytest.raises(KafkaException, match="1 more cordoned"):
        _create(cluster, "wide", num_partitions=1, replication_factor=3)
    controller = cluster.active_controller()
    controller.kill()
    controller.start()
    cluster.wait_complete()
    wait_until(lambda: cordoned_brokers(admin, [1, 2, 3]) == {3}, 20, "the cordon")
    shown = json.loads(_headrace(cluster, "get", "brokers", "-o", "json"))
    assert [each["cordoned"] for each in shown["items"]] == [False, False, True]
    assert "Registered,Cordoned" in _headrace(cluster, "get", "brokers")
    assert "CORDONED" in _headrace(cluster, "get", "cluster")
    assert not {3} & {node for move in fetch_plan(_http(cluster)).moves for node in move.to}
    _headrace(cluster, "cluster", "uncordon", "3")
    _create(cluster, "wide", num_partitions=1, replication_factor=3)
    _headrace(cluster, "cluster", "cordon", "2")
    wait_until(lambda: cordoned_brokers(admin, [1, 2, 3]) == {2}, 20, "the cordon")
    _headrace(cluster, "cluster", "uncordon", "2")


def test_a_plan_goes_on_under_a_throttle_while_it_is_paused_resumed_and_controllers_die(
    cluster, admin
):
    topic = "filled"
    _create(cluster, topic, num_partitions=6, replica_assignment=[[1, 2]] * 6)
    _fill(cluster, topic)
    plan = fetch_plan(_http(cluster), throttle=200_000)
    assert plan.unmeasured_partitions == 0
    assert plan.bytes_total >= 2 * RECORDS * SIZE // 6
    assert plan.estimated_seconds == pytest.approx(plan.bytes_total / 200_000, rel=0.9)
    approve(admin, plan, throttle=200_000, concurrent=1)
    with pytest.raises(BalanceError, match="under way"):
        approve(admin, fetch_plan(_http(cluster), drain=1))

    def progress():
        return fetch_progress(_http(cluster))

    began = time.monotonic()
    wait_until(lambda: _copied(progress()) == 2, 60, "two moves")
    # Half a megabyte each at 200 KB a second. The first second is free, and one fetch may overdraw
    # what time then pays back: the second one cannot end before 1.5 s.
    assert time.monotonic() - began > 1.5
    change_state(admin, "paused")
    wait_until(lambda: progress().plan.state == "paused", 20, "the pause")
    wait_until(lambda: progress().plan.count("moving") == 0, 60, "the end of what moves")
    done = progress().plan.count("done")
    controller = cluster.active_controller()
    controller.kill()
    time.sleep(2)
    assert progress().plan.hash == plan.hash
    assert progress().plan.count("done") == done
    controller.start()
    cluster.wait_complete()
    change_state(admin, "running", throttle=100_000_000, concurrent=5)
    other = cluster.active_controller()
    other.kill()
    wait_until(lambda: cluster.active_controller() is not other, 20, "another controller")
    other.start()
    wait_until(lambda: progress().plan is None, 60, "the end of the plan")
    assert progress().last.startswith(f"{plan.hash} done")
    cluster.wait_complete()
    assert _replicas(cluster, topic) == {1, 2, 3}
    wait_until(lambda: fetch_plan(_http(cluster)).is_empty, 20, "balance")
    assert sorted(_read(cluster, topic)) == list(range(RECORDS))


def test_a_cancelled_plan_puts_back_what_moves(cluster, admin):
    topic = "cancelled"
    _create(cluster, topic, num_partitions=6, replica_assignment=[[1, 2]] * 6)
    # More for each partition than one fetch of a follower takes, which may exceed the throttle.
    _fill(cluster, topic, size=4 * SIZE)
    approve(admin, fetch_plan(_http(cluster), drain=1), throttle=10_000, concurrent=100)
    wait_until(
        lambda: any(3 in each.replicas for each in cluster.partitions(topic).values()), 20, "moves"
    )
    change_state(admin, "cancelled")
    wait_until(lambda: fetch_progress(_http(cluster)).plan is None, 20, "the end of the plan")
    assert "cancelled" in fetch_progress(_http(cluster)).last
    wait_until(lambda: not admin.list_partition_reassignments(), 20, "no reassignments")
    assert _replicas(cluster, topic) == {1, 2}
    assert sorted(_read(cluster, topic)) == list(range(RECORDS))


@pytest.mark.java
def test_kafkas_own_tool_shows_cordons_and_plans_and_cancels_one(cluster, admin):
    tool = ("configs", "--bootstrap-server", cluster.bootstrap, "--entity-type", "brokers")
    one = (*tool, "--entity-name", "2")
    run_tool(*one, "--alter", "--add-config", "cordoned.log.dirs=*")
    assert "cordoned.log.dirs=*" in run_tool(*one, "--describe")
    run_tool(*one, "--alter", "--delete-config", "cordoned.log.dirs")
    wait_until(lambda: not cordoned_brokers(admin, [1, 2, 3]), 20, "the end of the cordon")
    _create(cluster, "by-tool", num_partitions=6, replica_assignment=[[1, 2]] * 6)
    plan = fetch_plan(_http(cluster), drain=1)
    approve(admin, plan, throttle=10_000, concurrent=1)
    change_state(admin, "paused")
    every = (*tool, "--entity-default")
    told = run_tool(*every, "--describe")
    assert f"headrace.balance.plan={plan.hash}" in told
    assert "headrace.balance.state=paused" in told
    run_tool(*every, "--alter", "--add-config", "headrace.balance.state=cancelled")
    wait_until(lambda: fetch_progress(_http(cluster)).plan is None, 20, "the end of the plan")
    assert f"headrace.balance.last={plan.hash} cancelled" in run_tool(*every, "--describe")
