"""Offsets that transactions commit: pending, readable, forgotten; live as replayed."""

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_broker.coordinator.admin import decide_delete_group
from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.consumer.group import ConsumerGroup
from headrace_broker.coordinator.decision import Caller, Ticket
from headrace_broker.coordinator.expiry import decide_expiry, decide_topics_deleted
from headrace_broker.coordinator.offsets import decide_offset_delete, read_offsets
from headrace_broker.coordinator.records import OffsetRecord
from headrace_broker.coordinator.shard import GroupShard, replay
from headrace_broker.coordinator.transactional_offsets import (
    decide_txn_commit,
    forget_transactional,
    replay_marker,
    replay_transactional,
)
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace_broker.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headrace_broker.protocol.messages.records.coordinator import OffsetCommitKey, OffsetCommitValue
from headrace_broker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace_broker.protocol.types import PartitionIndex
from support.transactions import refusal

FOR_EVER_MS = 1 << 50


def new_shard():
    return GroupShard(partition=PartitionIndex(0))


def offset(value, partition=0, group="g"):
    return OffsetRecord(
        key=OffsetCommitKey(group=group, topic="t", partition=partition),
        value=None if value is None else OffsetCommitValue(offset=value),
    )


def read(shard, *, require_stable=False):
    asked = OffsetFetchRequestGroup(
        group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])]
    )
    found = read_offsets(shard, asked, lambda _name: UUID(int=0), require_stable=require_stable)
    return [(item.committed_offset, item.error_code) for item in found.topics[0].partitions]


def values(shard):
    return {
        (group, where): value.offset
        for group, offsets in shard.offsets.items()
        for where, value in offsets.items()
    }


def test_a_pending_offset_is_neither_read_nor_stable_until_its_marker():
    shard = new_shard()
    replay(shard, offset(1))
    replay_transactional(shard, 7, offset(5))
    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert read(shard) == [(1, 0), (-1, 0)]
    assert read(shard, require_stable=True) == [(-1, unstable), (-1, 0)]
    replay_marker(shard, 7, commits=True)
    assert read(shard, require_stable=True) == [(5, 0), (-1, 0)]
    replay_transactional(shard, 7, offset(9))
    replay_marker(shard, 7, commits=False)
    assert read(shard, require_stable=True) == [(5, 0), (-1, 0)]
    assert not shard.pending_offsets


def test_the_later_record_wins_whatever_made_it_readable():
    shard = new_shard()
    replay_transactional(shard, 7, offset(5))
    replay(shard, offset(6))
    replay_marker(shard, 7, commits=True)
    assert values(shard) == {("g", ("t", 0)): 6}
    replay_transactional(shard, 7, offset(7))
    replay_transactional(shard, 8, offset(8))
    replay_marker(shard, 8, commits=True)
    replay_marker(shard, 7, commits=True)
    assert values(shard) == {("g", ("t", 0)): 8}


def test_an_open_transaction_keeps_its_group():
    shard = new_shard()
    config = GroupConfig()
    caller = Caller(ticket=Ticket(1), api_version=3)
    decision = decide_txn_commit(
        shard, config, request_of(generation=-1), caller, 0, lambda *_: ErrorCode.NONE
    )
    noted = [replay_transactional(shard, 7, each, is_written=False) for each in decision.records]
    assert not decide_expiry(shard, config, FOR_EVER_MS).records
    assert "g" in shard.groups
    forget_transactional(shard, 7, noted)
    assert not shard.groups
    assert not shard.pending_offsets


@pytest.mark.parametrize("commits", [False, True])
def test_a_new_coordinator_knows_the_group_of_an_open_transaction(commits):
    """So that it is listed, and its offsets can be deleted, as by the coordinator before."""
    shard = new_shard()
    replay_transactional(shard, 7, offset(5))
    assert "g" in shard.groups
    assert [tombstone.key.partition for tombstone in delete_offset(shard).records] == [0]
    replay_marker(shard, 7, commits=commits)
    assert ("g" in shard.groups) is commits


@pytest.mark.parametrize("is_modern", [False, True])
def test_an_open_transaction_keeps_its_own_offsets_and_no_others(is_modern):
    """A busy application has a transaction open whenever somebody looks."""
    shard = new_shard()
    config = GroupConfig()
    if is_modern:
        shard.consumer_groups["g"] = ConsumerGroup(group_id="g", empty_since_ms=0)
    replay(shard, offset(1))
    replay(shard, offset(2, partition=1))
    replay_transactional(shard, 7, offset(5))
    (expired,) = decide_expiry(shard, config, FOR_EVER_MS).records
    assert (expired.key.partition, expired.value) == (1, None)
    replay(shard, expired)
    replay_marker(shard, 7, commits=False)
    assert values(shard) == {("g", ("t", 0)): 1}
    expired, *end = decide_expiry(shard, config, FOR_EVER_MS).records
    assert (expired.key.partition, expired.value) == (0, None)
    assert bool(end) is is_modern, "a simple group has no record of its own"


def waiting(shard, value, producer=7):
    return [replay_transactional(shard, producer, offset(value), is_written=False)]


def test_commits_that_are_refused_one_after_the_other_leave_nothing_pending():
    shard = new_shard()
    refused = [waiting(shard, value) for value in (1, 2, 3, 4)]
    for noted in refused:
        forget_transactional(shard, 7, noted)
    assert not shard.pending_offsets


def test_refused_commits_leave_the_one_that_is_in_the_log():
    shard = new_shard()
    replay_transactional(shard, 7, offset(1))
    refused = [waiting(shard, value) for value in (2, 3)]
    for noted in refused:
        forget_transactional(shard, 7, noted)
    replay_marker(shard, 7, commits=True)
    assert values(shard) == {("g", ("t", 0)): 1}


def test_a_marker_ends_nothing_that_waits_behind_it():
    shard = new_shard()
    replay_transactional(shard, 7, offset(1))
    refused = waiting(shard, 2)
    replay_marker(shard, 7, commits=True)
    assert values(shard) == {("g", ("t", 0)): 1}
    assert shard.pending_offsets == {"g": {("t", 0)}}
    forget_transactional(shard, 7, refused)
    assert not shard.pending_offsets


def test_a_transaction_that_commits_later_brings_no_offset_of_a_deleted_topic_back():
    shard = new_shard()
    replay_transactional(shard, 7, offset(1))
    replay_transactional(shard, 7, offset(2, partition=1))
    log = decide_topics_deleted(shard, {"t"}).records
    assert not decide_topics_deleted(shard, {"u"}).records
    for record in log:
        replay(shard, record)
    replay_marker(shard, 7, commits=True)
    assert not values(shard)
    assert not shard.groups
    assert not shard.pending_offsets


def request_of(generation=-1, member="", offset=3):
    return TxnOffsetCommitRequest(
        transactional_id="app",
        group_id="g",
        producer_id=7,
        generation_id=generation,
        member_id=member,
        topics=[
            TxnOffsetCommitRequestTopic(
                name="t", partitions=[TxnOffsetCommitRequestPartition(committed_offset=offset)]
            )
        ],
    )


def delete_offset(shard):
    topic = OffsetDeleteRequestTopic(
        name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)]
    )
    request = OffsetDeleteRequest(group_id="g", topics=[topic])
    caller = Caller(ticket=Ticket(2), api_version=0)
    return decide_offset_delete(shard, request, caller, lambda _name: True)


def delete_group(shard):
    return decide_delete_group(shard, "g", Caller(ticket=Ticket(2), api_version=2))


@pytest.mark.parametrize("is_committed_already", [False, True])
@pytest.mark.parametrize("delete", [delete_offset, delete_group])
def test_a_transaction_that_commits_later_brings_no_deleted_offset_back(
    delete, is_committed_already
):
    shard = new_shard()
    caller = Caller(ticket=Ticket(1), api_version=3)
    decided = decide_txn_commit(
        shard, GroupConfig(), request_of(generation=-1), caller, 0, lambda *_: ErrorCode.NONE
    )
    if is_committed_already:
        replay(shard, offset(1))
    for record in decided.records:
        replay_transactional(shard, 7, record)
    for tombstone in delete(shard).records:
        replay(shard, tombstone)
    replay_marker(shard, 7, commits=True)
    assert values(shard) == {}
    assert not shard.pending_offsets


def test_a_member_that_is_none_is_refused():
    shard = new_shard()
    caller = Caller(ticket=Ticket(1), api_version=5)

    def ask(**who):
        request = request_of(**who)
        return refusal(
            lambda: decide_txn_commit(
                shard, GroupConfig(), request, caller, 0, lambda *_: ErrorCode.NONE
            )
        )

    assert ask(generation=4, member="m") == ErrorCode.ILLEGAL_GENERATION, "no such group"
    replay(shard, offset(1))
    assert ask(generation=4, member="m") == ErrorCode.UNKNOWN_MEMBER_ID
    assert ask() == ErrorCode.NONE


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), st.integers(0, 1)),
        st.tuples(st.just("tombstone"), st.integers(0, 1)),
        st.tuples(st.just("pending"), st.integers(0, 1), st.integers(7, 9)),
        st.tuples(st.just("commit"), st.integers(7, 9)),
        st.tuples(st.just("abort"), st.integers(7, 9)),
        st.tuples(st.just("refused"), st.integers(0, 1), st.integers(7, 9)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(EVENTS)
def test_what_is_readable_is_the_last_decided_record_of_the_log(events):
    shard, log = new_shard(), []
    for number, event in enumerate(events):
        match event:
            case ("plain", partition):
                replay(shard, offset(number, partition))
                log.append((None, partition, number))
            case ("tombstone", partition):
                replay(shard, offset(None, partition))
                log.append((None, partition, None))
            case ("pending", partition, producer):
                replay_transactional(shard, producer, offset(number, partition))
                log.append((producer, partition, number))
            case ("refused", partition, producer):
                record = offset(number, partition)
                noted = replay_transactional(shard, producer, record, is_written=False)
                forget_transactional(shard, producer, [noted])
            case (outcome, producer):
                replay_marker(shard, producer, commits=outcome == "commit")
                log = [
                    (None if entry[0] == producer else entry[0], *entry[1:])
                    for entry in log
                    if outcome == "commit" or entry[0] != producer
                ]
        expected = {}
        for producer, partition, value in log:
            if producer is None:
                expected["g", ("t", partition)] = value
        found = {where: value for where, value in expected.items() if value is not None}
        assert values(shard) == found
        open_ones = {("t", partition) for producer, partition, _ in log if producer is not None}
        assert shard.pending_offsets.get("g", set()) == open_ones
