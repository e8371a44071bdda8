"""Record batches against other clients' builders and readers, and batches that lie."""

from typing import Any

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from headrace_broker.protocol.batch import (
    HEADER_SIZE,
    Compression,
    ControlType,
    NewRecord,
    build_batch,
    build_end_txn_marker,
    check_batch,
    iterate_batches,
    iterate_records,
    parse_batch_header,
    parse_control_type,
    patch_base_offset,
    patch_offset_and_epoch,
    seal,
)
from headrace_broker.protocol.codec import decode
from headrace_broker.protocol.compression import compress, decompress
from headrace_broker.protocol.errors import DecodeError
from headrace_broker.protocol.messages.records.end_txn_marker import EndTxnMarker
from headrace_broker.protocol.types import LeaderEpoch, Offset

MIB = 1024 * 1024
PACKED = [kind for kind in Compression if kind is not Compression.NONE]
# kafka-python needs more libraries for the others; aiokafka has all four.
KAFKA_PYTHON_KINDS = (Compression.NONE, Compression.GZIP)

_bytes = st.none() | st.binary(max_size=200)
_records = st.lists(
    st.builds(
        NewRecord,
        key=_bytes,
        value=_bytes,
        timestamp=st.integers(0, 2**48),
        headers=st.lists(st.tuples(st.text(max_size=5), _bytes), max_size=2).map(tuple),
        offset_delta=st.none(),
    ),
    min_size=1,
    max_size=6,
)


def _plain(records: list[NewRecord]) -> list[tuple[Any, ...]]:
    return [
        (place, record.timestamp, record.key, record.value, list(record.headers))
        for place, record in enumerate(records)
    ]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(_records, st.sampled_from(Compression))
def test_other_clients_read_our_batches(records: list[NewRecord], kind: Compression) -> None:
    data = bytes(build_batch(records, compression=kind, producer_id=7, producer_epoch=1))
    readers = [AiokafkaBatch, *([KafkaPythonBatch] if kind in KAFKA_PYTHON_KINDS else [])]
    for reader in readers:
        batch = reader(data)
        assert batch.validate_crc()
        read = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch]
        assert read == _plain(records)
        assert (batch.producer_id, batch.producer_epoch) == (7, 1)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(_records, st.sampled_from(Compression))
def test_we_read_other_clients_batches(records: list[NewRecord], kind: Compression) -> None:
    builders = [AiokafkaBuilder, *([KafkaPythonBuilder] if kind in KAFKA_PYTHON_KINDS else [])]
    for builder_class in builders:
        builder = builder_class(
            magic=2,
            compression_type=int(kind),
            is_transactional=0,
            producer_id=9,
            producer_epoch=2,
            base_sequence=5,
            batch_size=MIB,
        )
        for offset, timestamp, key, value, headers in _plain(records):
            builder.append(offset, timestamp=timestamp, key=key, value=value, headers=headers)
        data = bytes(builder.build())
        header = check_batch(data)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 5)
        assert header.record_count == len(records)
        read = [
            (r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in iterate_records(data)
        ]
        assert read == _plain(records)
        if kind is Compression.NONE:
            ours = build_batch(records, producer_id=9, producer_epoch=2, base_sequence=5)
            assert bytes(ours)[12:16] == b"\xff" * 4
            assert ours[HEADER_SIZE:] == data[HEADER_SIZE:]


def test_offset_and_epoch_are_patched_without_touching_the_checksum() -> None:
    batch = build_batch([NewRecord(value=b"a"), NewRecord(value=b"b")])
    before = parse_batch_header(batch).crc
    patch_offset_and_epoch(batch, Offset(1000), LeaderEpoch(7))
    header = check_batch(batch)
    assert (header.base_offset, header.partition_leader_epoch, header.crc) == (1000, 7, before)
    assert [record.offset for record in iterate_records(batch)] == [1000, 1001]
    assert (header.last_offset, header.next_offset) == (1001, 1002)
    patch_base_offset(memoryview(batch), Offset(5))
    assert check_batch(batch).base_offset == 5


def test_log_append_time_is_every_records_timestamp() -> None:
    batch = build_batch([NewRecord(timestamp=1), NewRecord(timestamp=2)], log_append_time=99)
    assert check_batch(batch).is_log_append_time
    assert [record.timestamp for record in iterate_records(batch)] == [99, 99]


def test_a_batch_compacted_to_nothing_keeps_its_range() -> None:
    batch = build_batch([], base_offset=10, last_offset_delta=4, producer_id=1, base_sequence=3)
    header = check_batch(batch)
    assert (header.record_count, header.last_offset) == (0, 14)
    assert list(iterate_records(batch)) == []


def test_a_transaction_marker_is_a_control_batch_that_kafka_python_reads() -> None:
    batch = build_end_txn_marker(
        ControlType.COMMIT, 3, 1234, producer_id=5, producer_epoch=6, base_offset=8
    )
    header = check_batch(batch)
    assert header.is_control
    assert header.is_transactional
    (record,) = iterate_records(batch)
    assert parse_control_type(record.key) == ControlType.COMMIT
    assert decode(EndTxnMarker, record.value or b"", 0, 2)[0].coordinator_epoch == 3
    (theirs,) = KafkaPythonBatch(bytes(batch))
    assert (theirs.commit, theirs.abort, theirs.offset) == (True, False, 8)


def test_whole_batches_are_walked_and_a_torn_tail_ends_the_walk() -> None:
    first = build_batch([NewRecord(value=b"a")], base_offset=0)
    second = build_batch([NewRecord(value=b"b")], base_offset=1)
    data = bytes(first + second + second[:-1])
    assert [header.base_offset for _, header in iterate_batches(data)] == [0, 1]
    with pytest.raises(DecodeError):
        list(iterate_batches(b"\0" * 100))


def test_an_old_formats_magic_is_reported() -> None:
    for magic in (0, 1):
        old = bytes(8) + b"\0\0\0\x10" + bytes(4) + bytes([magic]) + bytes(9)
        assert parse_batch_header(old).magic == magic
        with pytest.raises(DecodeError, match="format"):
            check_batch(old)


def test_any_flipped_bit_behind_the_checksum_is_seen() -> None:
    batch = bytes(build_batch([NewRecord(key=b"k", value=b"v")]))
    for bit in range(17 * 8, len(batch) * 8):
        flipped = bytearray(batch)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DecodeError):
            check_batch(flipped)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40), st.integers(-2, 100), st.integers(-2, 100), st.integers(0, 7))
def test_random_records_are_read_or_refused(body: bytes, count: int, delta: int, kind: int) -> None:
    batch = build_batch([], last_offset_delta=delta)
    batch += body
    batch[8:12] = (HEADER_SIZE - 12 + len(body)).to_bytes(4, "big")
    batch[21:23] = kind.to_bytes(2, "big")
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    seal(batch)
    try:
        read = list(iterate_records(batch))
    except DecodeError:
        return
    assert len(read) == count


@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
def test_a_decompression_bomb_is_refused(kind: Compression) -> None:
    bomb = compress(kind, bytes(80 * MIB))
    with pytest.raises(DecodeError, match="unpacks to more than"):
        decompress(kind, bomb)
    batch = build_batch([])
    batch += bomb
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[21:23] = int(kind).to_bytes(2, "big")
    with pytest.raises(DecodeError, match="unpacks to more than"):
        list(iterate_records(batch))


@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
def test_a_cap_of_exactly_the_size_is_enough(kind: Compression) -> None:
    for size in (0, 1, 17_000, 3 * MIB):
        data = bytes(range(256)) * (size // 256) + bytes(size % 256)
        assert decompress(kind, compress(kind, data), size_max=max(size, 1)) == data
        if size > 1:
            with pytest.raises(DecodeError, match="unpacks to more than"):
                decompress(kind, compress(kind, data), size_max=size - 1)


@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
def test_truncated_compressed_data_is_refused(kind: Compression) -> None:
    packed = compress(kind, b"some data that repeats, some data that repeats" * 20)
    for end in range(1, len(packed)):
        try:
            unpacked = decompress(kind, packed[:end])
        except DecodeError:
            continue
        assert len(unpacked) < 20 * 46


@given(st.binary(max_size=80), st.sampled_from(PACKED))
def test_random_compressed_data_is_read_or_refused(data: bytes, kind: Compression) -> None:
    for prefix in (b"", compress(kind, b"abc")[:16]):
        try:
            decompress(kind, prefix + data, size_max=MIB)
        except DecodeError:
            continue


def test_snappy_is_read_with_and_without_xerials_framing() -> None:
    data = b"abc" * 50_000
    assert decompress(Compression.SNAPPY, compress(Compression.SNAPPY, data)) == data
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data


@pytest.mark.parametrize("length", [0, -1, 2**31 - 1, 5])
def test_a_snappy_chunk_longer_than_the_data_is_refused(length: int) -> None:
    framed = b"\x82SNAPPY\0" + b"\0\0\0\1" * 2 + length.to_bytes(4, "big", signed=True) + b"\x01\0a"
    with pytest.raises(DecodeError, match="chunk"):
        decompress(Compression.SNAPPY, framed)


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(DecodeError, match="unknown compression 5"):
        decompress(5, b"")


def test_a_walk_stops_at_a_torn_tail_and_says_a_length_that_no_batch_has():
    batch = bytes(build_batch([NewRecord(key=None, value=b"v", timestamp=1)]))
    damaged = batch + batch[:8] + (48).to_bytes(4, "big") + batch[12:]
    for data in (batch * 2 + batch[:60], batch + damaged):
        assert len(list(iterate_batches(data, stops_at_damage=True))) == 2
    assert len(list(iterate_batches(batch * 2 + batch[:60]))) == 2
    with pytest.raises(DecodeError, match="60 bytes"):
        list(iterate_batches(damaged))
