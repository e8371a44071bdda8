"""What becomes of records that go to a dead-letter topic (KIP-1191), before the topic has them."""

import pytest

from headrace_broker.coordinator.share_partition.acknowledgement import Acknowledgement
from headrace_broker.coordinator.share_partition.partition import (
    AcquireRequest,
    DeadLetter,
    ReadBatch,
    ShareLimits,
    SharePartition,
    StateBatch,
)
from headrace_broker.coordinator.share_partition.states import AcknowledgeType, RecordState
from headrace_broker.coordinator.share_state.state import without_steps_back
from headrace_broker.protocol.errors import ApiError, ErrorCode

LIMITS = ShareLimits(deliveries_max=2, lock_ms=100, has_dead_letters=True)


def fetch(partition, last, now_ms=0):
    begin = partition.fetch_offset(LIMITS)
    request = AcquireRequest(member_id="a", records_max=100)
    batches = [ReadBatch(first=begin, last=last)]
    return partition.acquire(request, begin, batches, LIMITS, now_ms)


def say(partition, first, last, kind):
    types = [kind]
    said = [Acknowledgement(first=first, last=last, types=types)]
    return partition.acknowledge("a", said, LIMITS, 0)


def settle(partition):
    write = partition.take_write()
    partition.committed(write)
    return write


def letter(first, last, count, *, is_rejected):
    return DeadLetter(first=first, last=last, count=count, is_rejected=is_rejected)


def test_what_is_rejected_is_a_dead_letter_once_that_is_durable():
    partition = SharePartition(0)
    fetch(partition, 4)
    say(partition, 1, 2, AcknowledgeType.REJECT)
    assert partition.dead_letters(LIMITS) == []
    write = partition.take_write()
    assert [(each.first_offset, each.delivery_state) for each in write.batches] == [
        (1, RecordState.ARCHIVING)
    ]
    partition.failed(write)
    assert partition.dead_letters(LIMITS) == [], "nobody has heard that they are rejected"
    say(partition, 1, 2, AcknowledgeType.REJECT)
    settle(partition)
    assert partition.dead_letters(LIMITS) == [letter(1, 2, 1, is_rejected=True)]
    assert partition.rejected == 2


def test_a_dead_letter_is_delivered_to_nobody_and_holds_the_start_until_it_is_written():
    partition = SharePartition(0)
    fetch(partition, 0)
    say(partition, 0, 0, AcknowledgeType.REJECT)
    settle(partition)
    assert partition.fetch_offset(LIMITS) == 1
    assert (partition.start_offset, partition.has_dead_letters, partition.in_flight) == (0, True, 0)
    with pytest.raises(ApiError) as error:
        say(partition, 0, 0, AcknowledgeType.ACCEPT)
    assert error.value.code is ErrorCode.INVALID_RECORD_STATE
    partition.archive_dead(0, 0)
    assert settle(partition).start_offset == 1
    assert (partition.start_offset, partition.has_dead_letters) == (1, False)


def test_a_lock_that_times_out_at_the_last_delivery_makes_a_dead_letter():
    partition = SharePartition(0)
    for delivery in range(2):
        fetch(partition, 0, now_ms=delivery * 1000)
        partition.expire(LIMITS, delivery * 1000 + 100)
    assert partition.dead_letters(LIMITS) == [], "not durable yet"
    settle(partition)
    assert partition.dead_letters(LIMITS) == [letter(0, 0, 2, is_rejected=False)]
    assert partition.undeliverable == 1


def test_a_new_leader_goes_on_with_the_dead_letters_of_the_former_one():
    def kept(first, last, count):
        return StateBatch(
            first_offset=first,
            last_offset=last,
            delivery_state=RecordState.ARCHIVING,
            delivery_count=count,
        )

    partition = SharePartition(0, [kept(0, 1, 1), kept(4, 4, 2)])
    assert partition.dead_letters(LIMITS) == [
        letter(0, 1, 1, is_rejected=True),
        letter(4, 4, 2, is_rejected=False),
    ]
    assert partition.fetch_offset(LIMITS) == 2


def test_without_a_dead_letter_topic_a_rejected_record_is_archived_at_once():
    limits = ShareLimits(deliveries_max=2)
    partition = SharePartition(0)
    fetch(partition, 0)
    said = [Acknowledgement(first=0, last=0, types=[AcknowledgeType.REJECT])]
    partition.acknowledge("a", said, limits, 0)
    assert settle(partition).start_offset == 1
    assert not partition.has_dead_letters


def test_a_gap_is_no_dead_letter():
    partition = SharePartition(0)
    fetch(partition, 0)
    say(partition, 0, 0, AcknowledgeType.GAP)
    assert settle(partition).start_offset == 1


def test_a_late_write_makes_no_dead_letter_available_again():
    def batch(state):
        return StateBatch(first_offset=3, last_offset=3, delivery_state=state, delivery_count=1)

    archiving, archived = batch(RecordState.ARCHIVING), batch(RecordState.ARCHIVED)
    assert without_steps_back([archiving], [batch(RecordState.AVAILABLE)]) == ()
    assert without_steps_back([archived], [archiving]) == ()
    assert without_steps_back([archiving], [archived]) == (archived,)
