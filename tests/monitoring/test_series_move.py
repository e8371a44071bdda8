"""Every series that an alert rests on moves when it should, on three real brokers."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kio.schema.alter_partition_reassignments.v0.request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

from support.clusters import ClusterNode
from support.headrace_broker import HeadraceBroker
from support.headrace_cluster import HeadraceCluster
from support.metrics import Scrapes, scrape, wait_metrics
from support.processes import wait_until
from support.wire import RawConnection

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[HeadraceCluster]:
    # A broker that was killed is missed at once; one that is late is out after two seconds.
    properties = {"replica.lag.time.max.ms": "2000", "group.share.delivery.count.limit": "2"}
    with HeadraceCluster(tmp_path, properties=properties) as running:
        wait_metrics(*(node.http_port for node in running.nodes))
        yield running


def create(cluster: HeadraceCluster, name: str, partitions: int, replicas: int, **config: str):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, replicas, config=settings)])[name].result(30)
    cluster.wait_in_sync(name)


def produce(cluster: HeadraceCluster, topic: str, partition: int, timestamps: list[int]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for timestamp in timestamps:
        producer.produce(topic, b"x", partition=partition, timestamp=timestamp)
    assert producer.flush(30) == 0


def commit(cluster: HeadraceCluster, group: str, *offsets: TopicPartition) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    consumer.commit(offsets=list(offsets), asynchronous=False)
    consumer.close()


def scrapes_until(cluster: HeadraceCluster, name: str, is_right, seconds: float = 30) -> Scrapes:
    """Scrape until the sum of a name over the nodes is right."""
    found: list[Scrapes] = []

    def holds() -> bool:
        with suppress(OSError):
            found[:] = [Scrapes(cluster.nodes)]
        return bool(found) and bool(is_right(found[0].sum(name)))

    wait_until(holds, seconds, name)
    return found[0]


def test_a_cluster_at_rest_has_one_controller_and_nothing_out_of_sync(
    cluster: HeadraceCluster,
) -> None:
    create(cluster, "rest", 3, 3)
    found = Scrapes(cluster.nodes, "/metrics/summary")
    assert found.sum("headrace_broker_active_controller") == 1
    assert found.one("headrace_cluster_brokers_active") == 3
    assert found.one("headrace_cluster_brokers_fenced") == 0
    assert found.one("headrace_cluster_offline_partitions") == 0
    assert found.one("kafka_topic_partitions", topic="rest") == 3
    assert found.sum("headrace_broker_under_replicated_partitions") == 0
    assert found.sum("headrace_broker_under_min_isr_partitions") == 0
    assert found.sum("headrace_broker_quorum_has_leader") == 3
    assert found.sum("headrace_broker_log_directory_online") == 3
    free = found.values("headrace_broker_disk_free_bytes")
    total = found.values("headrace_broker_disk_total_bytes")
    assert all(0 < some < most for some, most in zip(free, total, strict=True))
    assert not [sample.name for sample in found.every if "partition" in sample.labels]


def test_lag_is_exact_also_where_the_coordinator_has_no_replica(cluster: HeadraceCluster) -> None:
    create(cluster, "spread", 3, 1)
    now_ms = int(time.time() * 1000)
    for partition in range(3):
        produce(cluster, "spread", partition, [now_ms - 500_000, now_ms - 100_000, now_ms])
    offsets = [TopicPartition("spread", partition, partition + 1) for partition in range(3)]
    commit(cluster, "reader", *offsets)
    found = Scrapes(cluster.nodes)
    of = {"consumergroup": "reader", "topic": "spread"}
    assert found.one("kafka_consumergroup_lag_sum", **of) == 2 + 1 + 0
    assert found.one("kafka_consumergroup_lag", partition="0", **of) == 2
    assert found.one("kafka_consumergroup_lag", partition="2", **of) == 0
    assert found.one("kafka_consumergroup_current_offset_sum", **of) == 6
    assert found.one("headrace_consumergroup_partition_lag_max", **of) == 2
    assert found.one("headrace_consumergroup_lagging_partitions", **of) == 2
    assert 100 <= found.one("kafka_consumergroup_group_lag_seconds", **of) < 130
    committed = found.one("headrace_consumergroup_last_commit_timestamp_seconds", **of)
    assert abs(committed - time.time()) < 60
    # Each offset is reported by one broker, its partition's leader.
    assert found.one("kafka_topic_partition_current_offset", topic="spread", partition="1") == 3
    assert found.sum("headrace_topic_current_offset_sum", topic="spread") == 9
    commit(cluster, "reader", *[TopicPartition("spread", index, 3) for index in range(3)])
    after = Scrapes(cluster.nodes, "/metrics/summary")
    assert after.one("kafka_consumergroup_lag_sum", **of) == 0
    assert after.one("kafka_consumergroup_group_lag_seconds", **of) == 0


def test_each_kind_of_group_has_members_and_lag(cluster: HeadraceCluster) -> None:
    create(cluster, "kinds", 1, 3)
    produce(cluster, "kinds", 0, [int(time.time() * 1000)] * 3)
    for kind in ("classic", "consumer"):
        more = {"group.protocol": kind, "auto.offset.reset": "earliest"}
        consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": kind, "enable.auto.commit": False}
            | more
        )
        consumer.subscribe(["kinds"])
        read: list[object] = []
        wait_until(lambda: read.append(consumer.poll(1)) or any(read), 60, "a record")  # noqa: B023 (called at once)
        consumer.commit(offsets=[TopicPartition("kinds", 0, 1)], asynchronous=False)
        found = Scrapes(cluster.nodes, "/metrics/summary")
        of = {"consumergroup": kind, "type": kind, "state": "Stable"}
        assert found.one("kafka_consumergroup_members", **of) == 1
        assert found.one("kafka_consumergroup_lag_sum", consumergroup=kind, topic="kinds") == 2
        consumer.close()


def test_a_share_groups_lag_is_reported_also_while_nobody_reads(cluster: HeadraceCluster) -> None:
    create(cluster, "queue", 3, 1)
    now_ms = int(time.time() * 1000)
    for partition in range(3):
        produce(cluster, "queue", partition, [now_ms - 100_000] * 4)
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    settings = {"share.auto.offset.reset": "earliest"}
    admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, "workers", settings)])
    admin.close()
    consumer = ShareConsumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "workers",
            "share.acknowledgement.mode": "explicit",
        }
    )
    consumer.subscribe(["queue"])
    kinds = {
        0: AcknowledgeType.RELEASE,
        1: AcknowledgeType.ACCEPT,
        2: AcknowledgeType.REJECT,
        3: AcknowledgeType.ACCEPT,
    }
    # Each record is given out once, and the three that are released once more.
    given: list[tuple[int, int]] = []

    def read() -> bool:
        for message in consumer.poll(1.0):
            where = (message.partition(), message.offset())
            kind = kinds[message.offset()]
            if where == (0, 0) and where in given:
                kind = AcknowledgeType.RELEASE
            elif where in given:
                kind = AcknowledgeType.ACCEPT
            given.append(where)
            consumer.acknowledge(message, kind)
        consumer.commit_sync(30)
        return len(given) == 15

    wait_until(read, 60, "all records")
    of = {"sharegroup": "workers", "topic": "queue"}
    produce(cluster, "queue", 2, [now_ms - 50_000] * 5)
    consumer.close()
    found = scrapes_until(cluster, "headrace_sharegroup_lag", lambda sum_: sum_ == 5)
    found = scrapes_until(cluster, "kafka_consumergroup_members", lambda sum_: sum_ == 0)
    assert found.one("headrace_sharegroup_lag", **of) == 5
    assert found.one("headrace_sharegroup_start_offset_sum", **of) == 12
    assert 50 <= found.one("headrace_sharegroup_lag_seconds", **of) < 90
    assert found.one("headrace_sharegroup_start_offset", partition="1", **of) == 4
    assert found.one("kafka_consumergroup_members", type="share", state="Empty") == 0
    name = "headrace_sharegroup_archived_records_total"
    assert found.sum(name, sharegroup="workers", reason="rejected") == 3
    assert found.sum(name, sharegroup="workers", reason="delivery_limit") == 1
    assert found.sum("headrace_sharegroup_redelivered_records_total", sharegroup="workers") == 3
    assert found.sum("headrace_sharegroup_records_in_flight", **of) == 0


def test_records_that_retention_took_from_a_group_are_counted(cluster: HeadraceCluster) -> None:
    create(cluster, "short", 1, 3, retention_ms="60000")
    produce(cluster, "short", 0, [int(time.time() * 1000)] * 5)
    commit(cluster, "late", TopicPartition("short", 0, 1))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    at = TopicPartition("short", 0, 4)
    admin.delete_records([at])[at].result(30)
    of = {"consumergroup": "late", "topic": "short"}
    found = scrapes_until(cluster, "headrace_consumergroup_expired_records", lambda sum_: sum_ > 0)
    assert found.one("headrace_consumergroup_expired_records", **of) == 3
    assert found.one("kafka_consumergroup_lag_sum", **of) == 1
    assert found.one("headrace_topic_retention_seconds", topic="short") == 60


def test_a_killed_broker_shows_as_under_replicated_and_goes_away_when_it_is_back(
    cluster: HeadraceCluster,
) -> None:
    create(cluster, "copied", 3, 3)
    create(cluster, "strict", 1, 3, min_insync_replicas="3")
    create(cluster, "single", 3, 1, min_insync_replicas="1")
    before = Scrapes(cluster.nodes)
    victim = next(node for node in cluster.nodes if node is not cluster.active_controller())
    alone = [p for p in cluster.partitions("single").values() if p.leader == victim.node_id]
    victim.kill()
    down = scrapes_until(cluster, "headrace_cluster_brokers_fenced", lambda sum_: sum_ == 1)
    down = scrapes_until(
        cluster, "headrace_broker_under_replicated_partitions", lambda sum_: sum_ >= 4
    )
    assert down.one("headrace_cluster_brokers_active") == 2
    assert down.one("headrace_cluster_offline_partitions") == len(alone)
    assert down.sum("headrace_broker_under_min_isr_partitions") == 1
    assert down.sum("headrace_broker_at_min_isr_partitions") >= 3
    assert down.sum("headrace_topic_under_replicated_partitions", topic="copied") == 3
    assert _grew(before, down, "headrace_broker_isr_shrinks_total", victim) >= 4
    assert _grew(before, down, "headrace_broker_leader_elections_total", victim) >= 1
    assert _grew(before, down, "headrace_broker_unclean_leader_elections_total", victim) == 0
    victim.start()
    cluster.wait_complete()
    wait_metrics(victim.http_port)
    up = scrapes_until(
        cluster, "headrace_broker_under_replicated_partitions", lambda sum_: sum_ == 0, 60
    )
    assert up.one("headrace_cluster_offline_partitions") == 0
    assert up.sum("headrace_broker_under_min_isr_partitions") == 0
    assert _grew(down, up, "headrace_broker_isr_expands_total", victim) >= 4
    # A restart does not count again what happened before it.
    own = [sample for sample in up.by_node[victim.node_id] if "isr_expands" in sample.name]
    assert own[0].value <= 6


def test_a_replica_that_is_being_added_is_not_missed(cluster: HeadraceCluster) -> None:
    create(cluster, "moving", 1, 1)
    leader = cluster.leader("moving")
    victim = next(
        node for node in cluster.others(leader) if node is not cluster.active_controller()
    )
    victim.kill()  # what it should copy stays uncopied
    scrapes_until(cluster, "headrace_cluster_brokers_fenced", lambda sum_: sum_ == 1)
    wanted = ReassignablePartition(partition_index=0, replicas=(leader.node_id, victim.node_id))
    request = AlterPartitionReassignmentsRequest(
        topics=(ReassignableTopic(name="moving", partitions=(wanted,)),)
    )
    with RawConnection(leader.bootstrap, 30) as connection:
        assert connection.call(request).error_code == 0
    found = scrapes_until(
        cluster, "headrace_cluster_reassigning_partitions", lambda sum_: sum_ == 1
    )
    at = {"topic": "moving", "partition": "0"}
    assert found.one("kafka_topic_partition_replicas", **at) == 2
    assert found.one("kafka_topic_partition_in_sync_replica", **at) == 1
    assert found.one("kafka_topic_partition_under_replicated_partition", **at) == 0
    assert found.sum("headrace_topic_under_replicated_partitions", topic="moving") == 0


def test_the_controllership_moves_with_its_node(cluster: HeadraceCluster) -> None:
    cluster.active_controller().kill()
    found = scrapes_until(cluster, "headrace_broker_active_controller", lambda sum_: sum_ == 1)
    assert found.one("headrace_cluster_brokers_active") <= 3


def test_an_unclean_election_is_counted_once(cluster: HeadraceCluster) -> None:
    config = {"unclean_leader_election_enable": "true", "min_insync_replicas": "1"}
    create(cluster, "risky", 1, 2, **config)
    state = cluster.partitions("risky")[0]
    leader = cluster.node(state.leader)
    follower = cluster.node(next(node for node in state.replicas if node != state.leader))
    follower.kill()
    wait_until(lambda: cluster.partitions("risky")[0].isr == (leader.node_id,), 30, "shrink")
    produce(cluster, "risky", 0, [1, 2, 3])
    leader.kill()
    follower.start()
    wait_metrics(follower.http_port)
    found = scrapes_until(
        cluster, "headrace_broker_unclean_leader_elections_total", lambda sum_: sum_ > 0, 60
    )
    assert found.sum("headrace_broker_unclean_leader_elections_total") == 1


def _grew(before: Scrapes, after: Scrapes, name: str, gone: ClusterNode) -> float:
    """By how much a counter grew on the nodes that ran all the while."""

    def total(scrapes: Scrapes) -> float:
        return sum(
            sample.value
            for node_id, samples in scrapes.by_node.items()
            for sample in samples
            if sample.name == name and node_id != gone.node_id
        )

    return total(after) - total(before)


def test_series_are_bounded_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    bounds = {
        "headrace.metrics.partitions.max": "4",
        "headrace.metrics.topics.max": "2",
        "headrace.metrics.groups.max": "2",
    }
    with HeadraceBroker(tmp_path, bounds) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topics = [NewTopic(f"many-{number}", 3, 1) for number in range(4)]
        for created in admin.create_topics(topics).values():
            created.result(30)
        for number in range(4):
            consumer = Consumer(
                {"bootstrap.servers": broker.bootstrap, "group.id": f"group-{number}"}
            )
            consumer.commit(offsets=[TopicPartition("many-0", 0, 0)], asynchronous=False)
            consumer.close()
        wait_metrics(broker.http_port)
        found = scrape(broker.http_port)
    of = "kafka_topic_partition_current_offset"
    assert sum(sample.name == of for sample in found) == 4
    assert sum(sample.name == "headrace_topic_log_size_bytes" for sample in found) == 2
    assert sum(sample.name == "kafka_consumergroup_lag_sum" for sample in found) == 2
    omitted = {
        sample.labels["kind"]: sample.value
        for sample in found
        if sample.name == "headrace_broker_metrics_omitted"
    }
    assert omitted["groups"] == 2
    assert omitted["topics"] >= 2
    assert omitted["partitions"] >= 8
