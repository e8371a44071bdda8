"""Idempotent and transactional producers: what is a duplicate, what is fenced, what is unstable."""

import pytest

from headrace_broker.log.batches import SEQUENCE_MAX
from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.log.producer_snapshot import (
    decode_snapshot,
    encode_snapshot,
    load_latest_snapshot,
    snapshot_path,
)
from headrace_broker.log.validation import AppendOrigin
from headrace_broker.log.verification import ONGOING
from headrace_broker.protocol.errors import ApiError, ErrorCode
from support.log import START_MS, append, batch_of, marker, open_at

TRANSACTIONAL = 0x10


def from_producer(sequence, *values, epoch=0, producer_id=7, **fields):
    return batch_of(
        *(values or (b"v",)),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        **fields,
    )


def code_of(log, batch):
    with pytest.raises(ApiError) as caught:
        append(log, batch)
    return caught.value.code


def end(log, *, commit, producer_id=7, epoch=0, coordinator_epoch=0):
    batch = marker(producer_id, epoch, commit=commit, coordinator_epoch=coordinator_epoch)
    return log.append_as_leader(batch, 0, now_ms=START_MS, origin=AppendOrigin.COORDINATOR)


def test_each_of_the_last_five_batches_is_answered_with_its_first_offset(new_log):
    log = new_log()
    for number in range(7):
        append(log, from_producer(number * 2, b"a", b"b"))
    for number in range(2, 7):
        info = append(log, from_producer(number * 2, b"a", b"b"))
        assert info.is_duplicate
        assert (info.first_offset, info.last_offset) == (number * 2, number * 2 + 1)
    assert log.log_end_offset == 14
    older = code_of(log, from_producer(2, b"a", b"b"))
    assert older is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_is_out_of_order(new_log):
    log = new_log()
    append(log, from_producer(0))
    assert code_of(log, from_producer(2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_unknown_producer_may_begin_anywhere(new_log):
    log = new_log()
    append(log, from_producer(41))
    append(log, from_producer(42))


def test_an_old_epoch_is_fenced_and_a_new_one_begins_at_zero(new_log):
    log = new_log()
    append(log, from_producer(0, epoch=3))
    assert code_of(log, from_producer(1, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_of(log, from_producer(1, epoch=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, from_producer(0, epoch=4))
    assert code_of(log, from_producer(1, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_what_a_former_epoch_wrote_is_no_duplicate_of_a_new_ones(new_log):
    """The same sequences mean other records, which would be acknowledged and lost."""
    log = new_log()
    for sequence in range(3):
        append(log, from_producer(sequence, epoch=3))
    first = append(log, from_producer(0, epoch=4))
    again = append(log, from_producer(0, epoch=4))
    assert (again.is_duplicate, again.first_offset) == (True, first.first_offset)
    assert code_of(log, from_producer(2, epoch=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap(new_log):
    log = new_log()
    append(log, from_producer(SEQUENCE_MAX - 1, b"a", b"b", b"c"))
    again = append(log, from_producer(SEQUENCE_MAX - 1, b"a", b"b", b"c"))
    assert again.is_duplicate
    append(log, from_producer(1))
    append(log, from_producer(SEQUENCE_MAX, producer_id=8))
    append(log, from_producer(0, producer_id=8))


def test_duplicates_are_known_after_a_kill_and_after_a_clean_restart(new_log, folder, clock):
    log = new_log(segment_bytes=400)
    for number in range(20):
        append(log, from_producer(number))
    log.abandon()
    killed = open_at(folder, clock, segment_bytes=400)
    assert [append(killed, from_producer(n)).first_offset for n in range(15, 20)] == list(
        range(15, 20)
    )
    killed.close()
    clean = new_log(segment_bytes=400)
    assert [append(clean, from_producer(n)).first_offset for n in range(15, 20)] == list(
        range(15, 20)
    )
    append(clean, from_producer(20))


def test_silent_producers_are_forgotten_unless_a_transaction_is_open(new_log):
    log = new_log()
    append(log, from_producer(0, producer_id=1))
    append(log, from_producer(0, producer_id=2, attributes=TRANSACTIONAL))
    for elapsed_ms in (0, 5000):
        log.expire_producers(START_MS + 999, elapsed_ms, 1000)
    assert len(log.producers) == 2
    log.expire_producers(START_MS + 1000, 5000, 1000)
    log.expire_producers(START_MS + 1999, 5999, 1000)
    assert len(log.producers) == 2
    log.expire_producers(START_MS + 2000, 6000, 1000)
    assert [producer for producer, _ in log.producers.items()] == [2]


def test_a_wall_clock_that_jumps_ahead_forgets_nobody_who_may_retry(new_log):
    log = new_log()
    day_ms = 24 * 60 * 60_000
    batch = from_producer(0, producer_id=1)
    append(log, batch)
    for minute in range(9):
        log.expire_producers(START_MS + 2 * day_ms, minute * 60_000, day_ms)
    assert append(log, batch).is_duplicate
    assert log.log_end_offset == 1
    # It came back, was silent for a while, and jumped once more: that counts from there on.
    log.expire_producers(START_MS, 9 * 60_000, day_ms)
    for minute in range(11, 21):
        log.expire_producers(START_MS + 2 * day_ms, minute * 60_000, day_ms)
    assert append(log, batch).is_duplicate
    log.expire_producers(START_MS + 2 * day_ms, 21 * 60_000, day_ms)
    assert len(log.producers) == 0


def test_a_producer_that_wrote_since_it_looked_silent_is_silent_from_then_on(new_log):
    log = new_log()
    append(log, from_producer(0, producer_id=1))
    log.expire_producers(START_MS + 5000, 0, 1000)
    append(log, from_producer(1, producer_id=1))
    log.expire_producers(START_MS + 9000, 1000, 1000)
    log.expire_producers(START_MS + 9000, 1999, 1000)
    assert len(log.producers) == 1
    log.expire_producers(START_MS + 9000, 2000, 1000)
    assert len(log.producers) == 0


def test_snapshots_come_back_as_they_went_and_a_flipped_bit_is_noticed(new_log):
    log = new_log()
    append(log, from_producer(0, producer_id=1))
    append(log, from_producer(0, producer_id=2, attributes=TRANSACTIONAL))
    end(log, commit=True, producer_id=3, epoch=4, coordinator_epoch=9)
    data = encode_snapshot(log.producers)
    assert decode_snapshot(data).items() == log.producers.items()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(ValueError, match=r"\w"):
            decode_snapshot(bytes(damaged))


def test_a_snapshot_that_cannot_be_read_fails_its_directory_and_stays(folder):
    folder.mkdir(exist_ok=True)
    path = snapshot_path(folder, 3)
    path.symlink_to("/proc/self/mem")  # a read at position 0 fails with EIO
    with pytest.raises(LogDirectoryFailure, match="Input/output"):
        load_latest_snapshot(folder, [3], offset_max=3)
    assert path.is_symlink()


def test_snapshots_that_were_damaged_are_missed_by_no_later_truncation(folder, new_log):
    log = new_log(segment_bytes=200)
    for number in range(6):
        append(log, from_producer(number))
    log.close()
    for path in folder.glob("*.snapshot"):
        path.write_bytes(b"torn")
    log = new_log(segment_bytes=200)
    log.truncate_to(5)
    assert log.producers.get(7).last_sequence == 4


def test_snapshots_do_not_pile_up(new_log, folder):
    log = new_log(segment_bytes=200, retention_bytes=600)
    for number in range(50):
        append(log, from_producer(number))
        log.high_watermark = log.log_end_offset
        log.apply_retention(START_MS)
    log.roll(START_MS)
    assert len(list(folder.glob("*.snapshot"))) <= len(log.segments) + 1


def test_the_last_stable_offset_waits_for_the_first_open_transaction(new_log):
    log = new_log()
    append(log, from_producer(0, producer_id=1, attributes=TRANSACTIONAL))
    append(log, from_producer(0, producer_id=2, attributes=TRANSACTIONAL))
    append(log, batch_of(b"plain"))
    assert log.last_stable_offset == 0
    end(log, commit=True, producer_id=1)
    assert log.last_stable_offset == 0, "the marker is not committed yet"
    log.high_watermark = log.log_end_offset
    assert log.last_stable_offset == 1
    end(log, commit=False, producer_id=2)
    log.high_watermark = log.log_end_offset
    assert log.last_stable_offset == log.log_end_offset == 5
    (aborted,) = log.aborted_transactions(0, 5)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (2, 1, 4)
    assert log.aborted_transactions(0, 1) == []


def test_transactions_survive_a_kill(new_log, folder, clock):
    log = new_log(segment_bytes=300)
    append(log, from_producer(0, producer_id=2, attributes=TRANSACTIONAL))
    end(log, commit=False, producer_id=2)
    append(log, from_producer(0, producer_id=1, attributes=TRANSACTIONAL))
    before = log.aborted_transactions(0, 100)
    log.abandon()
    again = open_at(folder, clock, segment_bytes=300)
    again.high_watermark = again.log_end_offset
    assert again.last_stable_offset == 2
    assert again.aborted_transactions(0, 100) == before
    again.abandon()


def test_markers_of_former_epochs_and_coordinators_are_fenced(new_log):
    log = new_log()
    append(log, from_producer(0, epoch=2, attributes=TRANSACTIONAL))
    for arguments, code in (
        ({"epoch": 1}, ErrorCode.INVALID_PRODUCER_EPOCH),
        ({"epoch": 2, "coordinator_epoch": 4}, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    ):
        with pytest.raises(ApiError) as caught:
            end(log, commit=True, **arguments)
        assert caught.value.code is code
        end(log, commit=True, epoch=2, coordinator_epoch=5)


def test_a_producer_must_not_write_outside_its_open_transaction(new_log):
    log = new_log()
    append(log, from_producer(0, attributes=TRANSACTIONAL))
    assert code_of(log, from_producer(1)) is ErrorCode.INVALID_TXN_STATE


def verified(log, fields, verification):
    batch = from_producer(fields.pop("sequence", 0), attributes=TRANSACTIONAL, **fields)
    return log.append_as_leader(batch, 0, now_ms=START_MS, verification=verification)


def refused(call):
    with pytest.raises(ApiError) as caught:
        call()
    return caught.value.code


def test_a_transaction_begins_only_by_a_verification_that_holds(new_log):
    log = new_log()
    asked = log.producers.verifications.ask
    no_id = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert refused(lambda: verified(log, {}, None)) is no_id
    allowed = asked(7, 0, 0, START_MS)
    assert asked(7, 0, 0, START_MS) is allowed
    log.producers.verifications.end(7)
    code = refused(lambda: verified(log, {}, allowed))
    assert code is ErrorCode.INVALID_TXN_STATE, "a marker came between (KAFKA-14884)"
    verified(log, {}, asked(7, 0, 0, START_MS))
    assert not len(log.producers.verifications)
    verified(log, {"sequence": 1}, ONGOING)
    assert refused(lambda: verified(log, {"sequence": 2}, None)) is no_id, "not even within one"
    end(log, commit=False)
    code = refused(lambda: verified(log, {"sequence": 2}, ONGOING))
    assert code is ErrorCode.INVALID_TXN_STATE, "what went on has ended meanwhile"


def test_an_epoch_is_looked_at_before_the_verification(new_log):
    log = new_log()
    end(log, commit=True, epoch=3)
    old = log.producers.verifications.ask(7, 2, 0, START_MS)
    code = refused(lambda: verified(log, {"epoch": 2}, old))
    assert code is ErrorCode.INVALID_PRODUCER_EPOCH
    log.producers.verifications.ask(7, 4, 0, START_MS)
    code = refused(lambda: log.producers.verifications.ask(7, 2, 0, START_MS))
    assert code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_retry_is_not_overtaken_by_what_follows_it(new_log):
    log = new_log()
    first = log.producers.verifications.ask(7, 0, 0, START_MS)
    second = log.producers.verifications.ask(7, 0, 5, START_MS)
    assert first is second
    code = refused(lambda: verified(log, {"sequence": 5}, second))
    assert code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    verified(log, {}, first)


def test_a_transaction_ends_before_another_epoch_writes(new_log):
    log = new_log()
    append(log, from_producer(0, attributes=TRANSACTIONAL))
    code = refused(lambda: append(log, from_producer(0, epoch=1, attributes=TRANSACTIONAL)))
    assert code is ErrorCode.INVALID_TXN_STATE


def test_a_marker_with_a_bumped_epoch_is_written_once_and_ends_no_later_transaction(new_log):
    log = new_log()
    append(log, from_producer(0, attributes=TRANSACTIONAL))
    is_marked = log.producers.is_marked
    assert not is_marked(7, 1, 0)
    end(log, commit=True, epoch=1)
    assert is_marked(7, 1, 0), "a repetition"
    append(log, from_producer(0, epoch=1, attributes=TRANSACTIONAL))
    assert refused(lambda: is_marked(7, 1, 0)) is ErrorCode.INVALID_PRODUCER_EPOCH
    end(log, commit=True, epoch=2, coordinator_epoch=4)
    code = refused(lambda: is_marked(7, 2, 3))
    assert code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_a_marker_above_the_high_watermark_shows_nothing_after_a_clean_restart(new_log):
    log = new_log()
    append(log, from_producer(0, attributes=TRANSACTIONAL))
    end(log, commit=True)
    log.close()
    again = new_log()
    again.high_watermark = 1
    again.recheck_markers()
    assert again.last_stable_offset == 0, "the marker at 1 may yet be lost"
    again.high_watermark = 2
    assert again.last_stable_offset == 2


def test_a_producer_without_transactions_hides_no_marker_above_the_high_watermark(new_log):
    log = new_log()
    append(log, from_producer(0, producer_id=8))
    append(log, from_producer(0, attributes=TRANSACTIONAL))
    end(log, commit=True)
    log.close()
    again = new_log()
    again.high_watermark = 2
    again.recheck_markers()
    assert again.last_stable_offset == 1, "the marker at 2 may yet be lost"


def test_a_truncation_to_the_high_watermark_holds_no_ended_transaction_back(new_log):
    log = new_log()
    append(log, from_producer(0, attributes=TRANSACTIONAL))
    end(log, commit=True)
    log.high_watermark = 2
    append(log, batch_of(b"of a former leader alone"))
    log.truncate_to(2)
    assert log.last_stable_offset == log.high_watermark == 2


def test_the_last_stable_offset_is_never_below_the_logs_start(new_log):
    log = new_log()
    append(log, from_producer(0, attributes=TRANSACTIONAL))
    append(log, batch_of(b"plain"))
    log.high_watermark = 2
    log.delete_records_before(1)
    assert log.last_stable_offset == 1


def test_an_aborted_transaction_is_named_to_every_fetch_within_it(new_log):
    log = new_log(segment_bytes=300)
    for number in range(9):
        append(log, from_producer(number, attributes=TRANSACTIONAL))
    end(log, commit=False)
    append(log, from_producer(9, attributes=TRANSACTIONAL))
    end(log, commit=True)
    log.high_watermark = log.log_end_offset
    for offset in range(10):
        data = log.read(offset, 1, upper_bound=12, at_least_one=True)
        (aborted,) = log.aborted_within(offset, data)
        assert (aborted.first_offset, aborted.last_offset) == (0, 9)
    data = log.read(10, 1000, upper_bound=12, at_least_one=True)
    assert log.aborted_within(10, data) == []
    assert log.aborted_within(3, b"") == []
