"""Apache Kafka's own DumpLogSegments reads every file that we write, and finds nothing wrong."""

import subprocess
import warnings

import pytest

from headrace_broker.log.validation import AppendOrigin
from headrace_broker.protocol.batch import NewRecord, build_batch
from headrace_broker.protocol.compression import Compression
from headrace_broker.protocol.messages.records.offset_commit import (
    OffsetCommitKey,
    OffsetCommitValue,
)
from headrace_broker.protocol.records import encode_record_key, encode_record_value
from support.kafka_peer import JavaMissingError, jar_directory
from support.log import START_MS, append, batch_of, compact, marker, open_at

pytestmark = pytest.mark.java

COMPLAINTS = ("Mismatches", "isn't valid", "not found", "Exception", "corrupt")
GAPS = ("Non-consecutive offsets", "  ")
LOGGER = ("SLF4J", "StatusLogger", "ERROR StatusLogger", "WARNING")


@pytest.fixture(scope="module")
def dump():
    """Run DumpLogSegments over files; return what it prints."""
    try:
        jars = jar_directory()
    except JavaMissingError as error:
        reason = f"NOT CHECKED against Apache Kafka: {error}"
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(reason, stacklevel=1)
        pytest.skip(reason)

    def run(files, *options, is_compacted=False):
        command = ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
        command += ["kafka.tools.DumpLogSegments", *options, "--files", ",".join(map(str, files))]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        # Mismatches are printed on the standard error, between the logger's own lines.
        told = [line for line in done.stderr.splitlines() if not line.startswith(LOGGER)]
        if is_compacted:
            # It says where offsets are missing, which is what compaction is for.
            told = [line for line in told if not line.startswith(GAPS)]
        assert not [line for line in told if line.strip()]
        lines = done.stdout.splitlines()
        assert not [line for line in lines if any(word in line for word in COMPLAINTS)]
        return lines

    return run


def all_files(folder):
    suffixes = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    return sorted(path for path in folder.iterdir() if path.suffix in suffixes)


@pytest.mark.parametrize("interval", [1, 4096])
def test_segments_indexes_and_snapshots_are_read_without_an_error(new_log, folder, dump, interval):
    log = new_log(segment_bytes=40_000, index_interval_bytes=interval)
    for number in range(400):
        batch = batch_of(
            *[b"value" * 20] * (1 + number % 5),
            base_timestamp=START_MS + number * 7 % 1000 + number,
            producer_id=number % 3,
            producer_epoch=0,
            base_sequence=sum(1 + each % 5 for each in range(number % 3, number, 3)),
        )
        append(log, batch, epoch=number // 100)
    log.close()
    files = all_files(folder)
    assert len([path for path in files if path.suffix == ".log"]) > 2
    lines = dump(files, "--deep-iteration")
    assert len([line for line in lines if line.startswith("| offset")]) == log.log_end_offset
    assert len([line for line in lines if "isvalid: true" in line]) == 400
    snapshots = [line for line in lines if line.startswith("producerId")]
    assert len(snapshots) >= 15


def test_compressed_stamped_transactional_and_compacted_logs_are_read(new_log, folder, dump):
    log = new_log(
        segment_bytes=4000,
        index_interval_bytes=1,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0.0,
        message_timestamp_type="LogAppendTime",
    )
    for number in range(200):
        codec = Compression(number % 5)
        value = None if number % 11 == 0 else b"value" * 10
        append(
            log,
            build_batch(
                [NewRecord(b"key%d" % (number % 13), value, START_MS), NewRecord(b"k", b"v")],
                compression=codec,
                producer_id=9,
                producer_epoch=0,
                base_sequence=number * 2,
                is_transactional=True,
            ),
        )
        if number % 20 == 19:
            log.append_as_leader(
                marker(9, 0, commit=number % 40 == 19),
                0,
                now_ms=START_MS,
                origin=AppendOrigin.COORDINATOR,
            )
    log.high_watermark = log.log_end_offset
    log.roll(START_MS)
    log.high_watermark = log.log_end_offset
    assert compact(log, START_MS)
    log.close()
    lines = dump(all_files(folder), "--deep-iteration", is_compacted=True)
    assert any("deleteHorizonMs: OptionalLong[" in line for line in lines)
    assert any("endTxnMarker" in line for line in lines)


def test_a_recovered_log_is_read_without_an_error(new_log, folder, clock, dump):
    log = new_log(index_interval_bytes=1)
    for number in range(50):
        append(log, batch_of(b"v" * 50, base_timestamp=START_MS + number))
    log.abandon()
    with log.segments.active.path.open("ab") as file:
        file.write(b"\x00" * 1000)
    open_at(folder, clock, index_interval_bytes=1).close()
    lines = dump(all_files(folder))
    assert len([line for line in lines if "isvalid: true" in line]) == 50


def test_the_tool_would_complain(new_log, folder, dump):
    log = new_log(index_interval_bytes=1)
    for number in range(20):
        append(log, batch_of(b"v" * 50, base_timestamp=START_MS + number))
    log.close()
    index = folder / f"{0:020d}.timeindex"
    data = bytearray(index.read_bytes())
    data[19] ^= 1
    index.write_bytes(data)
    with pytest.raises(AssertionError):
        dump(all_files(folder))


def test_group_offsets_are_decoded(new_log, folder, dump):
    log = new_log(cleanup_policy="compact")
    key = encode_record_key(OffsetCommitKey(group="readers", topic="orders", partition=3))
    value = encode_record_value(OffsetCommitValue(offset=42, metadata="here"), 4)
    append(log, build_batch([NewRecord(key, value, START_MS)]))
    log.close()
    (line,) = [
        line for line in dump([folder / f"{0:020d}.log"], "--offsets-decoder") if "| offset" in line
    ]
    for part in ('"group":"readers"', '"topic":"orders"', '"offset":42', '"metadata":"here"'):
        assert part in line
