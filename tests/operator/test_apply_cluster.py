"""What the operator does to real brokers: cordons of its own, and changes of voters."""

import asyncio
import time
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient

from headrace_operator.admin import BrokerAdmin
from headrace_operator.balance import cordoned_brokers
from headrace_operator.plan import (
    AddVoter,
    AlterClusterConfig,
    CordonBrokers,
    CreateTopic,
    MoveReplicas,
    RemoveVoter,
    plan,
)
from headrace_operator.plan.cordons import DRAINED_BROKERS
from headrace_operator.plan.moves import MOVES_THROTTLE, plan_end_of_throttle, progress_of
from headrace_operator.quorum import UNKNOWN_DIRECTORY
from support.headrace_cluster import HeadraceCluster
from support.operator_resources import cluster, desired, topic
from support.processes import wait_until

KEY = ("Cluster", "default", "c")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with HeadraceCluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


async def observe(admin):
    seen = await admin.observe(desired(), now_ms=int(time.time() * 1000))
    assert seen.cluster.is_reachable, seen.cluster.error
    return seen.cluster


async def observe_until(admin, is_so):
    """Each broker learns of an accepted change in its time, and any of them may be asked."""
    for _ in range(100):
        seen = await observe(admin)
        if is_so(seen):
            return seen
        await asyncio.sleep(0.1)
    raise AssertionError(seen)


async def settled_quorum(admin):
    """Once every voter has reported its disk's id, a moment after its first start."""
    for _ in range(100):
        quorum = (await observe(admin)).quorum
        if quorum.leader_id > 0 and all(
            each.directory_id != UNKNOWN_DIRECTORY for each in quorum.voters
        ):
            return quorum
        await asyncio.sleep(0.1)
    raise AssertionError(quorum)


def replicas_of(cluster, topic):
    return {
        node
        for (name, _), partition in cluster.partitions.items()
        if name == topic
        for node in partition.replicas
    }


def created(topic):
    return CreateTopic(resource=("Topic", "default", topic), topic=topic, partitions=6, replicas=2)


def test_new_topics_stay_off_a_drained_broker_until_the_drain_is_cancelled(running):
    async def scenario():
        async with BrokerAdmin(running.bootstrap) as admin:
            drain = CordonBrokers(resource=KEY, cordoned=(3,), drained=(3,))
            # In one go, as a plan may have both: who is cordoned is settled first.
            assert await admin.apply([created("during"), drain]) == ()
            seen = await observe_until(admin, lambda seen: replicas_of(seen, "during"))
            assert replicas_of(seen, "during") == {1, 2}
            await observe_until(admin, lambda seen: seen.live_config.get(DRAINED_BROKERS) == "3")
            assert await admin.apply([CordonBrokers(resource=KEY, uncordoned=(3,))]) == ()
            assert await admin.apply([created("after")]) == ()
            seen = await observe_until(admin, lambda seen: replicas_of(seen, "after"))
            assert 3 in replicas_of(seen, "after")
            await observe_until(admin, lambda seen: DRAINED_BROKERS not in seen.live_config)

    client = KafkaAdminClient(bootstrap_servers=running.bootstrap.split(","))
    try:
        asyncio.run(scenario())
        # Each broker is asked for itself, and learns of the change in its time.
        wait_until(lambda: not cordoned_brokers(client, [1, 2, 3]), 10, "the end of the cordon")
    finally:
        client.close()


def test_a_voter_is_taken_away_and_given_back_with_the_disk_that_it_has(running):
    async def scenario():
        async with BrokerAdmin(running.bootstrap) as admin:
            quorum = await settled_quorum(admin)
            gone = max(
                voter.node_id for voter in quorum.voters if voter.node_id != quorum.leader_id
            )
            voter = next(each for each in quorum.voters if each.node_id == gone)
            removal = RemoveVoter(
                resource=KEY, node_id=gone, directory_id=voter.directory_id, reason="a test"
            )
            assert await admin.apply([removal]) == ()
            assert await admin.apply([removal]) == ()  # it is so already
            for _ in range(50):
                quorum = (await observe(admin)).quorum
                late = [each for each in quorum.observers if each.node_id == gone]
                if late and late[0].behind_ms is not None:
                    break
                await asyncio.sleep(0.1)
            assert not quorum.votes(gone)
            assert late[0].directory_id == voter.directory_id
            address = running.node(gone).controller_address
            addition = AddVoter(
                resource=KEY, node_id=gone, directory_id=voter.directory_id, address=address
            )
            assert await admin.apply([addition]) == ()
            await observe_until(admin, lambda seen: seen.quorum.votes(gone))

    asyncio.run(scenario())


def test_how_far_a_move_is_can_be_seen_while_it_is_under_way(running):
    async def scenario():
        async with BrokerAdmin(running.bootstrap) as admin:
            assert await admin.apply([created("watched")]) == ()
            key = ("watched", 0)
            before = await observe_until(admin, lambda seen: key in seen.partitions)
            assert (before.adding, before.sizes) == ({}, {})
            producer = Producer({"bootstrap.servers": running.bootstrap, "acks": "all"})
            for _ in range(4):
                producer.produce("watched", bytes(500_000), partition=0)
            producer.flush(30)
            (other,) = {1, 2, 3} - set(before.partitions[key].replicas)
            replicas = (before.partitions[key].replicas[0], other)
            # Some 20 s of it: nobody is that late to look.
            move = MoveReplicas(resource=KEY, moves={key: replicas}, leaving=(), throttle=100_000)
            assert await admin.apply([move]) == ()
            seen = await observe_until(admin, lambda seen: seen.adding)
            assert seen.adding == {key: (other,)}
            assert seen.sizes[key][before.partitions[key].leader] > 2_000_000
            progress = progress_of(cluster(moves={"throttle": 100_000}), seen)
            assert progress.partitions_moving == 1
            assert 0 < progress.bytes_left <= seen.sizes[key][before.partitions[key].leader]
            assert progress.seconds_left > 0
            # Who looks at this one topic sees it, too: it is not ready before.
            resource = topic("watched", partitions=6, replicas=2)
            some = desired(resource, is_complete=False)
            stale = await admin.observe(some, now_ms=0)
            stale = replace(
                stale, cluster=replace(stale.cluster, reassigning=frozenset(), adding={})
            )
            looked = await admin.observe_some(some, stale, now_ms=0)
            assert looked.cluster.adding == {key: (other,)}
            fast = AlterClusterConfig(
                resource=KEY, set={MOVES_THROTTLE: "50000000"}, changes=("faster",)
            )
            assert await admin.apply([fast]) == ()
            for _ in range(300):
                seen = await observe(admin)
                if not seen.reassigning:
                    break
                await asyncio.sleep(0.1)
            (end,) = plan_end_of_throttle(cluster(), seen)
            assert await admin.apply([end]) == ()
            await observe_until(admin, lambda seen: seen.sizes == {})

    asyncio.run(scenario())


def test_moves_are_throttled_before_they_begin_until_it_is_taken_back(running):
    async def scenario():
        async with BrokerAdmin(running.bootstrap) as admin:
            assert await admin.apply([created("moved")]) == ()
            key = ("moved", 0)
            before = await observe_until(admin, lambda seen: key in seen.partitions)
            (other,) = {1, 2, 3} - set(before.partitions[key].replicas)
            replicas = (other, before.partitions[key].replicas[0])
            move = MoveReplicas(resource=KEY, moves={key: replicas}, leaving=(), throttle=5_000_000)
            assert await admin.apply([move]) == ()
            await observe_until(
                admin, lambda seen: seen.live_config.get(MOVES_THROTTLE) == "5000000"
            )
            for _ in range(300):
                seen = await observe(admin)
                if not seen.reassigning and seen.partitions[key].replicas == replicas:
                    break
                await asyncio.sleep(0.1)
            assert seen.partitions[key].replicas == replicas
            (end,) = plan_end_of_throttle(cluster(), seen)
            assert await admin.apply([end]) == ()
            await observe_until(admin, lambda seen: MOVES_THROTTLE not in seen.live_config)

    asyncio.run(scenario())


def test_a_topic_that_exists_gets_more_replicas_and_fewer_again(running):
    async def settle(admin, wanted, replicas):
        for _ in range(300):
            changed = {"generation": 2}
            resource = topic("factor", replicas=replicas, partitions=6, metadata=changed)
            found = desired(resource, cluster=wanted)
            seen = await admin.observe(found, now_ms=int(time.time() * 1000))
            planned = plan(seen, found)
            mine = [each for each in planned.actions if each.resource == resource.key]
            mine += [each for each in planned.actions if isinstance(each, AlterClusterConfig)]
            if not mine and not any(each.resource == resource.key for each in planned.waiting):
                return seen
            assert await admin.apply(mine) == ()
            await asyncio.sleep(0.1)
        raise AssertionError(planned.describe())

    async def scenario():
        # Two at once, so that some of them wait.
        wanted = cluster([{"name": "a", "replicas": 3}], moves={"concurrent": 2})
        async with BrokerAdmin(running.bootstrap) as admin:
            for replicas in (1, 3, 2):
                seen = await settle(admin, wanted, replicas)
                counts = {
                    len(each.in_sync)
                    for (name, _), each in seen.cluster.partitions.items()
                    if name == "factor"
                }
                assert counts == {replicas}
            held = replicas_of(seen.cluster, "factor")
            assert held == {1, 2, 3}

    asyncio.run(scenario())
