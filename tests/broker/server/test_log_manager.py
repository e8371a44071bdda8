"""What is done for logs between requests, to real logs on a disk."""

import asyncio

import pytest

from headrace_broker.log.log_directories import LogDirectories
from headrace_broker.metadata.image import MetadataDelta
from headrace_broker.protocol.batch import iterate_records
from headrace_broker.server.config.broker_config import parse_config
from headrace_broker.server.partitions.log_manager import LogManager
from headrace_broker.server.partitions.replica_manager import ReplicaManager
from support.log import START_MS, ManualClock, batch_of, content
from support.metadata import creatable, create, image_with_brokers

NODE = 1
SCRUB_BYTES_PER_SECOND = 1_000_000_000


@pytest.fixture
def compacted(tmp_path):
    """Make the log manager of a directory with a compacted topic, "t", and the topic's replica."""
    path, clock = tmp_path / "data", ManualClock()
    directories = LogDirectories.open([path], path, node_id=NODE, cluster_id="", clock=clock)
    (directory,) = directories
    config = parse_config(
        f"node.id={NODE}\nprocess.roles=broker,controller\nlog.dirs={path}\n"
        f"headrace.log.scrub.bytes.per.second={SCRUB_BYTES_PER_SECOND}\n"
    )
    replicas = ReplicaManager(NODE, directories, config.static)
    topic = creatable(
        "t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.0", segment_bytes="1048576"
    )
    image, _ = create(image_with_brokers(1), topic)
    failures = []

    async def opened():
        await replicas.apply(MetadataDelta.from_nothing(image), image)
        manager = LogManager(config, directory, replicas, clock, failures.append)
        return manager, replicas.partition("t", 0)

    yield opened
    assert failures == []
    directory.abandon()


def fill(partition):
    """Append records of one key, some segments of them."""
    while len(list(partition.log.segments)) < 4:
        partition.append(batch_of(b"v" * 200_000, key=b"k"), 1, START_MS)
    assert partition.high_watermark == partition.log.log_end_offset


def rot(log, number):
    """Change a bit of one of the segments, and return that one."""
    victim = list(log.segments)[number]
    log.flush()
    damaged = bytearray(victim.path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    victim.path.write_bytes(damaged)
    return victim


def test_compaction_leaves_the_newest_record_of_a_key(compacted):
    async def scenario():
        manager, partition = await compacted()
        fill(partition)
        before = sum(segment.size for segment in partition.log.segments)
        await manager.compact()
        await manager.stop()
        assert sum(segment.size for segment in partition.log.segments) < before / 2
        assert not partition.log.is_damaged

    asyncio.run(scenario())


def test_a_tombstone_stays_until_all_replicas_are_in_sync(compacted):
    async def scenario():
        manager, partition = await compacted()
        partition.append(batch_of(None, key=b"gone"), 1, START_MS)
        fill(partition)

        async def is_there():
            partition.log.cleaner_offset = 0
            await manager.compact()
            return any(
                record.value is None
                for batch in content(partition.log)
                for record in iterate_records(batch)
            )

        assert await is_there()
        manager._clock.time_ms += 10**9
        partition.replicas, partition.in_sync_replicas = (NODE, NODE + 1), (NODE,)
        assert await is_there()
        partition.in_sync_replicas = (NODE + 1, NODE)
        assert not await is_there()
        await manager.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("change", ["a replica is added", "the in-sync set shrinks"])
def test_a_tombstone_stays_for_a_replica_that_is_behind_since_the_pass_began(compacted, change):
    async def scenario():
        manager, partition = await compacted()
        partition.append(batch_of(None, key=b"gone"), 1, START_MS)
        fill(partition)
        await manager.compact()  # which sets the delete horizon
        manager._clock.time_ms += 10**9
        partition.log.cleaner_offset = 0
        before = content(partition.log)
        working = asyncio.create_task(manager.compact())
        await asyncio.sleep(0)
        if change == "a replica is added":
            partition.replicas = (NODE, NODE + 1)
        else:
            partition.in_sync_replicas = ()
        await working
        assert content(partition.log) == before
        assert list(partition.log.directory.glob("*.cleaned")) == []
        partition.replicas, partition.in_sync_replicas = (NODE,), (NODE,)
        await manager.compact()
        assert content(partition.log) != before
        await manager.stop()

    asyncio.run(scenario())


def test_a_scrub_says_how_much_it_has_read_and_reads_no_faster_than_it_may(compacted, monkeypatch):
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    async def scenario():
        manager, partition = await compacted()
        fill(partition)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        await manager.scrub()
        monkeypatch.undo()
        await manager.stop()
        totals = manager._directory.scrub
        assert totals.checked_bytes == sum(segment.size for segment in partition.log.segments)
        assert sum(pauses) == pytest.approx(totals.checked_bytes / SCRUB_BYTES_PER_SECOND)
        assert (totals.damage, totals.passes) == (0, 1)

    asyncio.run(scenario())


def test_compaction_that_meets_damage_tells_the_log_and_changes_nothing(compacted):
    async def scenario():
        manager, partition = await compacted()
        fill(partition)
        victim = rot(partition.log, 1)
        sizes = [segment.size for segment in partition.log.segments]
        await manager.compact()
        await manager.stop()
        (damage,) = partition.log.damages
        assert victim.base_offset <= damage.first_offset < damage.next_offset
        assert partition.log.is_damaged
        assert [segment.size for segment in partition.log.segments] == sizes
        assert list(partition.log.directory.glob("*.cleaned")) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("work", [LogManager.compact, LogManager.scrub])
def test_a_partition_that_is_deleted_as_its_damage_is_met_fails_no_directory(compacted, work):
    async def scenario():
        manager, partition = await compacted()
        fill(partition)
        rot(partition.log, 0)
        working = asyncio.create_task(work(manager))
        await asyncio.sleep(0)
        # The thread has met the damage, and the loop does not know it yet.
        manager._disk.submit(int).result()
        manager._directory.delete("t", 0)
        await working
        await manager.stop()
        assert partition.log.damages == []

    asyncio.run(scenario())
