"""What a broker does for its partitions and its metadata while no file descriptor is left."""

import asyncio
import uuid

import pytest

from headrace_broker.log.config import LogConfig
from headrace_broker.log.descriptor_shortage import SPARES, OutOfDescriptorsError
from headrace_broker.log.log_directories import LogDirectories
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.metadata.decision import MetadataDecision
from headrace_broker.metadata.image import MetadataDelta
from headrace_broker.metadata.records import PartitionRecord, TopicRecord
from headrace_broker.protocol.batch import patch_base_offset
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import LeaderEpoch, Offset
from headrace_broker.raft.control import NOT_IN_LOG
from headrace_broker.raft.types import OffsetAndEpoch, QuorumState, VotersAt, VoterSet
from headrace_broker.server.clock import SystemClock
from headrace_broker.server.config.broker_config import parse_config
from headrace_broker.server.partitions.flushing import GroupCommit
from headrace_broker.server.partitions.log_manager import LogManager
from headrace_broker.server.partitions.replica_manager import ReplicaManager
from headrace_broker.server.quorum.metadata_batches import encode_batch, encode_batches
from headrace_broker.server.quorum.metadata_loader import MetadataLoader
from headrace_broker.server.quorum.metadata_quorum import Identity, MetadataQuorum
from headrace_broker.server.quorum.quorum_state import QuorumStateFile
from headrace_broker.server.quorum.raft_log import MetadataLog
from headrace_broker.server.quorum.raft_snapshots import build_snapshot
from support.descriptors import few_descriptors
from support.log import START_MS, ManualClock, batch_of, content
from support.metadata import creatable, create, image_with_brokers, seeded_rng
from support.waiting import until

FREE_MAX = SPARES + 4
ID = OffsetAndEpoch(Offset(40), LeaderEpoch(3))
NOBODY = VotersAt(offset=NOT_IN_LOG, voters=VoterSet(), kraft_version=0)


# ---- replicas


class Replicas:
    """The replicas of broker 1, and what was reported as failed."""

    def __init__(self, path, *names):
        self.directories = LogDirectories.open(
            [path], path, node_id=1, cluster_id="", clock=ManualClock()
        )
        self.manager = ReplicaManager(1, self.directories, {})
        self.failures = []
        self.manager.host.on_failure = self.failures.append
        self.image, _ = create(image_with_brokers(1), *map(creatable, names))

    async def start(self):
        await self.manager.apply(MetadataDelta.from_nothing(self.image), self.image)

    async def add(self, name):
        before = self.image
        self.image, _ = create(before, creatable(name), seed=name)
        delta = MetadataDelta.of_topics({name: frozenset(self.image.topics[name].partitions)})
        await self.manager.apply(delta, self.image)

    async def again(self, name):
        delta = MetadataDelta.of_topics({name: frozenset(self.image.topics[name].partitions)})
        await self.manager.apply(delta, self.image)

    def close(self):
        for directory in self.directories:
            directory.abandon()


@pytest.fixture
def replicas(tmp_path):
    found = []

    def make(*names):
        found.append(Replicas(tmp_path / "data", *names))
        return found[-1]

    yield make
    for each in found:
        each.close()
        assert each.failures == []


def test_a_replica_that_cannot_be_created_is_created_as_soon_as_it_can(replicas):
    async def scenario():
        node = replicas("old")
        await node.start()
        asked = []
        node.manager.unopened.apply_again = asked.append
        for free in range(FREE_MAX):
            name = f"t{free}"
            with few_descriptors(free):
                await node.add(name)
            topic_id = node.image.topics[name].topic_id
            if (topic_id, 0) not in node.manager.unopened:
                break
            for find in (
                lambda name=name: node.manager.partition(name, 0),
                lambda topic_id=topic_id: node.manager.partition_by_id(topic_id, 0),
            ):
                with pytest.raises(ApiError) as caught:
                    find()
                assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert not (node.directories.paths[0] / f"{name}-0").exists()
            asked.clear()
            await until(lambda: asked)
            assert asked[0] == [(topic_id, 0)]
            await node.again(name)
            partition = node.manager.partition(name, 0)
            partition.append(batch_of(b"x"), 1, START_MS)
            assert len(node.manager.unopened) == 0
        else:
            pytest.fail("it was never created")
        assert free > 0
        assert node.manager.partition("old", 0).leading is not None

    asyncio.run(scenario())


def test_a_replica_of_a_deleted_topic_is_not_tried_again(replicas):
    async def scenario():
        node = replicas("old")
        await node.start()
        with few_descriptors(0):
            await node.add("t")
        topic = node.image.topics["t"]
        assert (topic.topic_id, 0) in node.manager.unopened
        await node.manager.apply(
            MetadataDelta(
                topics_removed={topic.topic_id: topic},
                topics_changed={},
                configs_changed=frozenset(),
                brokers_changed=frozenset(),
                features_changed=False,
            ),
            node.image,
        )
        assert len(node.manager.unopened) == 0

    asyncio.run(scenario())


def test_a_start_that_cannot_open_a_replica_is_given_up(replicas):
    async def scenario():
        node = replicas("t")
        with few_descriptors(0), pytest.raises(OutOfDescriptorsError, match="LimitNOFILE"):
            await node.start()
        await node.start()
        assert node.manager.partition("t", 0).leading is not None

    asyncio.run(scenario())


def test_a_deleted_topic_is_gone_without_a_descriptor(replicas):
    async def scenario():
        node = replicas("t", "u")
        await node.start()
        topic = node.image.topics["t"]
        gone = MetadataDelta(
            topics_removed={topic.topic_id: topic},
            topics_changed={},
            configs_changed=frozenset(),
            brokers_changed=frozenset(),
            features_changed=False,
        )
        for segment in node.manager.partition("t", 0).log.segments:
            segment.close()
        with few_descriptors(0):
            await node.manager.apply(gone, node.image)
        (directory,) = node.directories
        assert not directory.has_folder("t", 0)
        assert directory.remove_deleted() == 1
        # The same name is free for another topic.
        await node.again("t")
        assert content(node.manager.partition("t", 0).log) == []

    asyncio.run(scenario())


def test_clients_get_an_error_after_which_they_try_again(replicas):
    async def scenario():
        node = replicas("t")
        await node.start()
        partition = node.manager.partition("t", 0)
        partition.append(batch_of(b"x"), 1, START_MS)
        partition.append(batch_of(b"y"), 1, START_MS)
        partition.log.segments.active.close()
        with few_descriptors(0):
            for ask in (
                lambda: partition.append(batch_of(b"z"), 1, START_MS),
                lambda: partition.read(0, 1, isolation=0, at_least_one=True),
                lambda: partition.find_timestamp(START_MS),
            ):
                with pytest.raises(ApiError) as caught:
                    ask()
                assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert partition.append(batch_of(b"z"), 1, START_MS).first_offset == 2
        assert partition.read(0, 1, isolation=0, at_least_one=True)

    asyncio.run(scenario())


def test_the_tasks_of_a_directory_go_on_in_their_next_round(replicas, tmp_path):
    async def scenario():
        node = replicas("t")
        await node.start()
        (directory,) = node.directories
        config = parse_config(
            f"node.id=1\nprocess.roles=broker,controller\nlog.dirs={tmp_path / 'data'}\n"
            "log.flush.offset.checkpoint.interval.ms=20\nlog.retention.check.interval.ms=20\n"
            "replica.high.watermark.checkpoint.interval.ms=20\nlog.cleaner.backoff.ms=20\n"
            "headrace.log.scrub.interval.ms=20\n"
        )
        manager = LogManager(config, directory, node.manager, ManualClock(), node.failures.append)
        partition = node.manager.partition("t", 0)
        manager.start()
        with few_descriptors(0):
            partition.append(batch_of(b"x"), 1, START_MS)
            await asyncio.sleep(0.3)
            assert partition.log.recovery_point == 0
        await until(lambda: partition.log.recovery_point == 1)
        checkpoint = tmp_path / "data" / "replication-offset-checkpoint"
        await until(lambda: checkpoint.exists() and "t 0 1" in checkpoint.read_text())
        await manager.stop()

    asyncio.run(scenario())


def test_who_waits_for_an_fsync_gets_it_once_there_is_a_descriptor(tmp_path):
    async def scenario():
        log = PartitionLog.open(tmp_path / "t-0", LogConfig(), clock=ManualClock())
        failures, answers = [], []
        group_commit = GroupCommit(log, 0, lambda: None, failures.append)
        for free in range(FREE_MAX):
            with few_descriptors(free):
                log.append_as_leader(batch_of(b"x"), 0, now_ms=START_MS)
                group_commit.appended()
                group_commit.add(log.log_end_offset, answers.append)
                await asyncio.sleep(0.05)
            await until(lambda free=free: len(answers) == free + 1)
            assert log.recovery_point == log.log_end_offset
        assert failures == []
        assert set(answers) == {None}
        group_commit.close()
        log.abandon()

    asyncio.run(scenario())


# ---- the metadata quorum


def partition_record(topic_id):
    return PartitionRecord(
        partition_id=0, topic_id=topic_id, replicas=[1], isr=[1], leader=1, leader_epoch=0
    )


class Quorum:
    """A quorum of one node."""

    def __init__(self, path, **settings):
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        config = parse_config(
            f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={path}\n{text}"
        )
        self.failures = []
        self.quorum = MetadataQuorum(
            config,
            Identity(directory_id=uuid.UUID(int=4), cluster_id="c", ports={}),
            clock=SystemClock(),
            rng=seeded_rng(1),
            on_failure=self.failures.append,
        )
        self.controller = self.quorum.controller

    async def create(self, number):
        topic_id = uuid.UUID(int=number)
        records = [
            TopicRecord(name=f"t{number}", topic_id=topic_id),
            partition_record(topic_id),
        ]
        await self.controller.submit(lambda _: MetadataDecision(records=records, response=None))
        return topic_id


def test_a_quorum_that_starts_without_descriptors_waits_for_them(tmp_path):
    async def scenario():
        node = Quorum(tmp_path)
        with few_descriptors(0):
            node.quorum.start()
            await asyncio.sleep(0.3)
            assert not node.controller.is_active
        await until(lambda: node.controller.is_active)
        await node.create(4)
        await node.quorum.close()
        assert node.failures == []

    asyncio.run(scenario())


def test_a_decision_is_committed_once_there_is_a_descriptor(tmp_path):
    async def scenario():
        node = Quorum(tmp_path)
        node.quorum.start()
        await until(lambda: node.controller.is_active)
        await node.create(7)
        await until(lambda: node.quorum.driver._flushing is None)
        with few_descriptors(0):
            first = asyncio.ensure_future(node.create(1))
            await asyncio.sleep(0.2)
            second = asyncio.ensure_future(node.create(2))
            await asyncio.sleep(0.2)
            assert not first.done()
            assert not second.done()
        await asyncio.gather(first, second)
        await node.quorum.close()
        again = Quorum(tmp_path)
        again.quorum.start()
        await until(lambda: again.controller.is_active)
        await until(lambda: again.quorum.driver._flushing is None)
        assert again.controller.image.offset == node.controller.image.offset + 1
        with few_descriptors(0):
            third = asyncio.ensure_future(again.create(3))
            await asyncio.sleep(0.2)
            await again.quorum.close()
        with pytest.raises(ApiError, match="may or may not have been made"):
            await asyncio.wait_for(third, 5)
        assert node.failures == again.failures == []

    asyncio.run(scenario())


def test_a_snapshot_of_the_metadata_is_written_later(tmp_path):
    async def scenario():
        node = Quorum(tmp_path)
        node.quorum.start()
        await until(lambda: node.controller.is_active)
        await until(lambda: node.quorum.driver._flushing is None)
        folder = node.quorum.log.directory
        with few_descriptors(0):
            node.quorum.driver.snapshot(node.controller.image)
            await asyncio.sleep(0.3)
        assert not list(folder.glob("*.part"))
        await until(lambda: node.quorum.log.snapshots.ids)
        assert len(list(folder.glob("*.checkpoint"))) == 1
        await node.quorum.close()
        assert node.failures == []

    asyncio.run(scenario())


def test_a_loader_that_cannot_read_reads_later_and_tells_of_partitions_again(tmp_path):
    async def scenario():
        log = MetadataLog.open(tmp_path, SystemClock())
        records = [TopicRecord(name="t", topic_id=uuid.UUID(int=1))]
        log.snapshots.write(ID, build_snapshot(encode_batches(records, 1), NOBODY, 1, ID))
        log.restart_at(ID)
        batch = encode_batch([partition_record(uuid.UUID(int=1))], 1)
        patch_base_offset(batch, ID.offset)
        log.append(ID.offset, batch)
        failures, published = [], []
        loader = MetadataLoader(log, failures.append)
        loader.subscribe(lambda delta, _: published.append(delta.topics_changed))
        loader.start()
        log._log.segments.active.close()
        log._log.reader.forget()
        for free in (0, 1):  # the snapshot needs one, and then the log
            with few_descriptors(free):
                loader.load_snapshot(ID)
                loader.advance(log.end_offset)
                loader.release()
                await asyncio.sleep(0.3)
        await loader.wait_for(Offset(log.end_offset - 1))
        assert published == [{"t": frozenset({0})}]
        loader.publish_again([(uuid.UUID(int=99), 0), (uuid.UUID(int=1), 1)])
        await asyncio.sleep(0.05)
        assert len(published) == 1
        loader.publish_again([(uuid.UUID(int=1), 0)])
        await until(lambda: len(published) == 2)
        assert published[1] == published[0]
        await loader.close()
        log.close()
        assert failures == []

    asyncio.run(scenario())


def test_files_of_the_quorum_are_written_whole_or_not_at_all(tmp_path):
    snapshot = build_snapshot([], NOBODY, 1, ID)
    refused = 0
    for free in range(FREE_MAX):
        log = MetadataLog.open(tmp_path / str(free), SystemClock())
        names = {path.name for path in log.directory.iterdir()}
        state = QuorumStateFile(log.directory)
        try:
            with few_descriptors(free):
                log.snapshots.write(ID, snapshot)
        except OutOfDescriptorsError:
            refused += 1
            assert {path.name for path in log.directory.iterdir()} == names
            assert log.snapshots.ids == []
            with few_descriptors(0), pytest.raises(OutOfDescriptorsError):
                state.write(QuorumState(epoch=LeaderEpoch(5)))
            assert state.read() == QuorumState()
            log.snapshots.write(ID, snapshot)
        assert log.snapshots.ids == [ID]
        with few_descriptors(0):
            with pytest.raises(OutOfDescriptorsError):
                log.snapshots.read(ID)
            with pytest.raises(OutOfDescriptorsError):
                log.snapshots.read_part(ID, 0, 10)
            with pytest.raises(OutOfDescriptorsError):
                log.restart_at(ID)
        log.restart_at(ID)
        assert log.start_offset == log.end_offset == ID.offset
        log.close()
    assert 0 < refused < FREE_MAX
