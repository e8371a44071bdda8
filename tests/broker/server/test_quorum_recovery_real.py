"""Two of three voters lose their disks: a person lets the cluster go on with what is left."""

import shutil
from contextlib import suppress

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.errors import KafkaError

from headrace_operator.quorum import UNKNOWN_DIRECTORY, describe_quorum
from support.command_line import run_headrace
from support.headrace_cluster import HeadraceCluster
from support.processes import wait_until

RECORDS = 500
pytestmark = pytest.mark.timeout(240)


def _quorum(bootstrap):
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        return describe_quorum(admin)
    finally:
        admin.close()


def _voters(bootstrap):
    with suppress(KafkaError):
        return {each.node_id for each in _quorum(bootstrap).voters}
    return set()


def _write(cluster):
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    client.create_topics([NewTopic("kept", 3, 3)])["kept"].result(20)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(RECORDS):
        producer.produce("kept", str(number))
    assert producer.flush(30) == 0


def _recover(node, *arguments):
    return run_headrace("recover-quorum", node.write_properties(), *arguments)


def _read_by_librdkafka(bootstrap):
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["kept"])
    found = []
    try:
        wait_until(lambda: found.append(consumer.poll(1.0)) or len(_values(found)) >= RECORDS, 60)
    finally:
        consumer.close()
    return _values(found)


def _values(messages):
    return [int(each.value()) for each in messages if each is not None and not each.error()]


def _read_by_kafka_python(bootstrap):
    consumer = KafkaConsumer(
        "kept",
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
    )
    try:
        return [int(each.value) for _, each in zip(range(RECORDS), consumer, strict=False)]
    finally:
        consumer.close()


def test_the_survivor_goes_on_with_what_it_has_when_a_person_says_so(tmp_path):
    with HeadraceCluster(tmp_path) as cluster:
        _write(cluster)
        wait_until(
            lambda: all(
                each.directory_id != UNKNOWN_DIRECTORY
                for each in _quorum(cluster.nodes[0].bootstrap).voters
            ),
            20,
            "the voters' directory ids",
        )
        survivor, *lost = cluster.nodes
        for node in cluster.nodes:
            node.kill()
            del node.settings["controller.quorum.voters"]
            node.settings["controller.quorum.bootstrap.servers"] = ",".join(
                each.controller_address for each in cluster.nodes
            )
            node.settings["advertised.listeners"] = node.settings["listeners"]
        for node in lost:
            shutil.rmtree(node.log_directory)

        refused = _recover(lost[0], "--execute")
        assert refused.returncode == 2
        assert "has no metadata log" in refused.stderr
        shown = _recover(survivor)
        assert shown.returncode == 0
        assert "nothing was done" in shown.stdout
        request = survivor.log_directory / "recover-alone"
        assert not request.exists()
        done = _recover(survivor, "--execute")
        assert done.returncode == 0, done.stderr
        assert request.exists()

        survivor.start()
        wait_until(lambda: _voters(survivor.bootstrap) == {survivor.node_id}, 60, "its own quorum")
        wait_until(lambda: not request.exists(), 20, "the end of the request")
        # As if it had been killed between its vote and the rest: that is done again.
        survivor.kill()
        request.write_text("1 without 2,3\n")
        survivor.start()
        wait_until(lambda: not request.exists(), 60, "the end of the request")
        for node in lost:
            node.start()

        def are_all_there():
            with suppress(KafkaException):
                client = AdminClient({"bootstrap.servers": survivor.bootstrap})
                return len(client.list_topics(timeout=5).brokers) == len(cluster.nodes)
            return False

        wait_until(are_all_there, 60, "the others")
        wanted = list(range(RECORDS))
        assert sorted(_read_by_librdkafka(survivor.bootstrap)) == wanted
        assert sorted(_read_by_kafka_python(survivor.bootstrap)) == wanted
        # It stays so: the request was for once.
        survivor.kill()
        survivor.start()
        wait_until(lambda: survivor.node_id in _voters(survivor.bootstrap), 60, "its quorum again")
