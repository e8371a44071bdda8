"""What the quorum keeps on disk: state file, snapshots, and the log that begins with one."""

import random
import uuid

import pytest

from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.metadata.image import MetadataDelta, MetadataImage
from headrace_broker.metadata.records import (
    BrokerEndpoint,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from headrace_broker.metadata.snapshot import delta_between, snapshot_records
from headrace_broker.protocol.batch import patch_base_offset
from headrace_broker.protocol.types import LeaderEpoch, NodeId, Offset
from headrace_broker.raft.control import NOT_IN_LOG
from headrace_broker.raft.types import (
    Endpoint,
    OffsetAndEpoch,
    QuorumState,
    ReplicaKey,
    Voter,
    VotersAt,
    VoterSet,
)
from headrace_broker.server.clock import SystemClock
from headrace_broker.server.quorum.metadata_batches import (
    decode_batches,
    encode_batch,
    encode_batches,
)
from headrace_broker.server.quorum.quorum_state import QuorumStateError, QuorumStateFile
from headrace_broker.server.quorum.raft_log import MetadataLog, read_control
from headrace_broker.server.quorum.raft_snapshots import build_snapshot

ID = OffsetAndEpoch(Offset(40), LeaderEpoch(3))
VOTERS = VoterSet(
    [
        Voter(key=ReplicaKey(NodeId(n), uuid.UUID(int=n)), endpoints=(Endpoint("h", n),))
        for n in (1, 2, 3)
    ]
)


def _history(rng, length):
    """Return records of a legal history."""
    topics, records = {}, [FeatureLevelRecord(name="metadata.version", feature_level=29)]
    records += [
        RegisterBrokerRecord(
            broker_id=node,
            broker_epoch=node,
            incarnation_id=uuid.UUID(int=node),
            end_points=[BrokerEndpoint(name="P", host="h", port=node)],
            rack=rng.choice([None, "r"]),
            fenced=rng.random() < 0.5,
        )
        for node in (1, 2, 3)
    ]
    for number in range(length):
        topic_id = uuid.UUID(int=100 + number)
        records.append(TopicRecord(name=f"t{number}", topic_id=topic_id))
        records += [
            PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=[1, 2, 3],
                isr=[1, 2],
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
                directories=[uuid.UUID(int=9)] * 3,
                eligible_leader_replicas=rng.choice([None, [3]]),
            )
            for index in range(rng.randint(1, 4))
        ]
        topics[topic_id] = f"t{number}"
        touched = rng.choice(sorted(topics, key=str))
        match rng.randrange(4):
            case 0:
                records.append(PartitionChangeRecord(partition_id=0, topic_id=touched, leader=2))
            case 1:
                records.append(RemoveTopicRecord(topic_id=touched))
                del topics[touched]
            case 2:
                records.append(
                    ConfigRecord(
                        resource_type=2, resource_name=topics[touched], name="a", value="b"
                    )
                )
            case _:
                records.append(ProducerIdsRecord(next_producer_id=number * 1000))
    return records


def _image(records, base=None, offset=0):
    image = base or MetadataImage()
    return image.replay_batch(records, offset=Offset(offset), epoch=LeaderEpoch(1))[0]


@pytest.mark.parametrize("seed", range(10))
def test_a_snapshots_records_make_the_same_image(seed):
    image = _image(_history(random.Random(seed), 30))
    assert _image(snapshot_records(image)) == image


@pytest.mark.parametrize("seed", range(10))
def test_the_delta_between_two_images_is_what_replaying_gives(seed):
    records = _history(random.Random(seed), 30)
    cut = random.Random(seed).randrange(1, len(records))
    before = _image(records[:cut])
    after, delta = before.replay_batch(records[cut:], offset=Offset(9), epoch=LeaderEpoch(1))
    found = delta_between(before, after)
    assert found.topics_removed == delta.topics_removed
    assert found.brokers_changed == delta.brokers_changed
    assert found.features_changed == delta.features_changed
    # Replaying also tells of what changed back.
    assert set(found.topics_changed) <= set(delta.topics_changed)
    for name, indexes in found.topics_changed.items():
        assert indexes <= delta.topics_changed[name]
    nothing = delta_between(after, after)
    assert nothing.is_empty
    assert delta_between(MetadataImage(), after) == MetadataDelta.from_nothing(after)


def test_the_quorum_state_is_what_was_written_last(tmp_path):
    file = QuorumStateFile(tmp_path)
    assert file.read() == QuorumState()
    state = QuorumState(
        epoch=LeaderEpoch(7), leader_id=None, voted=ReplicaKey(NodeId(2), uuid.UUID(int=5))
    )
    file.write(state)
    assert QuorumStateFile(tmp_path).read() == state
    file.write(QuorumState(epoch=LeaderEpoch(8), leader_id=NodeId(3)))
    assert file.read() == QuorumState(epoch=LeaderEpoch(8), leader_id=NodeId(3))
    file.path.write_text('{"leaderId": 1')
    with pytest.raises(QuorumStateError):
        file.read()


def test_kafkas_own_quorum_state_is_read(tmp_path):
    file = QuorumStateFile(tmp_path)
    file.path.write_text(
        '{"clusterId":"","leaderId":1,"leaderEpoch":4,"votedId":-1,"appliedOffset":0,'
        '"currentVoters":[{"voterId":1}],"data_version":0}'
    )
    assert file.read() == QuorumState(epoch=LeaderEpoch(4), leader_id=NodeId(1))


def _snapshot(control, records=()):
    return build_snapshot(encode_batches(records, 1), control, 1, ID)


def test_a_snapshot_holds_the_records_and_the_voters(tmp_path):
    log = MetadataLog.open(tmp_path, SystemClock())
    records = _history(random.Random(1), 2000)
    control = VotersAt(offset=Offset(2), voters=VOTERS, kraft_version=1)
    log.snapshots.write(ID, _snapshot(control, records))
    data = log.snapshots.read(ID)
    assert [record for batch in decode_batches(data) for record in batch.records] == records
    unknown = VotersAt(offset=NOT_IN_LOG, voters=VoterSet(), kraft_version=0)
    found = read_control(data, ID, unknown)
    assert found == VotersAt(offset=Offset(39), voters=VOTERS, kraft_version=1)
    log.close()


def test_a_snapshot_that_cannot_be_read_fails_the_directory(tmp_path):
    log = MetadataLog.open(tmp_path, SystemClock())
    with pytest.raises(FileNotFoundError):
        log.snapshots.read_part(ID, 0, 100)
    log.snapshots.path(ID).mkdir()
    with pytest.raises(LogDirectoryFailure):
        log.snapshots.read_part(ID, 0, 100)
    log.close()


def test_a_snapshot_fetched_in_parts_is_installed_only_whole(tmp_path):
    source = MetadataLog.open(tmp_path / "a", SystemClock())
    target = MetadataLog.open(tmp_path / "b", SystemClock())
    control = VotersAt(offset=NOT_IN_LOG, voters=VOTERS, kraft_version=0)
    source.snapshots.write(ID, _snapshot(control, _history(random.Random(2), 50)))
    _, size = source.snapshots.read_part(ID, 0, 1)
    for end in (size // 2, size):
        assert target.snapshots.ids == []
        for start in range(0, end, 500):
            part, _ = source.snapshots.read_part(ID, start, min(500, end - start))
            target.snapshots.write_part(ID, start, part)
        if end < size:
            assert target.snapshots.install(ID) is None
    assert target.snapshots.install(ID) == source.snapshots.read(ID)
    target.restart_at(ID)
    assert (target.start_offset, target.end_offset) == (40, 40)
    target.close()
    reopened = MetadataLog.open(tmp_path / "b", SystemClock())
    assert reopened.state().snapshots == (ID,)
    assert (reopened.start_offset, reopened.end_offset) == (40, 40)
    reopened.close()
    source.close()


def test_a_log_that_a_crash_left_behind_its_snapshot_begins_with_it(tmp_path):
    log = MetadataLog.open(tmp_path, SystemClock())
    batch = encode_batch([FeatureLevelRecord(name="f", feature_level=1)], 1)
    log.append(Offset(0), batch)
    control = VotersAt(offset=NOT_IN_LOG, voters=VOTERS, kraft_version=0)
    log.snapshots.write(ID, _snapshot(control))
    log.close()
    log = MetadataLog.open(tmp_path, SystemClock())
    assert (log.start_offset, log.end_offset) == (40, 40)
    log.close()


def test_a_trim_that_a_crash_cut_in_two_is_finished_at_the_next_start(tmp_path):
    log = MetadataLog.open(tmp_path, SystemClock(), segment_bytes=200)
    batch = encode_batch([FeatureLevelRecord(name="f", feature_level=1)], 1)
    for offset in range(50):
        patch_base_offset(batch, Offset(offset))
        log.append(Offset(offset), batch)
    control = VotersAt(offset=NOT_IN_LOG, voters=VOTERS, kraft_version=0)
    kept = OffsetAndEpoch(Offset(45), LeaderEpoch(3))
    for snapshot_id in (OffsetAndEpoch(Offset(5), LeaderEpoch(1)), kept):
        log.snapshots.write(snapshot_id, _snapshot(control))
    log.close()
    # The first segments are gone for good; the older snapshot's removal was not durable yet.
    segments = sorted((tmp_path / "__cluster_metadata-0").glob("*.log"))
    for path in segments[:3]:
        path.unlink()
    assert 5 < int(segments[3].stem) < 45
    log = MetadataLog.open(tmp_path, SystemClock())
    assert (log.start_offset, log.end_offset) == (45, 50)
    assert log.state().snapshots == (kept,)
    log.close()


def test_an_append_that_does_not_continue_the_log_is_a_bug(tmp_path):
    log = MetadataLog.open(tmp_path, SystemClock())
    with pytest.raises(RuntimeError, match="an append at 3"):
        log.append(Offset(3), encode_batch([FeatureLevelRecord(name="f", feature_level=1)], 1))
    log.close()
