"""Controllers and brokers as processes of their own: observers, snapshots, late comers."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.headrace_cluster import HeadraceCluster
from support.processes import wait_until
from support.wire import broker_ids


@pytest.fixture
def cluster(tmp_path):
    """A controller (1) and three brokers, of which the last finds it by a bootstrap server."""
    made = HeadraceCluster(tmp_path, 4)
    controller, *brokers = made.nodes
    for node in made.nodes:
        node.settings["controller.quorum.voters"] = f"1@{controller.controller_address}"
        node.settings["metadata.log.max.record.bytes.between.snapshots"] = "2000"
    del controller.settings["advertised.listeners"]
    controller.settings["process.roles"] = "controller"
    controller.settings["listeners"] = f"CONTROLLER://{controller.controller_address}"
    for node in brokers:
        node.settings["process.roles"] = "broker"
        node.settings["listeners"] = f"PLAINTEXT://{node.bootstrap}"
    del brokers[-1].settings["controller.quorum.voters"]
    address = controller.controller_address
    brokers[-1].settings["controller.quorum.bootstrap.servers"] = address
    try:
        yield made
    finally:
        for node in made.nodes:
            if node.is_running:
                node.kill()


def _wait_for_brokers(node, ids):
    wait_until(lambda: broker_ids(node.bootstrap) == ids, 20, f"{ids} on node {node.node_id}")


def test_a_late_broker_begins_with_a_snapshot_and_all_live_through_a_new_controller(cluster):
    controller, first, second, late = cluster.nodes
    for node in (controller, first, second):
        node.start()
    _wait_for_brokers(first, {2, 3})
    admin = AdminClient({"bootstrap.servers": first.bootstrap})
    for number in range(40):
        name = f"t{number}"
        admin.create_topics([NewTopic(name, 2, 2)])[name].result(10)
    folder = controller.log_directory / "__cluster_metadata-0"
    wait_until(lambda: list(folder.glob("*.checkpoint")), 5, "a snapshot")
    late.start()
    _wait_for_brokers(late, {2, 3, 4})
    late_folder = late.log_directory / "__cluster_metadata-0"
    assert not (late_folder / "00000000000000000000.log").exists()
    found = AdminClient({"bootstrap.servers": late.bootstrap}).list_topics(timeout=5)
    assert set(found.topics) == {f"t{number}" for number in range(40)}
    controller.kill()
    controller.start()
    admin.create_topics([NewTopic("after", 3, 3)])["after"].result(20)
    late.stop()
    _wait_for_brokers(first, {2, 3})
