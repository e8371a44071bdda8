"""The checker finds every planted anomaly, and nothing in a history that is allowed."""

import dataclasses
import random

import pytest

from faults.checker import Anomaly, History, Outcome, Read, Send, check


def _send(value, outcome=Outcome.ACKNOWLEDGED, offset=None, producer=1):
    return Send(producer=producer, partition=0, value=value, outcome=outcome, offset=offset)


def _good(count=20):
    """A history of `count` acknowledged records, read by a consumer and at the end."""
    reads = [Read(offset, 100 + offset) for offset in range(count)]
    return History(
        sends=[_send(read.value, offset=read.offset) for read in reads],
        polls={("reader", 0): list(reads)},
        final={0: list(reads)},
    )


def _kinds(history):
    return {violation.anomaly for violation in check(history)}


def test_a_history_without_faults_has_no_anomaly():
    assert check(_good()) == []


def test_a_record_of_unknown_outcome_may_be_there_or_not():
    history = _good()
    history.sends.append(_send(500, Outcome.UNKNOWN))
    assert check(history) == []
    history.sends[7] = dataclasses.replace(history.sends[7], outcome=Outcome.UNKNOWN, offset=None)
    assert check(history) == []


def test_a_failed_record_that_is_absent_is_no_anomaly():
    history = _good()
    history.sends.append(_send(500, Outcome.FAILED))
    assert check(history) == []


def test_two_producers_may_interleave():
    reads = [Read(0, 1), Read(1, 1001), Read(2, 2), Read(3, 1002)]
    sends = [_send(r.value, offset=r.offset, producer=r.value // 1000) for r in reads]
    assert check(History(sends=sends, final={0: reads})) == []


def test_a_reader_may_start_late_and_end_early():
    history = _good()
    history.polls["reader", 0] = history.polls["reader", 0][5:9]
    assert check(history) == []


def _lose_tail(history):
    history.polls.clear()
    del history.final[0][-1]


def _lose_in_the_middle(history):
    history.polls.clear()
    del history.final[0][3]


def _lose_what_was_read(history):
    del history.final[0][-1]


def _write_twice(history):
    history.final[0].append(Read(20, 100))


def _move_a_record(history):
    history.sends[4] = dataclasses.replace(history.sends[4], offset=5)


def _read_two_truths(history):
    history.polls["other", 0] = [Read(3, 104)]


def _step_back(history):
    reads = history.polls["reader", 0]
    reads[9:9] = reads[7:9]


def _skip(history):
    del history.polls["reader", 0][5]


def _read_a_failed_write(history):
    history.sends[6] = dataclasses.replace(history.sends[6], outcome=Outcome.FAILED, offset=None)


def _read_an_unknown_value(history):
    history.polls["reader", 0].append(Read(20, 999))


def _swap_a_producers_records(history):
    history.polls.clear()
    for index, value in ((3, 104), (4, 103)):
        history.final[0][index] = Read(index, value)
    history.sends[3] = dataclasses.replace(history.sends[3], offset=4)
    history.sends[4] = dataclasses.replace(history.sends[4], offset=3)


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (_lose_tail, {Anomaly.LOST_WRITE}),
        (_lose_in_the_middle, {Anomaly.LOST_WRITE, Anomaly.OFFSET_GAP}),
        (_lose_what_was_read, {Anomaly.LOST_WRITE, Anomaly.UNCOMMITTED_READ}),
        (_write_twice, {Anomaly.DUPLICATE, Anomaly.REORDERED}),
        (_move_a_record, {Anomaly.INCONSISTENT_OFFSETS}),
        (_read_two_truths, {Anomaly.INCONSISTENT_OFFSETS}),
        (_step_back, {Anomaly.NONMONOTONIC_POLL}),
        (_skip, {Anomaly.POLL_SKIP}),
        (_read_a_failed_write, {Anomaly.ABORTED_READ}),
        (_read_an_unknown_value, {Anomaly.ABORTED_READ, Anomaly.UNCOMMITTED_READ}),
        (_swap_a_producers_records, {Anomaly.REORDERED}),
    ],
)
def test_a_planted_anomaly_is_named(plant, expected):
    history = _good()
    plant(history)
    assert _kinds(history) == expected


def test_losing_any_acknowledged_record_at_random_is_found():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - a failure is replayed by it
    rng = random.Random(seed)
    for _ in range(50):
        history = _good(rng.randrange(1, 60))
        del history.final[0][rng.randrange(len(history.final[0]))]
        assert Anomaly.LOST_WRITE in _kinds(history)


def test_a_partition_that_vanished_lost_everything():
    history = _good()
    history.final.clear()
    assert Anomaly.LOST_WRITE in _kinds(history)


def test_a_violation_says_what_where_and_how():
    history = _good()
    _lose_tail(history)
    (violation,) = check(history)
    told = "lost-write in partition 0: 119, acknowledged at 19 to producer 1; the log ends at 19"
    assert str(violation) == told
