"""Plans keep what must be kept, reach the bounds that they promise, and then have nothing to do."""

import time
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_broker.balancer.model import BrokerModel, ClusterModel, PartitionModel
from headrace_broker.balancer.plans import plan_drain, plan_rebalance
from support.metadata import seeded_rng


def _cluster(brokers, partitions, *, racks=0, seed=1, factor=None, skew=1.0):
    """Partitions placed at random; with `skew` below 1 most of them are on the first brokers."""
    rng = seeded_rng(seed)
    nodes = list(range(1, brokers + 1))
    made = []
    for index in range(partitions):
        few = nodes[: max(1, int(brokers * skew))] if rng.random() < 0.8 else nodes
        count = min(factor or rng.randint(1, 3), brokers)
        pool = few if len(few) >= count else nodes
        replicas = tuple(rng.sample(pool, count))
        made.append(
            PartitionModel(
                topic=f"t{index % 7}",
                index=index // 7,
                replicas=replicas,
                leader=replicas[0],
                isr=replicas,
                size_bytes=rng.randint(0, 1000),
                bytes_in_per_second=rng.random() * 10,
            )
        )
    return ClusterModel(
        brokers=tuple(
            BrokerModel(node_id=node, rack=f"r{node % racks}" if racks else None) for node in nodes
        ),
        partitions=tuple(made),
    )


def _applied(cluster, plan):
    """The cluster when the plan is done."""
    after = {(partition.topic, partition.index): partition for partition in cluster.partitions}
    for move in plan.moves:
        before = after[move.topic, move.partition]
        assert before.replicas == move.from_replicas
        to = move.to_replicas
        leader = before.leader if before.leader in to else to[0]
        after[move.topic, move.partition] = replace(before, replicas=to, isr=to, leader=leader)
    for move in plan.leader_moves:
        before = after[move.topic, move.partition]
        assert sorted(before.replicas) == sorted(move.replicas)
        assert move.replicas[0] == move.to_leader
        after[move.topic, move.partition] = replace(
            before, replicas=move.replicas, leader=move.to_leader
        )
    return replace(cluster, partitions=tuple(after.values()))


def _replica_counts(cluster):
    counts = Counter({broker.node_id: 0 for broker in cluster.brokers})
    counts.update(node for partition in cluster.partitions for node in partition.replicas)
    return counts


def _leader_counts(cluster):
    counts = Counter({broker.node_id: 0 for broker in cluster.brokers})
    counts.update(partition.leader for partition in cluster.partitions)
    return counts


def _racks(cluster, partition):
    racks = {broker.node_id: broker.rack for broker in cluster.brokers}
    return len({racks[node] for node in partition.replicas})


def _check_kept(before, after):
    for old, new in zip(before.partitions, after.partitions, strict=True):
        assert len(new.replicas) == len(old.replicas)
        assert len(set(new.replicas)) == len(new.replicas)
        assert new.leader in new.replicas


_SHAPES = {
    "brokers": st.integers(1, 9),
    "partitions": st.integers(0, 80),
    "skew": st.sampled_from([0.4, 0.7, 1.0]),
    "seed": st.integers(0, 10_000),
}


@settings(deadline=None)
@given(**_SHAPES)
def test_a_rebalance_evens_out_replicas_and_keeps_the_replication_factor(**shape):
    cluster = _cluster(**shape)
    after = _applied(cluster, plan_rebalance(cluster))
    _check_kept(cluster, after)
    counts = _replica_counts(after).values()
    assert max(counts) - min(counts) <= 1


@settings(deadline=None)
@given(**_SHAPES)
def test_a_balanced_cluster_needs_no_plan(**shape):
    cluster = _cluster(**shape)
    after = _applied(cluster, plan_rebalance(cluster))
    assert plan_rebalance(after).is_empty


@settings(deadline=None)
@given(racks=st.integers(2, 4), **_SHAPES)
def test_a_rebalance_uses_all_racks_and_loses_none(racks, **shape):
    cluster = _cluster(racks=racks, **shape)
    after = _applied(cluster, plan_rebalance(cluster))
    _check_kept(cluster, after)
    there = len({broker.rack for broker in cluster.brokers})
    for partition in after.partitions:
        assert _racks(after, partition) == min(there, len(partition.replicas))
    assert plan_rebalance(after).is_empty


@settings(deadline=None)
@given(brokers=st.integers(1, 9), partitions=st.integers(0, 60), seed=st.integers(0, 999))
def test_leaders_are_even_where_the_replicas_allow_it(brokers, partitions, seed):
    cluster = _cluster(brokers, partitions, factor=3, seed=seed)
    after = _applied(cluster, plan_rebalance(cluster))
    counts = _leader_counts(after)
    if brokers <= 3:
        # Every broker can lead everything.
        assert max(counts.values()) - min(counts.values()) <= 1
    # No hand-over from one broker to another would help.
    for partition in after.partitions:
        for node in partition.replicas:
            assert counts[partition.leader] - counts[node] <= 1


@settings(deadline=None)
@given(racks=st.sampled_from([0, 2, 3]), leaving=st.integers(1, 8), **_SHAPES)
def test_a_drain_leaves_the_broker_empty(racks, leaving, **shape):
    shape["brokers"] = max(4, shape["brokers"])
    leaving = min(leaving, shape["brokers"])
    cluster = _cluster(racks=racks, **shape)
    plan = plan_drain(cluster, leaving)
    after = _applied(cluster, plan)
    _check_kept(cluster, after)
    assert _replica_counts(after)[leaving] == 0
    assert not plan.reasons
    for move in plan.moves:
        assert leaving in move.from_replicas


def test_a_drain_says_what_cannot_move():
    cluster = _cluster(3, 4, factor=3)
    plan = plan_drain(cluster, 2)
    assert not plan.moves
    assert len(plan.reasons) == 4
    assert "t0-0 stays on 2" in plan.reasons[0]


def test_a_dead_broker_is_drained_and_leads_nothing_afterwards():
    cluster = _cluster(4, 20, factor=3)
    dead = 2
    cluster = ClusterModel(
        brokers=tuple(
            replace(broker, is_alive=broker.node_id != dead) for broker in cluster.brokers
        ),
        partitions=tuple(
            replace(
                partition,
                isr=tuple(node for node in partition.isr if node != dead),
                leader=next(node for node in partition.replicas if node != dead),
            )
            for partition in cluster.partitions
        ),
    )
    after = _applied(cluster, plan_drain(cluster, dead))
    assert _replica_counts(after)[dead] == 0
    assert _leader_counts(after)[dead] == 0


def test_a_cordoned_broker_gets_nothing_and_gives_nothing():
    cluster = _cluster(4, 40, factor=2, skew=0.5)
    cordoned = 4
    brokers = tuple(
        replace(broker, is_cordoned=broker.node_id == cordoned) for broker in cluster.brokers
    )
    cluster = replace(cluster, brokers=brokers)
    after = _applied(cluster, plan_rebalance(cluster))
    for old, new in zip(cluster.partitions, after.partitions, strict=True):
        assert (cordoned in old.replicas) == (cordoned in new.replicas)


def test_a_broker_with_twice_the_capacity_gets_twice_the_replicas():
    cluster = _cluster(3, 80, factor=1)
    brokers = tuple(
        replace(broker, capacity=2.0 if broker.node_id == 3 else 1.0) for broker in cluster.brokers
    )
    counts = _replica_counts(
        _applied(
            replace(cluster, brokers=brokers), plan_rebalance(replace(cluster, brokers=brokers))
        )
    )
    assert counts == {1: 20, 2: 20, 3: 40}


def test_heavy_partitions_are_spread_though_the_numbers_are_even():
    partitions = tuple(
        PartitionModel(
            topic="t",
            index=index,
            replicas=(1 + index // 4,),
            leader=1 + index // 4,
            isr=(1 + index // 4,),
            size_bytes=1000 if index < 4 else 1,
        )
        for index in range(16)
    )
    cluster = ClusterModel(
        brokers=tuple(BrokerModel(node_id=node) for node in range(1, 5)), partitions=partitions
    )
    after = _applied(cluster, plan_rebalance(cluster))
    heavy = Counter(
        partition.replicas[0] for partition in after.partitions if partition.size_bytes > 1
    )
    assert heavy == {1: 1, 2: 1, 3: 1, 4: 1}
    assert set(_replica_counts(after).values()) == {4}


def test_partitions_out_of_sync_or_on_the_move_are_left_alone():
    cluster = _cluster(4, 30, factor=2, skew=0.5)
    partitions = tuple(
        replace(partition, isr=partition.isr[:1], is_reassigning=index % 2 == 0)
        for index, partition in enumerate(cluster.partitions)
    )
    plan = plan_rebalance(replace(cluster, partitions=partitions))
    assert not plan.moves
    assert plan.reasons == ("30 partitions are not in sync or on the move: left alone",)


def test_the_same_cluster_has_the_same_plan_with_the_same_digest():
    cluster = _cluster(5, 60, skew=0.4)
    first, second = plan_rebalance(cluster), plan_rebalance(cluster)
    assert first == second
    assert first.digest == second.digest
    assert first.digest != plan_drain(cluster, 1).digest


def test_the_estimate_is_the_slowest_brokers_copying():
    cluster = _cluster(3, 12, factor=1)
    grown = replace(cluster, brokers=(*cluster.brokers, BrokerModel(node_id=4)))
    plan = plan_rebalance(grown, throttle_bytes_per_second=100.0)
    assert plan.bytes_total == sum(move.size_bytes for move in plan.moves) > 0
    assert 0 < plan.estimated_seconds <= plan.bytes_total / 100


def test_ten_thousand_partitions_are_planned_in_bounded_time():
    cluster = _cluster(12, 10_000, factor=3, racks=3, skew=0.6)
    begun = time.process_time()
    plan = plan_rebalance(cluster)
    assert time.process_time() - begun < 20
    counts = _replica_counts(_applied(cluster, plan)).values()
    assert max(counts) - min(counts) <= 1
