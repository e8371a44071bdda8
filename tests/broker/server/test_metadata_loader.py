"""When a node's image is published: as one change, and not before it has caught up."""

import asyncio
import uuid

from headrace_broker.metadata.records import RemoveTopicRecord, TopicRecord
from headrace_broker.protocol.batch import patch_base_offset
from headrace_broker.protocol.types import LeaderEpoch, Offset
from headrace_broker.raft.control import NOT_IN_LOG
from headrace_broker.raft.types import OffsetAndEpoch, VotersAt, VoterSet
from headrace_broker.server.clock import SystemClock
from headrace_broker.server.quorum.metadata_batches import encode_batch, encode_batches
from headrace_broker.server.quorum.metadata_loader import MetadataLoader
from headrace_broker.server.quorum.raft_log import MetadataLog
from headrace_broker.server.quorum.raft_snapshots import build_snapshot

OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)
SNAPSHOT = OffsetAndEpoch(Offset(40), LeaderEpoch(3))


def test_a_snapshot_and_the_log_after_it_are_one_change_once_the_node_has_caught_up(tmp_path):
    async def run() -> None:
        log = MetadataLog.open(tmp_path, SystemClock())
        control = VotersAt(offset=NOT_IN_LOG, voters=VoterSet(), kraft_version=0)
        batches = encode_batches([TopicRecord(name="t", topic_id=OLD)], 1)
        log.snapshots.write(SNAPSHOT, build_snapshot(batches, control, 1, SNAPSHOT))
        log.restart_at(SNAPSHOT)
        records = [RemoveTopicRecord(topic_id=OLD), TopicRecord(name="t", topic_id=NEW)]
        batch = encode_batch(records, 1)
        patch_base_offset(batch, SNAPSHOT.offset)
        log.append(SNAPSHOT.offset, batch)
        failures: list[BaseException] = []
        loader = MetadataLoader(log, failures.append)
        published: list[tuple[object, object]] = []
        loader.subscribe(lambda delta, image: published.append((delta, image)))
        loader.start()
        loader.load_snapshot(SNAPSHOT)
        await asyncio.sleep(0.02)
        # The former process of this node may have made folders for what the log says after it.
        assert published == []
        loader.advance(log.end_offset)
        loader.release()
        await loader.wait_for(Offset(log.end_offset - 1))
        await loader.close()
        log.close()
        assert failures == []
        ((delta, image),) = published
        assert image.topics["t"].topic_id == NEW
        assert list(delta.topics_removed) == []

    asyncio.run(run())
