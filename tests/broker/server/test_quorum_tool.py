"""Kafka's own tool describes our quorum and removes a voter (KIP-853)."""

import re

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.headrace_cluster import HeadraceCluster
from support.kafka_peer import run_tool
from support.processes import wait_until


def _voters(node):
    told = run_tool("metadata-quorum", "--bootstrap-server", node.bootstrap, "describe", "--status")
    voters = re.search(r"CurrentVoters: +(.*)", told)
    leader = re.search(r"LeaderId: +(\d+)", told)
    found = re.findall(r'"id": (\d+), "directoryId": "([^"]+)"', voters[1])
    return {int(node_id): directory for node_id, directory in found}, int(leader[1])


@pytest.mark.java
def test_kafkas_tool_describes_the_quorum_and_removes_a_voter(tmp_path):
    with HeadraceCluster(tmp_path) as cluster:
        voters, leader = _voters(cluster.nodes[0])
        assert set(voters) == {1, 2, 3}
        asked = run_tool(
            "metadata-quorum",
            "--bootstrap-controller",
            cluster.nodes[1].controller_address,
            "describe",
            "--replication",
        )
        assert asked.count("Follower") == 2
        gone = min(set(voters) - {leader})
        run_tool(
            "metadata-quorum",
            "--bootstrap-server",
            cluster.node(leader).bootstrap,
            "remove-controller",
            "--controller-id",
            str(gone),
            "--controller-directory-id",
            voters[gone],
        )
        wait_until(
            lambda: set(_voters(cluster.nodes[0])[0]) == set(voters) - {gone}, 20, "the removal"
        )
        # It is an observer now, and its broker goes on.
        admin = AdminClient({"bootstrap.servers": cluster.node(gone).bootstrap})
        admin.create_topics([NewTopic("t", 1, 3)])["t"].result(10)
