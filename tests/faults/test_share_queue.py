"""Share groups on real processes: none is lost, none comes twice, under kills and pauses.

Short in the ordinary run; `HEADRACE_FAULTS_SECONDS` (`make faults`: ten minutes) is how long the
faults go on.
"""

import os
import random
import time

import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from faults.share_queue import DELIVERIES_MAX, LOCK_MS, PARTITIONS, Queue
from faults.workload import create_topic
from support.headrace_cluster import HeadraceCluster

_SECONDS = float(os.environ.get("HEADRACE_FAULTS_SECONDS", "4"))
_FORMER_LEADER_SECONDS = 15.0
#: How long copies may take to come back is not judged here: others may use the machine.
_IN_SYNC_SECONDS = 180.0
_SETTINGS = {
    "share.coordinator.state.topic.replication.factor": "3",
    "group.share.record.lock.duration.ms": str(LOCK_MS),
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.delivery.count.limit": str(DELIVERIES_MAX),
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500 + 3 * _SECONDS)]


@pytest.fixture
def rng():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - a failure is replayed by it
    return random.Random(seed)


def _open_queue(cluster, topic, rng):
    create_topic(cluster, topic, PARTITIONS)
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    try:
        settings = {"share.auto.offset.reset": "earliest"}
        group = f"{topic}-workers"
        admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, group, settings)])
    finally:
        admin.close()
    return Queue(cluster.bootstrap, topic, rng)


def test_a_queue_is_worked_off_though_brokers_are_killed_and_paused(tmp_path, topic, rng):
    resumed_at = []
    with (
        HeadraceCluster(tmp_path, properties=_SETTINGS) as cluster,
        _open_queue(cluster, topic, rng) as queue,
    ):
        queue.wait_progress(20)
        end = time.monotonic() + _SECONDS
        faults = [("kill", cluster.leader(topic, 0)), ("pause", cluster.leader(topic, 1))]
        while faults or time.monotonic() < end:
            drawn = (rng.choice(("kill", "kill", "pause")), rng.choice(cluster.nodes))
            fault, node = faults.pop(0) if faults else drawn
            getattr(node, fault)()
            time.sleep(rng.uniform(0, 3))
            if fault == "pause":
                node.resume()
                resumed_at.append(time.monotonic())
            else:
                node.start()
            cluster.wait_complete()
            # A second fault within one replica's return would leave one of three in sync.
            for name in (topic, "__share_group_state", "__consumer_offsets"):
                cluster.wait_in_sync(name, _IN_SYNC_SECONDS)
        queue.wait_progress(20)
        queue.assert_worked_off()
    # A leader that was paused beyond its session may deliver before it hears of its successor.
    again = [
        (number, done_at, began_at)
        for number, done_at, began_at in queue.ledger.again
        if not any(abs(began_at - at) < _FORMER_LEADER_SECONDS for at in resumed_at)
    ]
    assert not again, f"delivered after they were done: {again[:10]}; {queue}"
    print(queue)  # noqa: T201 - how much was tested
