"""What a broker's replicas do when the metadata changes; and where consumers are sent."""

import asyncio
import shutil
from dataclasses import replace
from unittest.mock import Mock
from uuid import UUID

import pytest

from headrace_broker.log.log_directories import LogDirectories
from headrace_broker.log.segments.segment import Damage
from headrace_broker.metadata.image import MetadataDelta
from headrace_broker.metadata.records import (
    ConfigRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    UnfenceBrokerRecord,
)
from headrace_broker.metadata.settings.resources import ConfigResourceType
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import LOST_DIRECTORY, MIGRATING_DIRECTORY
from headrace_broker.server.partitions.elections import read_to_end
from headrace_broker.server.partitions.healing import heal
from headrace_broker.server.partitions.replica_manager import ReplicaManager
from support.log import ManualClock
from support.metadata import broker_record, creatable, create, image_of

OWN_RACK = "r1"


@pytest.fixture
def leader(tmp_path):
    """Make the replicas of broker 1, which leads "t" and "two"; broker 2 follows, in its own rack.

    `learn(*records)` has the metadata change, and the broker learn of it.
    """
    path = tmp_path / "data"
    directories = LogDirectories.open([path], path, node_id=1, cluster_id="", clock=ManualClock())
    brokers = (broker_record(1, rack=OWN_RACK), broker_record(2, rack="r2"))
    topics = creatable("t", assignments=[[1, 2]]), creatable("two", assignments=[[1, 2], [1, 2]])
    image, _ = create(image_of(*brokers), *topics)
    replicas = ReplicaManager(1, directories, {})
    known = [image]

    async def learn(*records):
        if not records:
            await replicas.apply(MetadataDelta.from_nothing(known[-1]), known[-1])
            return replicas
        offset = known[-1].offset + len(records)
        image, delta = known[-1].replay_batch(records, offset=offset, epoch=0)
        known.append(image)
        await replicas.apply(delta, image)
        return replicas

    yield learn
    for directory in directories:
        directory.abandon()


def test_a_follower_that_has_caught_up_joins_as_soon_as_it_is_not_fenced_any_more(leader):
    async def scenario():
        replicas = await leader()
        partition = replicas.partition("t", 0)
        requests = []
        replicas.host.request_isr_update = lambda each: requests.append(each.leading.pending)
        await leader(FenceBrokerRecord(id=2, epoch=2))
        partition.leading.commit_isr((1,), partition.leading.partition_epoch + 1)
        partition.record_fetch(2, 2, 0)
        assert not requests
        await leader(UnfenceBrokerRecord(id=2, epoch=2))
        assert [update.nodes for update in requests] == [{1, 2}]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("rack", "chosen"), [(OWN_RACK, None), ("r2", 2), ("r3", None), ("", None)]
)
def test_kip_392_a_consumer_is_sent_to_a_follower_in_its_rack_if_the_leader_is_not_there(
    leader, rack, chosen
):
    async def scenario():
        replicas = await leader()
        partition = replicas.partition("t", 0)
        partition.record_fetch(2, 2, 0)
        assert replicas.read_replica(partition, rack, 0) == chosen

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("resource", "owner", "size"),
    [
        (ConfigResourceType.TOPIC, "two", "segment.bytes"),
        (ConfigResourceType.BROKER, "", "log.segment.bytes"),
    ],
)
def test_a_setting_that_changes_beside_one_partition_reaches_the_topics_others(
    leader, resource, owner, size
):
    async def scenario():
        replicas = await leader()
        first, second = replicas.partition("two", 0), replicas.partition("two", 1)
        change = PartitionChangeRecord(topic_id=first.topic_id, partition_id=0, isr=[1])
        settings = [
            ConfigRecord(resource_type=resource, resource_name=owner, name=name, value=value)
            for name, value in (("min.insync.replicas", "2"), (size, "2000000"))
        ]
        await leader(change, *settings)
        for partition in (first, second):
            assert partition.min_in_sync_replicas == 2
            assert partition.log.config.segment_bytes == 2_000_000
        assert (first.in_sync_replicas, second.in_sync_replicas) == ((1,), (1, 2))

    asyncio.run(scenario())


def test_only_a_leader_reads_a_log_for_a_coordinator(leader):
    async def scenario():
        replicas = await leader()
        partition = replicas.partition("t", 0)
        assert [chunk async for chunk in read_to_end(partition)] == []
        partition.leading = None
        with pytest.raises(ApiError) as caught:
            [chunk async for chunk in read_to_end(partition)]
        assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(scenario())


def test_a_replica_that_may_be_on_a_failed_disk_is_lost_and_is_not_created_anew(tmp_path):
    """Its log passed for an empty one: where the metadata names it as the leader, all was lost."""
    paths = [tmp_path / "a", tmp_path / "b"]

    def open_all():
        return LogDirectories.open(paths, paths[0], node_id=1, cluster_id="", clock=ManualClock())

    brokers = (broker_record(1), broker_record(2))
    topics = (creatable("t", assignments=[[1, 2], [1, 2]]),)
    image, _ = create(image_of(*brokers), *topics)
    delta = MetadataDelta.from_nothing(image)

    async def scenario():
        before = open_all()
        replicas = ReplicaManager(1, before, {})
        await replicas.apply(delta, image)
        away = next(each for each in replicas if each.log.directory.parent == paths[1])
        topic_id, index = away.topic_id, away.index
        before.close(broker_epoch=1)
        shutil.rmtree(paths[1])
        paths[1].write_text("no directory")

        after = open_all()
        said = []
        replicas = ReplicaManager(1, after, {})
        replicas.note_directory = lambda *names: said.append(names)
        await replicas.apply(delta, image)
        with pytest.raises(ApiError) as caught:
            replicas.partition("t", index)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert (topic_id, index, image.topics["t"].partitions[index].directory_of(1)) in {
            each[:3] for each in said if each[3] == LOST_DIRECTORY
        }
        assert replicas.partition("t", 1 - index)

        # What comes while it runs cannot be there.
        replicas.start_following(Mock())
        later, _ = create(image, creatable("later", assignments=[[1, 2]]), seed=8)
        await replicas.apply(MetadataDelta.from_nothing(later), later)
        assert replicas.partition("later", 0).log.directory.parent == paths[0]
        after.close(broker_epoch=1)

    asyncio.run(scenario())


def lose_records(partition):
    partition.log.segments.active.note_damage(Damage(0, 1, 0, 1, "for a test"))
    partition.log.is_damaged = True


def test_damage_is_said_as_soon_as_it_is_found(leader):
    async def scenario():
        replicas = await leader()
        said = []
        replicas.note_directory = lambda *names: said.append(names)
        partition = replicas.partition("t", 0)
        lose_records(partition)
        partition.log.on_damage()
        await asyncio.sleep(0)
        assert said == [(partition.topic_id, 0, MIGRATING_DIRECTORY, LOST_DIRECTORY)]

    asyncio.run(scenario())


@pytest.mark.parametrize(("isr", "is_cut"), [((1, 2), False), ((2,), True)])
def test_damage_is_cut_once_the_replica_does_not_count_any_more(leader, isr, is_cut):
    async def scenario():
        replicas = await leader()
        partition = replicas.partition("t", 0)
        lose_records(partition)
        partition.leading, followed = None, []
        image = replace(
            replicas.host.image.topics["t"].partitions[0],
            leader=2,
            isr=isr,
            leader_epoch=partition.leader_epoch,
            directories=(LOST_DIRECTORY, LOST_DIRECTORY),
        )
        heal(
            partition,
            image,
            UUID(int=7),
            note_directory=lambda *_: None,
            follow=followed.append,
        )
        assert bool(followed) == is_cut

    asyncio.run(scenario())
