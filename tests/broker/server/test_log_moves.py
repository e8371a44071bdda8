"""Which replicas move between log directories: what clients chose, and what a process left."""

import asyncio
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace_broker.log.checkpoints import TopicPartition
from headrace_broker.log.config import LogConfig
from headrace_broker.log.descriptor_shortage import OutOfDescriptorsError
from headrace_broker.log.log_directories import LogDirectories
from headrace_broker.metadata.entities import PartitionImage, TopicImage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import MIGRATING_DIRECTORY, TopicId
from headrace_broker.server.partitions import log_moves
from headrace_broker.server.partitions.log_moves import LogMoves
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.partitions.replica_host import ReplicaHost
from support.descriptors import few_descriptors
from support.log import ManualClock, batch_of, content

KEY = TopicPartition("t", 0)
TOPIC_ID = TopicId(uuid.UUID(int=7))
FORMER_TOPIC_ID = TopicId(uuid.UUID(int=6))


@pytest.fixture
def opened(tmp_path):
    """Open two log directories, "t" in the first of them, and perhaps an unfinished copy of a log
    of that name in the second, which a former process left there."""
    paths = [tmp_path / "a", tmp_path / "b"]
    made = []

    def open_both():
        found = LogDirectories.open(paths, paths[0], node_id=1, cluster_id="", clock=ManualClock())
        made.append(found)
        return found

    def abandon():
        for each in made.pop():
            each.abandon()

    def open_with(copied=None):
        if copied is not None:
            _, target = open_both()
            future = {"topic_id": copied, "log_start_offset": 0}
            target.create_future(KEY, "move", LogConfig(), **future).close()
            abandon()
        directories = open_both()
        source, _ = directories
        log = source.create(*KEY, LogConfig(), topic_id=TOPIC_ID)
        return directories, Partition("t", TOPIC_ID, 0, log, ReplicaHost(1))

    yield open_with
    abandon()


def _image_with(directory):
    """Return metadata in which a copy may become the partition's log: its directory is known."""
    partition = PartitionImage(
        leader=2,
        leader_epoch=1,
        partition_epoch=1,
        replicas=(1,),
        isr=(1,),
        directories=(directory.directory_id,),
    )
    topic = TopicImage(topic_id=TOPIC_ID, name="t", partitions={0: partition})
    return SimpleNamespace(topics_by_id={TOPIC_ID: topic})


@pytest.mark.parametrize(("copied", "is_wanted"), [(TOPIC_ID, True), (FORMER_TOPIC_ID, False)])
def test_a_move_goes_on_after_a_restart_unless_it_was_a_former_topics(opened, copied, is_wanted):
    async def scenario():
        directories, partition = opened(copied)
        moves = LogMoves(directories, partition.host)
        moves.resume(partition)
        assert (moves.future_of(partition) is not None) == is_wanted
        await moves.stop()

    asyncio.run(scenario())


def test_a_replica_in_its_place_is_not_copied(opened):
    async def scenario():
        directories, partition = opened()
        moves = LogMoves(directories, partition.host)
        moves.resume(partition)
        assert len(moves) == 0
        await moves.stop()

    asyncio.run(scenario())


def test_of_too_many_choices_those_go_that_were_made_first(opened, monkeypatch):
    monkeypatch.setattr(log_moves, "CHOICES_MAX", 2)
    directories, partition = opened()
    moves = LogMoves(directories, partition.host)
    first, second, third = (TopicPartition("new", index) for index in range(3))
    moves.choose(first, Path("a"))
    moves.choose(second, Path("a"))
    moves.choose(first, Path("b"))
    moves.choose(third, Path("a"))
    assert [moves.take_choice(key) for key in (first, second, third)] == [
        Path("b"),
        None,
        Path("a"),
    ]
    assert moves.take_choice(first) is None


def test_a_move_is_announced_and_made_and_fsyncs_go_on_in_the_new_place(opened):
    async def scenario():
        directories, partition = opened()
        _, target = directories
        host, moves = partition.host, LogMoves(directories, partition.host)
        partition._configure_flushing(0)
        partition.append_as_follower(bytes(batch_of(b"v")))
        await partition.flushing.wait_durable()
        announced = asyncio.Event()

        def note_directory(*said):
            assert said == (TOPIC_ID, 0, MIGRATING_DIRECTORY, target.directory_id)
            announced.set()

        moves.note_directory = note_directory
        moves.ask(partition, target.path)
        await asyncio.wait_for(announced.wait(), 10)
        host.image = _image_with(target)
        moves.changed(partition)
        await asyncio.wait_for(asyncio.gather(*moves._tasks), 10)
        assert partition.log.directory.parent == target.path
        partition.append_as_follower(bytes(batch_of(b"w", base_offset=1)))
        await asyncio.wait_for(partition.flushing.wait_durable(), 10)
        assert partition.log.recovery_point == 2
        await moves.stop()
        with pytest.raises(RuntimeError):
            moves._threads.submit(int)

    asyncio.run(scenario())


def test_a_move_that_lacks_a_file_descriptor_goes_on_when_there_is_one(opened, monkeypatch):
    monkeypatch.setattr(log_moves, "_SHORTAGE_SECONDS", 0.01)

    async def scenario():
        directories, partition = opened()
        source, target = directories
        host, moves = partition.host, LogMoves(directories, partition.host)
        failures = []
        host.on_failure = failures.append
        for offset in range(5):
            partition.append_as_follower(bytes(batch_of(b"v", base_offset=offset)))
        announced = asyncio.Event()
        moves.note_directory = lambda *_: announced.set()
        with few_descriptors(0):
            with pytest.raises(ApiError) as caught:
                moves.ask(partition, target.path)
            assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert len(moves) == 0
        moves.ask(partition, target.path)
        with few_descriptors(0):
            await asyncio.sleep(0.1)
            assert not announced.is_set()
        await asyncio.wait_for(announced.wait(), 10)
        host.image = _image_with(target)
        with few_descriptors(0):
            moves.changed(partition)
            await asyncio.sleep(0.1)
            assert partition.log.directory.parent == source.path
        await asyncio.wait_for(asyncio.gather(*moves._tasks), 10)
        assert partition.log.directory.parent == target.path
        assert len(content(partition.log)) == 5
        assert not source.has_folder(*KEY)
        assert failures == []
        await moves.stop()

    asyncio.run(scenario())


def test_an_unfinished_copy_is_not_forgotten_without_a_file_descriptor(opened):
    async def scenario():
        directories, partition = opened(TOPIC_ID)
        moves = LogMoves(directories, partition.host)
        with few_descriptors(0), pytest.raises(OutOfDescriptorsError):
            moves.resume(partition)
        moves.resume(partition)
        assert moves.future_of(partition) is not None
        await moves.stop()

    asyncio.run(scenario())
