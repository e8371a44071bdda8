"""A share group's records where ranges meet: what decides is one offset, or one run."""

from headrace_broker.coordinator.share_partition.acknowledgement import Acknowledgement
from headrace_broker.coordinator.share_partition.partition import (
    AcquireRequest,
    ReadBatch,
    ShareLimits,
    SharePartition,
    StateBatch,
)
from headrace_broker.coordinator.share_partition.states import AcknowledgeType, RecordState

LIMITS = ShareLimits(deliveries_max=4, locks_max=40, lock_ms=100)


def state(first, last, state, count=0):
    return StateBatch(
        first_offset=first, last_offset=last, delivery_state=state, delivery_count=count
    )


def acquire(partition, *batches, read_from=0, now_ms=0, **more):
    """Fetch for member "a" what was read: ranges, or what cannot be delivered as ReadBatch."""
    request = AcquireRequest(**{"member_id": "a", "records_max": 100, **more})
    read = [
        batch if isinstance(batch, ReadBatch) else ReadBatch(first=batch[0], last=batch[1])
        for batch in batches
    ]
    return [
        (item.first, item.last, item.count)
        for item in partition.acquire(request, read_from, read, LIMITS, now_ms)
    ]


def written(write):
    return [
        (item.first_offset, item.last_offset, item.delivery_state, item.delivery_count)
        for item in write.batches
    ]


def test_a_new_leader_delivers_what_lies_before_the_first_state_that_was_written():
    partition = SharePartition(0, [state(5, 9, RecordState.ARCHIVED)])
    assert acquire(partition, (0, 19)) == [(0, 4, 1), (10, 19, 1)]


def test_of_a_batch_what_has_not_failed_yet_is_delivered_before_what_has():
    partition = SharePartition(
        0, [state(0, 4, RecordState.AVAILABLE), state(5, 9, RecordState.AVAILABLE, 3)]
    )
    assert acquire(partition, (0, 9)) == [(0, 4, 1)]
    assert acquire(partition, (0, 9)) == [(5, 5, 4)]


def test_a_fetch_that_read_from_below_the_start_delivers_what_has_not_failed_first():
    """The log's start moved while the log was read."""
    partition = SharePartition(
        0, [state(0, 6, RecordState.AVAILABLE), state(7, 9, RecordState.AVAILABLE, 3)]
    )
    partition.move_log_start(5)
    assert acquire(partition, (0, 9)) == [(5, 6, 1)]


def test_a_strict_fetch_makes_no_record_known_that_it_does_not_take():
    partition = SharePartition(0)
    assert acquire(partition, (0, 9), records_max=3, is_strict=True) == [(0, 2, 1)]
    assert partition.end_offset == 3
    assert acquire(partition, (3, 9), read_from=3, records_max=9, is_strict=True) == [(3, 9, 1)]
    assert partition.end_offset == 10


def test_a_strict_fetch_takes_no_more_records_than_it_asked_for_out_of_several_ranges():
    partition = SharePartition(
        0, [state(0, 2, RecordState.AVAILABLE), state(3, 9, RecordState.AVAILABLE, 1)]
    )
    assert acquire(partition, (0, 9), records_max=5, is_strict=True) == [(0, 2, 1), (3, 4, 2)]


def test_a_fetch_that_has_its_number_of_records_takes_no_further_batch():
    partition = SharePartition(0)
    assert acquire(partition, (0, 4), (5, 9), records_max=5) == [(0, 4, 1)]
    assert partition.end_offset == 5


def test_a_fetch_that_lacks_one_record_takes_a_further_batch():
    partition = SharePartition(0)
    assert acquire(partition, (0, 1), (2, 9), records_max=3, is_strict=True) == [(0, 2, 1)]


def test_offsets_without_records_behind_records_are_written():
    partition = SharePartition(0)
    marker = ReadBatch(first=3, last=3, can_be_delivered=False)
    assert acquire(partition, (0, 2), marker, (6, 9)) == [(0, 2, 1), (6, 9, 1)]
    assert partition.needs_write
    assert written(partition.take_write()) == [(3, 5, RecordState.ARCHIVED, 0)]


def test_a_range_of_one_batch_ends_with_it_where_ranges_may_be_of_one_record():
    partition = SharePartition(0)
    assert acquire(partition, (0, 4), (5, 9), batch_size=1) == [(0, 4, 1), (5, 9, 1)]


def test_what_a_failed_write_leaves_is_written_in_one_batch_with_what_came_after_it():
    partition = SharePartition(0)
    acquire(partition, (0, 9))
    acquire(partition, (10, 19), read_from=10, now_ms=50)
    partition.expire(LIMITS, 100)
    write = partition.take_write()
    partition.expire(LIMITS, 150)
    partition.failed(write)
    assert written(partition.take_write()) == [(0, 19, RecordState.AVAILABLE, 1)]


def test_the_last_record_of_a_range_stays_when_the_log_begins_with_it():
    partition = SharePartition(0)
    acquire(partition, (0, 5))
    acquire(partition, (6, 9), read_from=6, member_id="b")
    partition.move_log_start(5)
    said = Acknowledgement(first=5, last=5, types=[AcknowledgeType.ACCEPT])
    assert partition.acknowledge("a", [said], LIMITS, 0)
