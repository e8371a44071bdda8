"""Three real broker processes make one cluster, lose their controller, and lose nothing."""

import time

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from support.headrace_cluster import HeadraceCluster
from support.processes import wait_until

_CREATE_SECONDS = 10


@pytest.fixture
def cluster(tmp_path):
    with HeadraceCluster(tmp_path) as running:
        yield running


def _admin(bootstrap):
    return AdminClient(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 20,
            "socket.timeout.ms": 3000,
            "topic.metadata.refresh.interval.ms": 100,
        }
    )


def _create(admin, name, partitions=1, factor=1, **config):
    settings = {key.replace("_", "."): value for key, value in config.items()}
    made = admin.create_topics([NewTopic(name, partitions, factor, config=settings)])
    made[name].result(_CREATE_SECONDS)


def _topics(node):
    found = _admin(node.bootstrap).list_topics(timeout=5).topics
    return {name: topic for name, topic in found.items() if not name.startswith("__")}


def _active_controller(cluster, nodes=None):
    """The node that says of itself that it became the active controller in the latest epoch."""
    latest = (-1, None)
    for node in nodes or cluster.nodes:
        for line in (node.directory / "broker.log").read_text().splitlines():
            if 'event="became the active controller"' in line:
                epoch = int(line.rpartition("epoch=")[2].split()[0])
                latest = max(latest, (epoch, node.node_id))
    return cluster.node(latest[1])


def test_topics_made_through_any_node_appear_on_all(cluster):
    for node in cluster.nodes:
        admin = _admin(node.bootstrap)
        _create(admin, f"by-{node.node_id}", 3, 3, retention_ms="5000")
        # The node that answered has applied the change; it need not be the one we know.
        wait_until(lambda node=node: f"by-{node.node_id}" in _topics(node), 1, "the topic")
    names = {f"by-{node.node_id}" for node in cluster.nodes}
    for node in cluster.nodes:
        wait_until(lambda node=node: set(_topics(node)) == names, 5, "all topics on every node")
        for topic in _topics(node).values():
            assert {tuple(sorted(p.replicas)) for p in topic.partitions.values()} == {(1, 2, 3)}
            assert {p.leader for p in topic.partitions.values()} == {1, 2, 3}


def test_every_request_for_the_controller_is_forwarded(cluster):
    for node in cluster.nodes:
        admin, name = _admin(node.bootstrap), f"t{node.node_id}"
        _create(admin, name)
        admin.create_partitions([NewPartitions(name, 4)])[name].result(_CREATE_SECONDS)
        wait_until(
            lambda node=node, name=name: len(_topics(node)[name].partitions) == 4, 1, "growth"
        )
        entry = ConfigEntry("retention.ms", "7", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
        next(iter(admin.incremental_alter_configs([resource]).values())).result(_CREATE_SECONDS)
        described = ConfigResource(ConfigResource.Type.TOPIC, name)
        wait_until(
            lambda admin=admin, described=described: (
                (
                    next(iter(admin.describe_configs([described]).values())).result(5)[
                        "retention.ms"
                    ]
                ).value
                == "7"
            ),
            1,
            "the setting",
        )
        with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
            _create(admin, name)
        admin.delete_topics([name])[name].result(_CREATE_SECONDS)
        wait_until(lambda node=node, name=name: name not in _topics(node), 1, "the deletion")


def test_a_killed_controller_is_replaced_within_about_a_second(cluster):
    _create(_admin(cluster.bootstrap), "before", 6, 3)
    victim = _active_controller(cluster)
    others = [node for node in cluster.nodes if node is not victim]
    victim.kill()
    began = time.monotonic()
    # A client from before may have learned from the victim that it is whom to ask, and wait for it.
    _create(_admin(",".join(node.bootstrap for node in others)), "after", 2, 2)
    taken = time.monotonic() - began
    assert taken < 2.5, "an election on a loaded machine"
    cluster.wait_complete(others)
    for node in others:
        wait_until(
            lambda node=node: all(
                partition.leader not in {-1, victim.node_id}
                for partition in _topics(node)["before"].partitions.values()
            ),
            5,
            "leaders that live",
        )
    victim.start()
    cluster.wait_complete()
    wait_until(lambda: set(_topics(victim)) == {"before", "after"}, 5, "the node to catch up")


def test_a_killed_broker_is_fenced_long_before_its_session_ends(cluster):
    controller = _active_controller(cluster)
    victim = next(node for node in cluster.nodes if node is not controller)
    others = [node for node in cluster.nodes if node is not victim]
    victim.kill()
    told = f'event="broker fenced" broker={victim.node_id} '
    output = controller.directory / "broker.log"
    wait_until(lambda: told in output.read_text(), 1.5, "the fencing")
    # Metadata names its address a little longer.
    cluster.wait_complete(others)


def test_all_killed_at_once_and_restarted_nothing_is_lost(cluster):
    admin = _admin(cluster.bootstrap)
    for number in range(20):
        _create(admin, f"t{number}", 2, 3)
    for node in cluster.nodes:
        node.kill()
    for node in cluster.nodes:
        node.start()
    cluster.wait_complete()
    for node in cluster.nodes:
        assert set(_topics(node)) == {f"t{number}" for number in range(20)}
    _create(admin, "more", 1, 3)


def test_two_of_three_decide_nothing_alone_and_go_on_together(cluster):
    survivor, *others = cluster.nodes
    for node in others:
        node.kill()
    admin = _admin(survivor.bootstrap)
    new = NewTopic("alone", 1, 1)
    with pytest.raises(KafkaException):
        admin.create_topics([new], request_timeout=1.5)["alone"].result(5)
    others[0].start()
    cluster.wait_complete([survivor, others[0]])
    _create(admin, "together", 1, 2)


def test_a_node_that_is_stopped_hands_over_without_a_gap(cluster):
    _create(_admin(cluster.bootstrap), "t", 6, 3)
    controller = _active_controller(cluster)
    others = [node for node in cluster.nodes if node is not controller]
    began = time.monotonic()
    controller.stop()
    stopped = time.monotonic()
    assert stopped - began < 5
    # Not a client from before, as above.
    _create(_admin(",".join(node.bootstrap for node in others)), "after", 1, 2)
    assert time.monotonic() - stopped < 1.5
    controller.start()
    cluster.wait_complete()
