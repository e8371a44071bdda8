"""Brokers that run out of file descriptors: no disk fails, and nothing acknowledged is lost.

The limit of the running process is lowered to what it has open, for a while.
"""

import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from faults.workload import Workload, create_topic
from support.descriptors import few_descriptors
from support.headrace_broker import HeadraceBroker
from support.headrace_cluster import HeadraceCluster
from support.metrics import scrape, wait_metrics
from support.processes import LOOPBACK, wait_until
from support.streams import FAST_CLIENT, read_partition
from support.wire import broker_ids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FAST_TASKS = {
    "log.flush.offset.checkpoint.interval.ms": "500",
    "log.retention.check.interval.ms": "500",
    "replica.high.watermark.checkpoint.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
}
BEGINS, ENDS = "file descriptors run out", "file descriptors are enough again"


def _value(node, name):
    return next(each.value for each in scrape(node.http_port) if each.name == name)


def _segments(node, topic):
    return len(list(node.log_directory.glob(f"{topic}-*/*.log")))


def _pid(node):
    return node.process.pid


def _log(node):
    return node.process.log_path.read_text(errors="replace")


def _assert_online(node):
    wait_metrics(node.http_port)
    assert _value(node, "headrace_broker_log_directories_offline") == 0
    assert _value(node, "headrace_broker_descriptor_shortages_total") > 0
    assert "offline" not in _log(node)


def _write(bootstrap, topic, count=10):
    """Write, however long the broker refuses it."""
    producer = Producer({**FAST_CLIENT, "bootstrap.servers": bootstrap, "acks": "all"})
    failed = []
    for number in range(count):
        producer.produce(
            topic,
            b"%d" % number,
            partition=0,
            on_delivery=lambda error, _: error and failed.append(error),
        )
    assert producer.flush(60) == 0
    assert not failed


def test_a_broker_writes_on_and_loses_nothing(tmp_path):
    with HeadraceCluster(tmp_path, 1, FAST_TASKS) as cluster:
        (node,) = cluster.nodes
        create_topic(cluster, "t", 3, 1, segment_ms="300")
        create_topic(cluster, "compacted", 1, 1, segment_ms="300", cleanup_policy="compact")
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.list_topics(timeout=10)
        with Workload(cluster, "t") as workload:
            for free in (0, 2):
                with few_descriptors(free, _pid(node)):
                    before = _segments(node, "t")
                    workload.progress(500)
                    assert _segments(node, "t") == before
                    created = admin.create_topics(
                        [NewTopic(f"during-{free}", 1, 1)], request_timeout=60
                    )
                    if free:
                        # The metadata log needs one descriptor at a time, a new partition more.
                        created[f"during-{free}"].result(30)
                        assert not _segments(node, f"during-{free}")
                    time.sleep(2)
                created[f"during-{free}"].result(60)
                _write(node.bootstrap, f"during-{free}")
                before = _segments(node, "t")
                workload.progress(500)
                assert _segments(node, "t") > before
            wait_until(lambda: ENDS in _log(node), 30, "the end of the shortage")
            assert _log(node).count(BEGINS) == 1
            _assert_online(node)
            workload.assert_nothing_is_lost()
        acknowledged = {place: read_partition(node.bootstrap, "t", place) for place in range(3)}
        node.kill()
        node.start()
        cluster.wait_complete()
        for place, reads in acknowledged.items():
            assert read_partition(node.bootstrap, "t", place) == reads
        for free in (0, 2):
            assert len(read_partition(node.bootstrap, f"during-{free}", 0)) == 10


def test_a_cluster_goes_on_while_a_broker_is_short_of_descriptors(tmp_path):
    with HeadraceCluster(tmp_path, 3, FAST_TASKS) as cluster:
        create_topic(cluster, "t", 6, 3, segment_ms="300")
        with Workload(cluster, "t", partitions=6) as workload:
            for node in cluster.nodes:
                for free in (0, 2):
                    with few_descriptors(free, _pid(node)):
                        workload.progress(200)
                        time.sleep(2)
                    assert node.is_running
                    cluster.wait_complete()
                    cluster.wait_in_sync("t")
                    workload.progress(200)
                _assert_online(node)
            workload.assert_nothing_is_lost()


def test_a_start_that_lacks_descriptors_is_refused_and_takes_nothing_offline(tmp_path):
    broker = HeadraceBroker(tmp_path)
    with broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 40, 1)], request_timeout=30)["t"].result(30)
        for partition in range(40):
            producer = Producer({**FAST_CLIENT, "bootstrap.servers": broker.bootstrap})
            producer.produce("t", b"%d" % partition, partition=partition)
            assert producer.flush(30) == 0
    headrace = Path(sys.executable).parent / "headrace"
    for limit in (8, 12, 16, 24, 48):
        command = f"ulimit -n {limit}; exec {headrace} broker {tmp_path / 'broker.properties'}"
        ran = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60
        )
        assert ran.returncode != 0, limit
        assert "is offline" not in ran.stderr
        if limit >= 24:
            assert "broker fails" in ran.stderr or "broker cannot start" in ran.stderr
            assert "ulimit -n" in ran.stderr
    with broker:
        for partition in range(40):
            assert read_partition(broker.bootstrap, "t", partition) == [(0, partition)]


def test_clients_that_cannot_be_accepted_do_not_keep_the_broker_busy(tmp_path):
    with HeadraceBroker(tmp_path) as broker:
        wait_metrics(broker.http_port)
        address = (LOOPBACK, broker.port)
        with few_descriptors(0, broker.pid):
            began = broker.cpu_seconds()
            refused = 0
            for _ in range(100):
                with socket.create_connection(address, 5) as client:
                    client.settimeout(5)
                    with suppress(ConnectionResetError):
                        assert client.recv(1) == b""
                    refused += 1
                time.sleep(0.02)
            assert refused == 100
            assert broker.cpu_seconds() - began < 1
        assert broker_ids(broker.bootstrap) == {1}
