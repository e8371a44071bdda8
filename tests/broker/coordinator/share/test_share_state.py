"""The share coordinator's state: records in and out, fencing, snapshots, replay."""

from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.coordinator.share_partition.partition import StateBatch
from headrace_broker.coordinator.share_state.records import (
    SnapshotRecord,
    UpdateRecord,
    read_record,
    write_record,
)
from headrace_broker.coordinator.share_state.shard import (
    ShareStateShard,
    StateChange,
    decide_cold_snapshots,
    decide_delete,
    decide_initialize,
    decide_read,
    decide_topics_deleted,
    decide_write,
    replay,
)
from headrace_broker.coordinator.share_state.state import ShareKey, overlay
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.server.shares.state_coordinator import coordinator_key

KEY = ShareKey(group_id="g", topic_id=UUID(int=7), partition=3)


def batch(first, last, state=0, count=1):
    return StateBatch(
        first_offset=first, last_offset=last, delivery_state=state, delivery_count=count
    )


def change(start=0, leader=5, state=1, *batches):
    return StateChange(
        state_epoch=state,
        leader_epoch=leader,
        start_offset=start,
        complete_count=0,
        batches=batches,
    )


def carry_out(shard, records):
    for record in records:
        replay(shard, record)
    return records


def begun(state_epoch=1):
    shard = ShareStateShard()
    carry_out(shard, decide_initialize(shard, KEY, state_epoch, -1, 0))
    return shard


def test_updates_follow_a_snapshot_until_the_next_one():
    shard = begun()
    kinds = [
        type(carry_out(shard, decide_write(shard, KEY, change(number), 0, 3))[0])
        for number in range(8)
    ]
    updates = [UpdateRecord] * 3
    assert kinds == [*updates, SnapshotRecord, *updates, SnapshotRecord]
    assert shard.states[KEY].snapshot_epoch == 2
    assert shard.states[KEY].start_offset == 7


def assert_leader_is_fenced(shard, leader):
    for refused in (
        lambda: decide_write(shard, KEY, change(leader=leader), 0),
        lambda: decide_read(shard, KEY, leader, 0),
    ):
        with pytest.raises(ApiError) as error:
            refused()
        assert error.value.code is ErrorCode.FENCED_LEADER_EPOCH


def test_a_former_leader_is_fenced_as_soon_as_another_one_has_read():
    shard = begun()
    carry_out(shard, decide_read(shard, KEY, 5, 0))
    assert decide_read(shard, KEY, 5, 0) == []
    carry_out(shard, decide_read(shard, KEY, 6, 0))
    assert_leader_is_fenced(shard, 5)


def test_a_former_leader_is_fenced_where_the_next_one_found_no_state():
    shard = ShareStateShard()
    carry_out(shard, decide_read(shard, KEY, 6, 0))
    assert decide_read(shard, KEY, 6, 0) == []
    assert_leader_is_fenced(shard, 5)
    state = shard.states[KEY]
    assert (state.state_epoch, state.start_offset) == (0, -1), "nobody has begun it"
    assert decide_initialize(shard, KEY, 1, -1, 0) == [], "it is there, which is all a group wants"
    carry_out(shard, decide_write(shard, KEY, change(3, leader=6, state=0), 0))
    assert shard.states[KEY].start_offset == 3


def test_a_former_life_of_the_state_is_fenced():
    shard = begun(state_epoch=4)
    for refused in (
        lambda: decide_write(shard, KEY, change(state=3), 0),
        lambda: decide_initialize(shard, KEY, 3, 0, 0),
    ):
        with pytest.raises(ApiError) as error:
            refused()
        assert error.value.code is ErrorCode.FENCED_STATE_EPOCH


def test_what_is_done_with_stays_so_whatever_arrives_late():
    """A write whose outcome its leader never heard is sent again, or is on its way for long."""
    for updates_max in (0, 500):
        shard = begun()
        accepted = change(0, 5, 1, batch(5, 9, 2), batch(12, 12, 4))
        carry_out(shard, decide_write(shard, KEY, accepted, 0, updates_max))
        carry_out(shard, decide_write(shard, KEY, change(10), 0, updates_max))
        # The leader took that for failed: what it released then is written, from the old start on.
        late = change(0, 5, 1, batch(0, 4, 0), batch(10, 13, 0, 2))
        carry_out(shard, decide_write(shard, KEY, late, 0, updates_max))
        state = shard.states[KEY]
        assert state.start_offset == 10
        assert state.batches == (batch(10, 11, 0, 2), batch(12, 12, 4), batch(13, 13, 0, 2))
        assert state.complete_count == 1
        # A new life may begin anywhere.
        carry_out(shard, decide_initialize(shard, KEY, 2, 3, 0))
        assert shard.states[KEY].start_offset == 3


def test_a_new_life_forgets_the_former_ones_records():
    shard = begun()
    carry_out(shard, decide_write(shard, KEY, change(5, 5, 1, batch(7, 9)), 0))
    carry_out(shard, decide_initialize(shard, KEY, 2, 0, 0))
    assert shard.states[KEY].batches == ()
    assert shard.states[KEY].start_offset == 0


def test_a_group_that_asks_again_for_state_changes_nothing_of_what_there_is():
    """Its request may have been sent twice, and arrive when members have been at work for long."""
    shard = begun()
    carry_out(shard, decide_write(shard, KEY, change(5, 5, 1, batch(7, 9)), 0))
    before = shard.states[KEY]
    for state_epoch in (1, 2):
        assert decide_initialize(shard, KEY, state_epoch, -1, 0) == []
    assert shard.states[KEY] == before


def test_what_is_deleted_is_gone_and_is_deleted_again_the_same_way():
    shard = begun()
    for _ in range(2):
        assert carry_out(shard, decide_delete(KEY))
        assert shard.states == {}
    shard = begun()
    carry_out(shard, list(decide_topics_deleted(shard, {KEY.topic_id})))
    assert shard.states == {}


def test_a_cold_snapshot_lets_the_log_before_it_go():
    shard = begun()
    shard.snapshot_offsets[KEY] = 10
    assert shard.needed_from(50) == 10
    records = decide_cold_snapshots(shard, 600_000, 300_000)
    for record in records:
        replay(shard, record, 50)
    assert shard.needed_from(51) == 50
    assert decide_cold_snapshots(shard, 600_000, 300_000) == []


batches = st.lists(
    st.builds(
        lambda first, size, state, count: batch(first, first + size, state, count),
        st.integers(0, 40),
        st.integers(0, 10),
        st.sampled_from([0, 2, 4]),
        st.integers(0, 5),
    ),
    max_size=8,
)


def by_offset(found):
    return {
        offset: (item.delivery_state, item.delivery_count)
        for item in found
        for offset in range(item.first_offset, item.last_offset + 1)
    }


@given(batches, batches, st.integers(0, 50))
def test_what_came_later_holds_offset_by_offset(before, later, start):
    before = overlay((), before, 0)
    result = overlay(before, later, start)
    expected = by_offset(before) | by_offset(later)
    assert by_offset(result) == {key: item for key, item in expected.items() if key >= start}
    ends = [item.last_offset for item in result]
    assert ends == sorted(ends)
    assert all(one.last_offset < two.first_offset for one, two in pairwise(result))


@given(st.lists(st.tuples(batches, st.integers(0, 30)), min_size=1, max_size=8), st.integers(0, 3))
def test_a_log_that_is_read_back_gives_the_same_state(writes, updates_max):
    shard = ShareStateShard()
    log = carry_out(shard, decide_initialize(shard, KEY, 1, -1, 0))
    for items, start in writes:
        taken = change(start, 5, 1, *overlay((), items, 0))
        log += carry_out(shard, decide_write(shard, KEY, taken, 1, updates_max))
    again = ShareStateShard()
    for offset, record in enumerate(log):
        found = read_record(*write_record(record))
        assert found == record
        replay(again, found, offset)
    assert again.states == shard.states
    # What lies below the snapshot is not needed.
    rest = ShareStateShard()
    needed = again.needed_from(len(log))
    for offset, record in enumerate(log[needed:], needed):
        replay(rest, record, offset)
    assert rest.states == shard.states


def test_a_share_partition_is_coordinated_where_kafka_says():
    # group:topic id in URL-safe base 64 without padding:partition
    assert coordinator_key(KEY) == "g:AAAAAAAAAAAAAAAAAAAABw:3"
