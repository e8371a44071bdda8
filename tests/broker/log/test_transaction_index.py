"""The index of aborted transactions, when its file is not what was written."""

import os

import pytest

from headrace_broker.log.config import LogConfig
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.segments import transaction_index
from headrace_broker.log.validation import AppendOrigin
from headrace_broker.protocol.batch_header import TRANSACTIONAL_FLAG
from support.log import START_MS, append, batch_of, marker

ENTRY_BYTES = 34


def with_aborted(new_log, transactions=4, **settings):
    """Return a log of aborted transactions, of two records and a marker each."""
    log = new_log(**settings)
    for number in range(transactions):
        for sequence in range(2):
            batch = batch_of(
                b"x" * 50,
                producer_id=7,
                producer_epoch=number,
                base_sequence=sequence,
                attributes=TRANSACTIONAL_FLAG,
            )
            append(log, batch)
        log.append_as_leader(
            marker(7, number, commit=False), 0, now_ms=START_MS, origin=AppendOrigin.COORDINATOR
        )
    log.flush()
    return log


def entries(log):
    return [entry for segment in log.segments for entry in segment.transaction_index.entries]


def reopened(log, clock, **settings):
    """Open what a kill leaves, from the recovery point on."""
    log.abandon()
    return PartitionLog.open(
        log.directory,
        LogConfig(**settings),
        clock=clock,
        recovery_point=log.recovery_point,
        was_clean=False,
    )


def test_an_entry_that_the_kernel_takes_in_pieces_is_written_whole(new_log, monkeypatch):
    real = os.write
    monkeypatch.setattr(
        transaction_index.os, "write", lambda fd, data: real(fd, bytes(data)[:10] or b"")
    )
    log = with_aborted(new_log)
    path = log.segments.active.transaction_index.path
    assert path.stat().st_size == 4 * ENTRY_BYTES


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data + b"\x00" * 10,
        lambda data: data[:-5],
        lambda data: data + b"\x00" * ENTRY_BYTES,
        lambda data: b"\x00" * len(data),
        lambda data: data[ENTRY_BYTES:] + data[:ENTRY_BYTES],
    ],
    ids=["a piece more", "torn", "an entry of zeros", "zeros", "another order"],
)
@pytest.mark.parametrize("segment_bytes", [1 << 20, 400], ids=["one segment", "several"])
def test_a_damaged_index_is_made_again_from_the_whole_log(new_log, clock, damage, segment_bytes):
    log = with_aborted(new_log, segment_bytes=segment_bytes)
    known = entries(log)
    assert len(known) == 4
    path = next(
        segment.transaction_index.path
        for segment in log.segments
        if segment.transaction_index.entries
    )
    path.write_bytes(damage(path.read_bytes()))
    for _ in range(2):  # what the first start makes the second one finds
        log = reopened(log, clock, segment_bytes=segment_bytes)
        assert entries(log) == known
    log.abandon()


def test_a_kill_while_the_index_is_made_again_leaves_the_damage_to_be_found(
    new_log, clock, monkeypatch
):
    log = with_aborted(new_log)
    known = entries(log)
    path = log.segments.active.transaction_index.path
    path.write_bytes(path.read_bytes()[:-5])
    with monkeypatch.context() as patch:
        patch.setattr(
            transaction_index.TransactionIndex,
            "finish_rebuild",
            lambda _index: (_ for _ in ()).throw(KeyboardInterrupt),
        )
        with pytest.raises(KeyboardInterrupt):
            reopened(log, clock)
    log = reopened(log, clock)
    assert entries(log) == known
    log.abandon()
