"""Observe and apply against real brokers: ours, and Apache Kafka itself."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaException, Producer
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.structs import OffsetAndMetadata

from headrace_operator.admin import BrokerAdmin
from headrace_operator.observe import (
    merge_observations,
    observe_full,
    parse_duration_ms,
    parse_timestamp_ms,
)
from headrace_operator.plan import (
    AlterClusterConfig,
    Observed,
    ObservedCluster,
    Plan,
    is_usable,
    plan,
)
from headrace_operator.resources.topic_settings import TOPIC_SETTINGS
from support.freezing_proxy import FreezingProxy
from support.headrace_broker import HeadraceBroker
from support.kafka_peer import KafkaPeer
from support.operator_resources import broker, cluster, desired, group, topic
from support.processes import LOOPBACK, free_port

ROUNDS_MAX = 5
CONSUMERS_MAX = 3


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(HeadraceBroker, id="headrace"),
        pytest.param(KafkaPeer, id="kafka", marks=pytest.mark.java),
    ],
)
def bootstrap(request, tmp_path_factory):
    with request.param(tmp_path_factory.mktemp("broker")) as running:
        yield running.bootstrap


def now_ms():
    return int(time.time() * 1000)


async def observe(admin, wanted):
    backend = Observed(cluster=ObservedCluster(brokers=(broker(1),)))
    return merge_observations(backend, await admin.observe(wanted, now_ms=now_ms()))


async def converge(admin, wanted) -> tuple[Observed, Plan]:
    """Observe, plan and apply until the plan is empty."""
    for _ in range(ROUNDS_MAX):
        seen = await observe(admin, wanted)
        planned = plan(seen, wanted)
        if not planned.actions:
            return seen, planned
        assert await admin.apply(planned.actions) == ()
        # Kafka 4.2 answers before its own broker has replayed the metadata record.
        await asyncio.sleep(0.2)
    raise AssertionError(planned.describe())


def produce(bootstrap, name, count):
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for index in range(count):
        producer.send(name, b"%d" % index, partition=0, timestamp_ms=1_000_000 + index)
    producer.flush()
    producer.close()


def consume(bootstrap, name, group_id):
    """Return a member that has read, and committed what it has read.

    kafka-python 3.0.12 joins before it knows the topic, and again once it does. One in some 400
    of its consumers then has its assignment, and asks for nothing any more.
    """
    for _ in range(CONSUMERS_MAX):
        consumer = KafkaConsumer(
            name, bootstrap_servers=bootstrap, group_id=group_id, auto_offset_reset="earliest"
        )
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            if consumer.poll(timeout_ms=200, max_records=1000):
                consumer.commit()
                return consumer
        consumer.close()
    raise AssertionError(f"{CONSUMERS_MAX} consumers read nothing of {name}")


def test_a_broker_says_which_addresses_it_tells_clients_and_one_that_is_away_holds_up_nobody(
    bootstrap,
):
    async def scenario():
        async with BrokerAdmin(bootstrap) as admin:
            seen = await admin.observe(desired(), now_ms=now_ms())
            (running,) = [each.node_id for each in seen.cluster.brokers]
            return running, await admin.advertised([running + 98, running])

    running, told = asyncio.run(scenario())
    assert list(told) == [running]
    assert bootstrap in told[running].values()


def test_one_connection_that_hangs_is_not_taken_for_brokers_that_do_not_answer(tmp_path):
    broker = HeadraceBroker(tmp_path)
    with FreezingProxy((LOOPBACK, broker.port)) as proxy:
        broker.properties["advertised.listeners"] = f"PLAINTEXT://{LOOPBACK}:{proxy.port}"
        broker.start()

        async def scenario():
            async with BrokerAdmin(broker.bootstrap, request_timeout_ms=1000) as admin:
                before = await admin.observe(desired(), now_ms=now_ms())
                assert before.cluster.is_reachable, before.cluster.error
                assert proxy.freeze()
                seen = await admin.observe(desired(), now_ms=now_ms())
                assert seen.cluster.is_reachable, seen.cluster.error

        try:
            asyncio.run(scenario())
        finally:
            broker.stop()


def test_volumes_with_room_are_not_named(bootstrap):
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        brokers = admin.describe_cluster()["brokers"]
        assert observe_full(admin, brokers, share=0.0) == ()
        # Said of every volume that has less than all of itself left.
        (said,) = observe_full(admin, brokers, share=2.0)
        assert "is nearly full" in said
    finally:
        admin.close()


def test_topics_are_created_grown_and_changed_and_then_nothing_is_left_to_do(bootstrap):
    async def scenario():
        async with BrokerAdmin(bootstrap) as admin:
            seen, _ = await converge(
                admin,
                desired(
                    topic("grow", partitions=2, config={"retention.ms": 60_000}), topic("still")
                ),
            )
            assert seen.topics["grow"].partitions == 2
            assert dict(seen.topics["grow"].config) == {"retention.ms": "60000"}
            assert seen.topics["grow"].topic_id
            wanted = desired(topic("grow", partitions=4, config={"segment.ms": 90_000}))
            seen, _ = await converge(admin, wanted)
            assert seen.topics["grow"].partitions == 4
            assert dict(seen.topics["grow"].config) == {"segment.ms": "90000"}
            assert seen.topics["still"].partitions == 1
            unwanted = topic("still", deletionPolicy="Delete")
            deletion = desired(unwanted, deleted=frozenset({unwanted.key}))
            seen, _ = await converge(admin, deletion)
            assert "still" not in seen.topics

    asyncio.run(scenario())


def test_the_table_of_topic_settings_is_what_brokers_list(bootstrap):
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics({"listed": {"num_partitions": 1, "replication_factor": 1}})
    admin.wait_for_topics(["listed"])
    resource = ConfigResource(ConfigResourceType.TOPIC, "listed")
    listed = admin.describe_configs([resource], config_filter="all")["topic"]["listed"]
    admin.close()
    # Kafka 4.2 has no dead-letter topics yet.
    assert set(listed) | {"errors.deadletterqueue.group.enable"} == set(TOPIC_SETTINGS)


async def live_setting(admin, name, wanted):
    """Return the setting that brokers have, after half a minute if it is not the wanted one."""
    for _ in range(600):
        seen = await admin.observe(desired(), now_ms=0)
        if (found := seen.cluster.live_config.get(name)) == wanted:
            break
        await asyncio.sleep(0.05)
    return found


def test_settings_of_all_brokers_are_set_seen_and_taken_away(bootstrap):
    async def scenario():
        async with BrokerAdmin(bootstrap) as admin:
            name = "log.segment.delete.delay.ms"
            key = ("Cluster", "default", "c")
            set_it = AlterClusterConfig(resource=key, set={name: "54321"})
            assert await admin.apply([set_it]) == ()
            # A broker answers before it has applied what the controller wrote.
            assert await live_setting(admin, name, "54321") == "54321"
            wrong = AlterClusterConfig(resource=key, set={name: "many"})
            (failure,) = await admin.apply([wrong])
            assert "Not a number of type LONG" in failure.message
            assert await admin.apply([AlterClusterConfig(resource=key, delete=(name,))]) == ()
            assert await live_setting(admin, name, None) is None

    asyncio.run(scenario())


def test_a_look_at_health_still_sees_that_a_setting_was_refused(bootstrap):
    async def scenario():
        async with BrokerAdmin(bootstrap) as admin:
            wanted = desired(cluster=cluster(config={"log.retention.ms": "soon"}))
            brokers = (broker(1, config={}),)
            backend = Observed(cluster=ObservedCluster(brokers=brokers, has_live_config=True))
            known = await admin.observe(wanted, now_ms=0)
            for _ in range(2):
                known = await admin.observe_health(known)
                planned = plan(merge_observations(backend, known), wanted)
                (action,) = planned.actions
                (failure,) = await admin.apply([action])
                assert "Not a number of type LONG" in failure.message

    asyncio.run(scenario())


def test_many_topics_are_created_in_one_request(bootstrap):
    async def scenario():
        async with BrokerAdmin(bootstrap) as admin:
            wanted = desired(*(topic(f"many-{index}", partitions=2) for index in range(30)))
            seen, _ = await converge(admin, wanted)
            assert sum(name.startswith("many-") for name in seen.topics) == 30
            assert seen.cluster.brokers[0].replicas >= 60

    asyncio.run(scenario())


def test_a_refusal_names_its_action_and_what_the_brokers_said(bootstrap):
    async def scenario():
        async with BrokerAdmin(bootstrap) as admin:
            refused = topic("refused", config={"retention.ms": "soon"})
            wanted = desired(refused, topic("taken"))
            actions = plan(await observe(admin, wanted), wanted).actions
            (failure,) = await admin.apply(actions)
            assert failure.action.topic == "refused"
            assert "Not a number of type LONG" in failure.message
            assert not failure.is_retriable
            assert "taken" in (await observe(admin, wanted)).topics

    asyncio.run(scenario())


def test_what_exists_is_created_and_what_is_gone_is_deleted_without_complaint(bootstrap):
    async def scenario():
        async with BrokerAdmin(bootstrap) as admin:
            wanted = desired(topic("twice", deletionPolicy="Delete"))
            create = plan(await observe(admin, wanted), wanted).actions
            assert await admin.apply(create) == ()
            assert await admin.apply(create) == ()
            gone = desired(*wanted.topics, deleted=frozenset({wanted.topics[0].key}))
            delete = plan(await observe(admin, gone), gone).actions
            assert await admin.apply(delete) == ()
            assert await admin.apply(delete) == ()

    asyncio.run(scenario())


def test_a_group_is_observed_reset_when_empty_and_its_lag_is_counted(bootstrap):
    async def scenario():
        async with BrokerAdmin(bootstrap) as admin:
            await converge(admin, desired(topic("read", partitions=2)))
            produce(bootstrap, "read", 10)
            consumer = consume(bootstrap, "read", "reader")
            wanted = desired(
                topic("read", partitions=2),
                groups=(
                    group(
                        "reader",
                        topics=["read"],
                        reset={"requestId": "again", "to": {"shiftBy": -4}},
                    ),
                ),
            )
            # A consumer polls while it waits, and heartbeats from a thread of its own.
            seen = await observe(admin, wanted)
            reader = seen.groups["reader"]
            assert reader.state == "Stable"
            (member,) = reader.members
            assert member.assignment == (("read", 0), ("read", 1))
            assert reader.lag_records == 0
            assert not plan(seen, wanted).actions
            with ThreadPoolExecutor() as threads:
                await asyncio.wrap_future(threads.submit(consumer.close))
            planned = plan(await observe(admin, wanted), wanted)
            assert [action.describe() for action in planned.actions] == [
                "~ group reader: read-0 10 -> 6; read-1 0 -> 0"
            ]
            assert await admin.apply(planned.actions) == ()
            assert (await observe(admin, wanted)).groups["reader"].lag_records == 4

    asyncio.run(scenario())


def commit(bootstrap, group_id, offsets):
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    moved = {
        TopicPartition(*key): OffsetAndMetadata(offset, "", -1) for key, offset in offsets.items()
    }
    results = admin.alter_group_offsets(group_id, moved)
    admin.close()
    assert not [error for error in results.values() if error.errno]


def test_lag_in_seconds_is_the_age_of_the_oldest_record_that_was_not_read(bootstrap):
    """`produce` writes one record a millisecond from 1,000,000 on."""

    async def scenario():
        async with BrokerAdmin(bootstrap) as admin:
            await converge(admin, desired(topic("aged", partitions=3)))
            produce(bootstrap, "aged", 4000)
            names = ("behind", "far-behind", "caught-up", "never-committed")
            wanted = desired(groups=tuple(group(name, topics=["aged"]) for name in names))

            async def seconds(now_ms=2_000_000):
                groups = (await admin.observe(wanted, now_ms=now_ms)).groups
                return [groups[name].lag_seconds for name in names]

            # One batch of 4,000 records, or several: the record counts, not its batch.
            commit(bootstrap, "behind", {("aged", 0): 3000, ("aged", 1): 0})
            commit(bootstrap, "far-behind", {("aged", 0): 1000})
            commit(bootstrap, "caught-up", {("aged", 0): 4000, ("aged", 2): 0})
            assert await seconds() == [997, 999, 0, None]
            # A record of the future is not behind.
            assert await seconds(now_ms=1_000_500) == [0, 0, 0, None]
            # What retention took away is not waited for: the next record that is left counts.
            client = KafkaAdminClient(bootstrap_servers=bootstrap)
            client.delete_records({TopicPartition("aged", 0): 2000})
            client.close()
            assert await seconds() == [997, 998, 0, None]

    asyncio.run(scenario())


def test_lag_in_seconds_looks_at_every_partition_however_large_its_batches_are(bootstrap):
    async def scenario():
        async with BrokerAdmin(bootstrap) as admin:
            await converge(admin, desired(topic("large", partitions=12)))
            producer = KafkaProducer(bootstrap_servers=bootstrap)
            for index in range(12):
                producer.send("large", bytes(400_000), partition=index, timestamp_ms=1000 + index)
            producer.flush()
            producer.close()
            commit(bootstrap, "slow", {("large", index): 0 for index in range(1, 12)})
            wanted = desired(groups=(group("slow"),))
            seen = (await admin.observe(wanted, now_ms=11_001)).groups["slow"]
            assert (seen.lag_records, seen.lag_seconds) == (11, 10)

    asyncio.run(scenario())


def test_markers_of_transactions_are_no_lag_in_seconds(bootstrap):
    async def scenario():
        async with BrokerAdmin(bootstrap) as admin:
            await converge(admin, desired(topic("atomic")))
            try:
                write_transaction(bootstrap, "atomic")
            except KafkaException as error:
                pytest.skip(f"no transactions here: {error}")
            wanted = desired(groups=(group("past"), group("before")))
            # The record is at 0, its transaction's marker at 1.
            commit(bootstrap, "past", {("atomic", 0): 1})
            commit(bootstrap, "before", {("atomic", 0): 0})
            groups = (await admin.observe(wanted, now_ms=61_000)).groups
            assert (groups["past"].lag_records, groups["past"].lag_seconds) == (1, 0)
            assert (groups["before"].lag_records, groups["before"].lag_seconds) == (2, 60)

    asyncio.run(scenario())


def write_transaction(bootstrap, name):
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "writer"})
    producer.init_transactions(8)
    producer.begin_transaction()
    producer.produce(name, b"one", timestamp=1000)
    producer.commit_transaction(20)


def test_a_reset_by_time_looks_the_offsets_up(bootstrap):
    async def scenario():
        async with BrokerAdmin(bootstrap) as admin:
            await converge(admin, desired(topic("timed", partitions=2)))
            produce(bootstrap, "timed", 10)
            moment = "1970-01-01T00:16:40.004Z"
            request = {"requestId": "r", "to": {"timestamp": moment}}
            wanted = desired(
                topic("timed", partitions=2),
                groups=(group("timer", topics=["timed"], reset=request),),
            )
            (action,) = plan(await observe(admin, wanted), wanted).actions
            # The empty partition has nothing at or after the moment: its end.
            assert action.offsets == {("timed", 0): 4, ("timed", 1): 0}
            assert await admin.apply([action]) == ()
            seen = (await observe(admin, wanted)).groups["timer"]
            assert seen.offsets == {("timed", 0): 4, ("timed", 1): 0}

    asyncio.run(scenario())


def test_a_group_that_never_was_is_dead_and_deleting_it_succeeds(bootstrap):
    async def scenario():
        async with BrokerAdmin(bootstrap) as admin:
            wanted = desired(topic("t"), groups=(group("nobody"),))
            seen = await observe(admin, wanted)
            assert seen.groups["nobody"].state == "Dead"

    asyncio.run(scenario())


def test_a_cluster_that_does_not_answer_is_observed_as_unreachable():
    async def scenario():
        async with BrokerAdmin(f"{LOOPBACK}:{free_port()}", bootstrap_timeout_ms=300) as admin:
            wanted = desired(topic(), cluster=cluster())
            seen = await admin.observe(wanted, now_ms=0)
            assert not is_usable(seen)
            assert seen.cluster.error
            failures = await admin.apply(plan(Observed(), wanted).actions)
            assert all(failure.is_retriable for failure in failures)

    asyncio.run(scenario())


def test_durations_and_moments_are_read_as_the_crds_write_them():
    assert parse_duration_ms("1h30m") == 5_400_000
    assert parse_duration_ms("250ms") == 250
    assert parse_timestamp_ms("1970-01-01T01:00:00.5+01:00") == 500
    for text in ("", "soon", "5", "5 m"):
        with pytest.raises(ValueError, match="not a duration"):
            parse_duration_ms(text)
    with pytest.raises(ValueError, match="time zone"):
        parse_timestamp_ms("2026-01-01T00:00:00")
