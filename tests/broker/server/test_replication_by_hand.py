"""A leader and a follower with real logs, one fetch at a time."""

import asyncio
from types import SimpleNamespace

import pytest

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ReplicaState,
)
from headrace_broker.server.fetch.replica_sessions import DelayedFollowerFetch, ReplicaSession
from support.delayed import KeptAnswers
from support.log import START_MS, content
from support.replication import TOPIC_ID, Pair, batch_of
from support.waiting import until

VERSION = 17


def code_of(error):
    return error.value.code


def test_a_follower_copies_batches_and_its_next_fetch_commits_them(tmp_path):
    pair = Pair(tmp_path)
    pair.lead(1)
    told = []
    pair.append(1, b"a", b"b", acks=-1)
    leader, follower = pair.partitions[1], pair.partitions[2]
    leader.when_committed(2, told.append)
    pair.fetch(2, 1)
    assert pair.ends() == (2, 2)
    assert (leader.high_watermark, told) == (0, [])
    pair.fetch(2, 1)
    assert (leader.high_watermark, told) == (2, [None])
    assert follower.high_watermark == 2
    assert content(leader.log) == content(follower.log)


def test_nothing_above_the_high_watermark_is_read(tmp_path):
    pair = Pair(tmp_path)
    pair.lead(1)
    pair.append(1, b"a")
    leader = pair.partitions[1]
    assert leader.read(0, 1000, isolation=0, at_least_one=True) == b""
    pair.fetch(2, 1)
    pair.fetch(2, 1)
    assert leader.read(0, 1000, isolation=0, at_least_one=True) != b""


def test_what_a_dead_leader_had_alone_is_truncated_when_it_returns(tmp_path):
    pair = Pair(tmp_path, min_isr=1)
    pair.lead(1)
    pair.append(1, b"both")
    pair.fetch(2, 1)
    pair.append(1, b"alone", b"alone")
    pair.lead(2, isr=(2,))
    pair.append(2, b"new")
    assert pair.ends() == (3, 2)
    pair.fetch(1, 2)
    assert pair.ends() == (1, 2)
    pair.fetch(1, 2)
    assert content(pair.partitions[1].log) == content(pair.partitions[2].log)


def test_what_a_dead_leader_had_alone_is_dropped_where_the_leader_has_deleted_that_far(tmp_path):
    """The leader forgot the epochs that it deleted, and cannot tell the two logs apart there."""
    pair = Pair(tmp_path, min_isr=1)
    pair.lead(1)
    pair.append(1, b"both")
    pair.fetch(2, 1)
    pair.append(1, b"alone", b"alone", b"alone")
    pair.lead(2, isr=(2,))
    pair.append(2, b"new")
    pair.append(2, b"new")
    pair.append(2, b"kept")
    pair.partitions[2].log.delete_records_before(3)
    pair.fetch(1, 2)
    log = pair.partitions[1].log
    assert (log.segments.first.base_offset, log.log_start_offset, log.log_end_offset) == (3, 3, 3)
    assert pair.partitions[1].high_watermark == 3
    pair.fetch(1, 2)
    assert content(log) == content(pair.partitions[2].log)
    assert log.leader_epochs.entries == pair.partitions[2].log.leader_epochs.entries


@pytest.mark.parametrize("timestamp", [START_MS, START_MS + 1, None])
def test_a_time_is_not_looked_up_beyond_damage_that_another_replica_has_whole(tmp_path, timestamp):
    pair = Pair(tmp_path)
    pair.lead(1)
    leader = pair.partitions[1]
    for number, value in enumerate((b"first", b"second", b"third")):
        leader.append(batch_of(value, base_timestamp=START_MS + number), 1, START_MS)
    for _ in range(2):
        pair.fetch(2, 1)
    segment = leader.log.segments.first
    segment.path.write_bytes(segment.path.read_bytes().replace(b"second", b"sXcond"))
    segment.unchecked = (0, segment.size)  # as of a former process
    leader.log.look_for_damage(segment, segment.position_of(1))
    assert [damage.first_offset for damage in leader.log.damages] == [1]
    if timestamp == START_MS:
        assert leader.find_timestamp(timestamp).offset == 0, "it is before the damage"
        return
    with pytest.raises(ApiError) as refused:
        leader.find_timestamp(timestamp)
    assert code_of(refused) is ErrorCode.KAFKA_STORAGE_ERROR
    pair.lead(1, isr=(1,))
    leader.find_timestamp(timestamp)  # nobody else has it


def test_an_epoch_in_which_nothing_was_written_does_not_keep_a_follower_from_following(tmp_path):
    pair = Pair(tmp_path, min_isr=1)
    pair.lead(1)
    pair.append(1, b"a")
    pair.fetch(2, 1)
    pair.lead(1, nodes=(1,))
    pair.lead(2)
    pair.append(2, b"b")
    for _ in range(3):
        pair.fetch(1, 2)
    assert pair.ends() == (2, 2)


def test_a_diverging_fetch_is_no_progress(tmp_path):
    pair = Pair(tmp_path, min_isr=1)
    pair.lead(1)
    pair.append(1, b"a", b"b", b"c")
    pair.lead(2)
    pair.append(2, b"x", b"y", b"z")
    assert pair.ask(1, 2).diverging_epoch.epoch >= 0
    assert pair.partitions[2].high_watermark == 0


def test_stale_and_future_epochs_of_followers_are_refused(tmp_path):
    pair = Pair(tmp_path)
    pair.lead(1)
    pair.lead(1, nodes=(1,))
    with pytest.raises(ApiError) as stale:
        pair.fetch(2, 1)
    assert code_of(stale) is ErrorCode.FENCED_LEADER_EPOCH
    pair.lead(1, nodes=(2,))
    with pytest.raises(ApiError) as ahead:
        pair.fetch(2, 1)
    assert code_of(ahead) is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_leader_that_is_replaced_tells_those_who_wait_at_once(tmp_path):
    pair = Pair(tmp_path)
    pair.lead(1)
    pair.append(1, b"a")
    told = []
    pair.partitions[1].when_committed(1, told.append)
    pair.lead(2)
    assert [error.code for error in told] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    with pytest.raises(ApiError) as refused:
        pair.append(1, b"b")
    assert code_of(refused) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_below_min_insync_replicas_acks_all_is_refused_and_nothing_is_committed(tmp_path):
    pair = Pair(tmp_path, min_isr=2)
    pair.lead(1, isr=(1,))
    with pytest.raises(ApiError) as refused:
        pair.append(1, b"a", acks=-1)
    assert code_of(refused) is ErrorCode.NOT_ENOUGH_REPLICAS
    pair.append(1, b"a", acks=1)
    assert pair.partitions[1].high_watermark == 0


def test_a_follower_that_caught_up_is_proposed_for_the_in_sync_set(tmp_path):
    pair = Pair(tmp_path, min_isr=1)
    pair.lead(1, isr=(1,))
    pair.append(1, b"a")
    pair.fetch(2, 1)
    pair.fetch(2, 1)
    leader = pair.partitions[1]
    assert pair.isr_requests == [leader]
    assert leader.leading.pending.members == ((1, 10), (2, 20))


def test_records_that_did_not_fit_into_an_answer_go_into_the_next(tmp_path):
    """Nothing else may come to the partition for a long time, so nobody would look again."""
    pairs = [Pair(tmp_path / str(index)) for index in (0, 1)]
    for pair in pairs:
        pair.lead(1)
        pair.append(1, b"v" * 600)
    replicas = SimpleNamespace(
        partition_by_id=lambda _, index: pairs[index].partitions[1],
        host=pairs[0].partitions[1].host,
    )
    session = ReplicaSession(1, replicas, 2, 20)
    asked = [
        FetchPartition(
            partition=index,
            current_leader_epoch=1,
            fetch_offset=0,
            last_fetched_epoch=-1,
            partition_max_bytes=1 << 20,
        )
        for index in (0, 1)
    ]
    request = FetchRequest(
        replica_state=ReplicaState(replica_id=2, replica_epoch=20),
        max_bytes=1000,
        topics=[FetchTopic(topic_id=TOPIC_ID, partitions=asked)],
    )
    assert session.update(request, 10) is ErrorCode.NONE
    sent = [{fetch.index: len(data.records) for fetch, data in session.take()}]
    assert session.is_due()
    sent.append({fetch.index: len(data.records) for fetch, data in session.take()})
    assert sent[0][0] == sent[1][1] > 600
    assert not session.is_due()


def test_records_answer_a_waiting_fetch_and_a_later_request_overtakes_it(tmp_path):
    async def scenario():
        pair = Pair(tmp_path)
        pair.lead(1)
        assert pair.ask(2, 1).records == b""
        follower = KeptAnswers(ApiKey.FETCH)
        first = follower.admit(DelayedFollowerFetch(pair.session, VERSION, 1))
        pair.session.delay(first, 60)
        batch = batch_of(b"a")
        pair.partitions[1].append(batch, 1, START_MS)
        await until(lambda: follower.settled)
        # But for its offset and its leader epoch, which the leader sets.
        assert batch[17:] in b"".join(first.parts)
        second = follower.admit(DelayedFollowerFetch(pair.session, VERSION, 2))
        pair.session.delay(second, 60)
        pair.ask(2, 1)
        assert follower.settled == [first, second]

    asyncio.run(scenario())


def test_an_in_sync_set_of_a_former_leader_epoch_is_not_this_ones(tmp_path):
    pair = Pair(tmp_path)
    pair.lead(1)
    pair.lead(1)
    leader = pair.partitions[1]
    before = leader.leading.isr, leader.partition_epoch
    leader.isr_committed(leader.leader_epoch - 1, (1,), leader.partition_epoch + 1)
    assert (leader.leading.isr, leader.partition_epoch) == before


def test_a_session_looks_only_at_partitions_with_something_to_send(tmp_path):
    pair = Pair(tmp_path)
    pair.lead(1)
    pair.ask(2, 1)
    assert not pair.session.dirty
    pair.append(1, b"a")
    assert len(pair.session.dirty) == 1


def test_a_high_watermark_in_an_answer_that_was_overtaken_is_sent_again(tmp_path):
    """The follower ignores what an earlier request's answer says of a partition asked for again."""
    pair = Pair(tmp_path, min_isr=1)
    pair.lead(1)
    pair.append(1, b"a")
    leader, follower = pair.partitions[1], pair.partitions[2]
    first = pair.ask(2, 1)
    assert (first.high_watermark, len(first.records) > 0) == (0, True)
    # Before the follower's next offset comes, another request of the session is answered.
    leader.isr_committed(1, (1,), 2)
    (topic,) = pair.session.response().responses
    assert topic.partitions[0].high_watermark == 1
    follower.append_as_follower(first.records)
    pair.fetch(2, 1)
    assert follower.high_watermark == 1
    assert pair.ask(2, 1).high_watermark == 1, "it asks from there again"
    assert pair.session.response().responses == []


def test_an_fsync_that_a_truncation_overtook_vouches_for_nothing(tmp_path):
    pair = Pair(tmp_path, min_isr=1)
    pair.lead(1)
    pair.append(1, b"a", b"b")
    log = pair.partitions[1].log
    flush = log.begin_flush()
    log.truncate_to(0)
    pair.append(1, b"c", b"d")
    flush.run()
    assert log.finish_flush(flush) == 0
