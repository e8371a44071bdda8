"""Whatever happens to brokers, in whatever order: the partition stays legal and loses nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.replicated_cluster import ReplicatedCluster

_BROKERS = 4
_NODE = st.integers(1, _BROKERS)
_SAFE = st.one_of(
    st.tuples(st.just("start"), _NODE),
    st.tuples(st.just("crash"), _NODE, st.integers(0, 5)),
    st.tuples(st.just("died"), _NODE),
    st.tuples(st.just("heartbeat"), _NODE),
    st.tuples(st.just("stop"), _NODE),
    st.tuples(st.just("wait"), st.sampled_from([100, 3500])),
    st.tuples(st.just("new_controller")),
    st.tuples(st.just("learn"), _NODE),
    st.tuples(st.just("append"), _NODE),
    st.tuples(st.just("append"), _NODE),
    st.tuples(st.just("fetch"), _NODE, _NODE),
    st.tuples(st.just("fetch"), _NODE, _NODE),
    st.tuples(st.just("replicate")),
    st.tuples(st.just("replicate")),
    st.tuples(st.just("kill"), _NODE, st.integers(0, 3)),
    st.tuples(st.just("kill"), _NODE, st.integers(0, 3)),
    st.tuples(st.just("restart"), _NODE),
    st.tuples(st.just("restart"), _NODE),
    st.tuples(st.just("wipe"), _NODE),
    st.tuples(st.just("unregister"), _NODE),
    st.tuples(st.just("alter_isr"), _NODE, st.sets(_NODE), st.sampled_from([0, 0, 0, -1, 1])),
    st.tuples(st.just("elect"), st.just(0)),
    st.tuples(st.just("balance_leaders")),
    st.tuples(
        st.just("reassign"),
        st.one_of(st.none(), st.lists(_NODE, min_size=1, max_size=3, unique=True)),
    ),
    st.tuples(st.just("configure"), st.just("min.insync.replicas"), st.sampled_from("123")),
)
_UNSAFE = st.one_of(
    _SAFE,
    st.tuples(st.just("elect"), st.just(1)),
    st.tuples(
        st.just("configure"),
        st.just("unclean.leader.election.enable"),
        st.sampled_from(["true", "false"]),
    ),
)


def _run(cluster, events):
    for name, *arguments in events:
        if name == "replicate":
            _replicate(cluster)
        elif name == "kill":
            cluster.crash(*arguments)
            cluster.died(arguments[0])
        elif name == "restart":
            cluster.start(*arguments)
            cluster.learn(*arguments)
            cluster.heartbeat(*arguments)
        else:
            getattr(cluster, name)(*arguments)


def _replicate(cluster):
    """All that live learn the metadata, follow the leader, and get into the ISR."""
    for _ in range(2):
        for node in cluster.replicas:
            cluster.learn(node)
            cluster.heartbeat(node)
    for node in cluster.replicas:
        cluster.learn(node)
    leader = cluster.partition.leader
    if leader in cluster.replicas:
        for node in cluster.replicas:
            cluster.fetch(node, leader)
        cluster.alter_isr(leader, set(cluster.replicas))
        cluster.learn(leader)
        cluster.append(leader)


def _heal(cluster):
    """Everybody starts and talks; after that the partition has a leader."""
    cluster.wait(3500)
    for _ in range(4):
        for node in cluster.replicas:
            cluster.start(node)
        _replicate(cluster)


@pytest.mark.parametrize("crashes_lose_records", [False, True])
@settings(deadline=None, max_examples=150)
@given(
    factor=st.integers(1, 3),
    min_isr=st.integers(1, 3),
    events=st.lists(_SAFE, min_size=25, max_size=80),
)
def test_no_history_elects_a_leader_that_lacks_a_committed_record(
    crashes_lose_records, factor, min_isr, events
):
    cluster = ReplicatedCluster(
        _BROKERS, factor, min_isr, crashes_lose_records=crashes_lose_records
    )
    _run(cluster, events)
    _heal(cluster)
    partition = cluster.partition
    assert partition.leader != -1
    assert set(partition.isr) == set(partition.replicas)
    assert not partition.adding_replicas
    assert not partition.removing_replicas


@settings(deadline=None, max_examples=150)
@given(
    factor=st.integers(1, 3),
    min_isr=st.integers(1, 3),
    events=st.lists(_UNSAFE, min_size=25, max_size=80),
)
def test_partitions_stay_legal_where_unclean_elections_are_allowed(factor, min_isr, events):
    cluster = ReplicatedCluster(_BROKERS, factor, min_isr, crashes_lose_records=True)
    _run(cluster, events)
    _heal(cluster)
    assert cluster.partition.leader != -1


def test_a_cancelled_reassignment_leaves_nobody_waiting_for_a_broker_without_a_replica():
    """Hypothesis found it: the last known leader was one that the cancelling had dropped."""
    cluster = ReplicatedCluster(_BROKERS, 1, 1, crashes_lose_records=True)
    cluster.configure("unclean.leader.election.enable", "true")
    moved = [("reassign", [3]), ("replicate",), ("crash", 3, 0), ("reassign", [1]), ("died", 3)]
    _run(cluster, [*moved, ("reassign", None)])
    cluster.configure("unclean.leader.election.enable", "false")
    _heal(cluster)
    assert cluster.partition.leader != -1


def test_a_new_disk_under_an_unregistered_brokers_id_is_not_eligible_to_lead():
    """Else it is elected as one that has all that is committed, and all follow it."""
    cluster = ReplicatedCluster(_BROKERS, 2, 2, crashes_lose_records=True)
    _replicate(cluster)
    first, second = cluster.partition.replicas
    for node in (first, second):
        _run(cluster, [("stop", node), *[("learn", every) for every in cluster.replicas]])
        _run(cluster, [("heartbeat", every) for every in [*cluster.replicas, node]])
    assert set(cluster.partition.eligible_leader_replicas) == {first, second}
    _run(cluster, [("unregister", first), ("wipe", first), ("restart", first)])
    assert cluster.partition.eligible_leader_replicas == (second,)
    assert cluster.partition.leader != first


def test_a_broker_whose_disk_was_replaced_unheard_is_named_and_does_not_lead():
    """The controller takes it for alive; it registers as one that lost its log, and waits."""
    cluster = ReplicatedCluster(_BROKERS, 2, 1, crashes_lose_records=True)
    _replicate(cluster)
    leader, follower = cluster.partition.isr
    _run(cluster, [("append", leader), ("fetch", follower, leader)])
    assert cluster.committed
    _run(cluster, [("crash", follower, 0), ("wipe", follower), ("crash", leader, 9)])
    cluster.died(leader)
    assert cluster.partition.leader == follower
    _run(cluster, [("restart", leader), ("restart", follower)])
    _heal(cluster)
    assert cluster.partition.leader != -1
