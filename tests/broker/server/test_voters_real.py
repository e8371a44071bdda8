"""Voters of real broker processes come, go and get new disks, by Kafka's tool and by ours."""

import re
import shutil

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient

from headrace_operator.quorum import (
    UNKNOWN_DIRECTORY,
    QuorumError,
    describe_quorum,
    remove_voter,
)
from support.command_line import run_headrace
from support.headrace_cluster import HeadraceCluster
from support.kafka_peer import run_tool
from support.processes import LOOPBACK, wait_until


@pytest.fixture
def cluster(tmp_path):
    with HeadraceCluster(tmp_path) as running:
        _create(running, "kept", 6, 3)
        _write(running)
        # Voters tell their disks' ids once they follow a leader.
        wait_until(lambda: _are_disks_known(running), 20, "the voters' directory ids")
        yield running


def _are_disks_known(cluster):
    return all(each.directory_id != UNKNOWN_DIRECTORY for each in _quorum(cluster).voters)


def _write(cluster, count=200):
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(count):
        producer.produce("kept", str(number))
    assert producer.flush(30) == 0


def _quorum(cluster):
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    try:
        return describe_quorum(admin)
    finally:
        admin.close()


def _directories(cluster, node_id):
    """The directory ids under which a node votes and only follows."""
    quorum = _quorum(cluster)
    return tuple(
        [each.directory_id for each in replicas if each.node_id == node_id]
        for replicas in (quorum.voters, quorum.observers)
    )


def _voters(cluster):
    return {each.node_id for each in _quorum(cluster).voters}


def _follower(cluster):
    quorum = _quorum(cluster)
    return cluster.node(
        min(each.node_id for each in quorum.voters if each.node_id != quorum.leader_id)
    )


def _replace_disk(cluster, node, *, auto_join):
    """A new machine in the place of a dead one: an empty disk, and where to find the others."""
    node.kill()
    shutil.rmtree(node.log_directory)
    del node.settings["controller.quorum.voters"]
    node.settings["controller.quorum.bootstrap.servers"] = ",".join(
        each.controller_address for each in cluster.nodes
    )
    node.settings["advertised.listeners"] = node.settings["listeners"]
    node.settings["controller.quorum.auto.join.enable"] = str(auto_join).lower()
    node.start()
    cluster.wait_complete()


def _wait_in_sync(cluster):
    wait_until(
        lambda: all(len(each.isr) == 3 for each in cluster.partitions("kept").values()),
        60,
        "all replicas in sync",
    )


def _create(cluster, name, partitions=1, factor=1):
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    client.create_topics([NewTopic(name, partitions, factor)])[name].result(20)


def _headrace(cluster, *arguments, status=0):
    done = run_headrace("cluster", "voters", *arguments, "--bootstrap-server", cluster.bootstrap)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.java
def test_kafkas_tool_lets_a_voter_with_a_new_disk_vote_again(cluster):
    node = _follower(cluster)
    (old,), _ = _directories(cluster, node.node_id)
    _replace_disk(cluster, node, auto_join=False)
    wait_until(lambda: _directories(cluster, node.node_id)[1], 20, "the observer")
    voting, (new,) = _directories(cluster, node.node_id)
    assert voting == [old] != [new]
    _wait_in_sync(cluster)
    tool = ("metadata-quorum", "--bootstrap-server", cluster.bootstrap)
    told = run_tool(*tool, "describe", "--status")
    directory = re.search(rf'"id": {node.node_id}, "directoryId": "([^"]+)"', told)[1]
    who = ("--controller-id", str(node.node_id), "--controller-directory-id", directory)
    run_tool(*tool, "remove-controller", *who)
    run_tool(*tool, "--command-config", str(node.write_properties()), "add-controller")
    wait_until(lambda: _directories(cluster, node.node_id)[0] == [new], 20, "the vote")
    # It counts: without one of the others the metadata goes on, and what was written is there.
    other = next(each for each in cluster.nodes if each is not node)
    other.kill()
    _create(cluster, "by-two")
    _write(cluster)
    other.start()
    cluster.wait_complete()
    _wait_in_sync(cluster)


def test_a_controller_with_a_new_disk_joins_by_itself_where_it_may(cluster):
    for node in (_follower(cluster), cluster.active_controller()):
        (old,), _ = _directories(cluster, node.node_id)
        _replace_disk(cluster, node, auto_join=True)
        _wait_in_sync(cluster)
        wait_until(lambda node=node: _directories(cluster, node.node_id)[0], 30, "the vote")
        wait_until(
            lambda node=node, old=old: _directories(cluster, node.node_id)[0] != [old],
            30,
            "the new disk's vote",
        )
        assert _voters(cluster) == {1, 2, 3}
        _write(cluster)
    cluster.stop()
    cluster.restart()
    _create(cluster, "after")


def test_voters_shrink_to_one_and_grow_again_by_command(cluster):
    leader = _quorum(cluster).leader_id
    gone = sorted({1, 2, 3} - {leader})
    for node_id in gone:
        _headrace(cluster, "remove", node_id)
    wait_until(lambda: _voters(cluster) == {leader}, 20, "a quorum of one")
    addresses, (last,) = [(LOOPBACK, cluster.node(leader).port)], _quorum(cluster).voters
    with pytest.raises(QuorumError, match="last voter"):
        remove_voter(addresses, last)
    for node_id in gone:
        cluster.node(node_id).kill()
    # Nobody else is asked any more.
    _create(cluster, "alone")
    for node_id in gone:
        cluster.node(node_id).start()
    cluster.wait_complete()
    told = _headrace(cluster, "list")
    assert (told.count("leader"), told.count("voter"), told.count("observer")) == (1, 0, 2)
    assert "not one that votes" in _headrace(cluster, "remove", gone[0], status=1)
    for node_id in gone:
        listener = cluster.node(node_id).controller_address
        _headrace(cluster, "add", node_id, "--listener", listener)
    assert _voters(cluster) == {1, 2, 3}
    cluster.node(leader).kill()
    _create(cluster, "without-the-first")
    cluster.node(leader).start()
    cluster.wait_complete()
    _wait_in_sync(cluster)


def test_the_leader_removes_itself_and_another_takes_over(cluster):
    leader = _quorum(cluster).leader_id
    _headrace(cluster, "remove", leader)
    wait_until(lambda: _voters(cluster) == {1, 2, 3} - {leader}, 20, "the removal")
    wait_until(lambda: _quorum(cluster).leader_id not in {leader, -1}, 20, "another leader")
    _create(cluster, "next")
    _write(cluster)
