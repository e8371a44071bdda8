"""Kafka's own load and verification tools, end to end, and its reader of our files."""

import json
import re
from pathlib import Path

import pytest

from support.kafka_peer import run_tool, start_tool
from support.processes import wait_until
from support.records import CODECS, PRODUCERS, Sent, sample_text

pytestmark = pytest.mark.java
_SECONDS = 90
_ASSIGNED = "partitions_assigned"


def test_producer_perf_and_consumer_perf_move_records(bootstrap, new_topic):
    topic = new_topic()
    where = ["--bootstrap-server", bootstrap, "--topic", topic]
    sizes = ["--num-records", "50000", "--record-size", "1000", "--throughput", "-1"]
    for properties in (["acks=1", "enable.idempotence=false"], ["acks=all"]):
        printed = run_tool("producer-perf", *where, *sizes, "--command-property", *properties)
        assert "50000 records sent" in printed
    printed = run_tool("consumer-perf", *where, "--num-records", "100000", "--hide-header")
    assert int(printed.strip().splitlines()[-1].split(", ")[4]) >= 100_000


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_what_java_compressed_java_reads(bootstrap, new_topic, codec):
    topic = new_topic()
    where = ["--bootstrap-server", bootstrap, "--topic", topic]
    lines = [f"key-{i}\tvalue-{i}" for i in range(100)]
    parse = ["--reader-property", "parse.key=true", "--compression-codec", codec]
    run_tool("console-producer", *where, *parse, standard_input="\n".join(lines) + "\n")
    show = ["--from-beginning", "--max-messages", "100", "--formatter-property", "print.key=true"]
    assert run_tool("console-consumer", *where, *show).splitlines() == lines


def test_end_to_end_latency_runs(bootstrap, new_topic):
    topic = new_topic()
    where = ["--bootstrap-server", bootstrap, "--topic", topic]
    counts = ["--num-records", "200", "--producer-acks", "all", "--record-size", "100"]
    assert "Percentiles" in run_tool("e2e-latency", *where, *counts)


def test_verifiable_producers_and_consumers_agree(bootstrap, new_topic, new_group, tmp_path):
    """Two consumers of one group take over from each other; every record is consumed once."""
    topic, group, count = new_topic(partitions=4), new_group(), 20_000
    where = ["--bootstrap-server", bootstrap, "--topic", topic]
    consumers = [
        start_tool(
            "verifiable-consumer",
            tmp_path / f"consumer{i}.log",
            *where,
            "--group-id",
            group,
            "--reset-policy",
            "earliest",
            "--verbose",
        )
        for i in range(2)
    ]
    try:
        wait_until(
            lambda: all(_events(path, _ASSIGNED) for path in _logs(tmp_path)),
            _SECONDS,
            "both consumers' partitions",
        )
        run_tool("verifiable-producer", *where, "--max-messages", str(count), "--acks", "-1")
        wait_until(lambda: len(_consumed(tmp_path)) >= count, _SECONDS, "the records")
    finally:
        statuses = [consumer.stop() for consumer in consumers]
    consumed = _consumed(tmp_path)
    assert len(consumed) == len(set(consumed)) == count
    assert all(status in (0, 143) for status in statuses)
    for path in _logs(tmp_path):
        assert _events(path, "shutdown_complete")


@pytest.mark.slow
def test_a_killed_java_member_is_replaced_after_its_session_and_a_static_one_may_return(
    bootstrap, new_topic, new_group, tmp_path
):
    """SIGKILL. What a static member had waits for it; what it leaves for good goes to the other."""
    topic, group = new_topic(partitions=4), new_group()

    def start(log, instance, session_ms):
        return start_tool(
            "verifiable-consumer",
            tmp_path / log,
            *("--bootstrap-server", bootstrap, "--topic", topic, "--group-id", group),
            *("--group-instance-id", instance, "--session-timeout", str(session_ms)),
            *("--reset-policy", "earliest", "--verbose"),
        )

    def assigned(log):
        return [len(event["partitions"]) for event in _events(tmp_path / log, _ASSIGNED)]

    survivor = start("survivor.log", "one", 45_000)
    killed = start("killed.log", "two", 45_000)
    returned = None
    try:
        wait_until(lambda: assigned("killed.log")[-1:] == [2], _SECONDS, "its share")
        wait_until(lambda: assigned("survivor.log")[-1:] == [2], _SECONDS, "the other's share")
        before = assigned("survivor.log")
        killed.kill()
        # The same instance, which now asks for the shortest session that is allowed.
        returned = start("returned.log", "two", 6000)
        wait_until(lambda: assigned("returned.log")[-1:] == [2], _SECONDS, "what it had")
        assert assigned("survivor.log") == before
        returned.kill()
        wait_until(lambda: assigned("survivor.log")[-1:] == [4], _SECONDS, "the dead one's share")
        where = ("--bootstrap-server", bootstrap, "--topic", topic)
        run_tool("verifiable-producer", *where, "--max-messages", "400", "--acks", "-1")
        wait_until(
            lambda: len(_events(tmp_path / "survivor.log", "record_data")) == 400,
            _SECONDS,
            "the records",
        )
    finally:
        for process in (survivor, killed, returned):
            if process is not None:
                process.kill()


def _logs(directory: Path) -> list[Path]:
    return sorted(directory.glob("consumer*.log"))


def _events(path: Path, name: str) -> list[dict]:
    lines = (line for line in path.read_text().splitlines() if line.startswith("{"))
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:  # the last line, half written
            continue
        if event["name"] == name:
            found.append(event)
    return found


def _consumed(directory: Path) -> list[tuple[int, int]]:
    return [
        (event["partition"], event["offset"])
        for path in _logs(directory)
        for event in _events(path, "record_data")
    ]


def test_dump_log_segments_reads_our_files_without_an_error(peer, bootstrap, new_topic):
    """Several codecs, idempotent and plain producers, several segments, both indexes."""
    topic = new_topic(segment_bytes="1048576", index_interval_bytes="500")
    written = 0
    for writer, codecs in CODECS.items():
        for codec in sorted(codecs):
            sent = [Sent(key=b"k%d" % i, value=sample_text(300)) for i in range(100)]
            PRODUCERS[writer](bootstrap, topic, sent, codec)
            written += len(sent)
    where = ["--bootstrap-server", bootstrap, "--topic", topic]
    sizes = ["--num-records", "12000", "--record-size", "300", "--throughput", "-1"]
    run_tool("producer-perf", *where, *sizes)
    written += 12_000

    partition = peer.log_directory / f"{topic}-0"
    logs = sorted(partition.glob("*.log"))
    assert len(logs) >= 3
    indexes = sorted(partition.glob("*.index")) + sorted(partition.glob("*.timeindex"))
    assert len(indexes) >= 2 * (len(logs) - 1)  # the active segment may keep its own in memory
    files = ",".join(str(path) for path in logs)
    dumped = run_tool("dump-log", "--files", files, "--deep-iteration")
    assert _complaints(dumped) == []
    assert len(re.findall(r"^\| offset: \d+ ", dumped, re.MULTILINE)) == written
    assert "isvalid: false" not in dumped
    # The active segment's indexes are preallocated: their unused end is all zeros.
    rolled = [path for path in indexes if path.stem != logs[-1].stem]
    for path in rolled:
        checked = run_tool("dump-log", "--files", str(path), "--index-sanity-check")
        assert "passed sanity check" in checked, checked
        assert _complaints(run_tool("dump-log", "--files", str(path))) == []
    for path in sorted(partition.glob("*.snapshot")):
        assert _complaints(run_tool("dump-log", "--files", str(path))) == []


def test_dump_log_segments_reads_committed_offsets(peer, bootstrap, new_topic, new_group):
    topic, group = new_topic(), new_group()
    where = ["--bootstrap-server", bootstrap, "--topic", topic]
    sizes = ["--num-records", "100", "--record-size", "10", "--throughput", "-1"]
    run_tool("producer-perf", *where, *sizes)
    run_tool("consumer-perf", *where, "--num-records", "100", "--group", group)
    directories = sorted(peer.log_directory.glob("__consumer_offsets-*"))
    logs = [path for directory in directories for path in directory.glob("*.log")]
    files = ",".join(str(path) for path in logs if path.stat().st_size > 0)
    dumped = run_tool("dump-log", "--files", files, "--offsets-decoder")
    assert group in dumped
    assert _complaints(dumped) == []


def _complaints(dumped: str) -> list[str]:
    words = ("Found timestamp mismatch", "Index offset", "Exception", "Mismatches", "out of order")
    return [line for line in dumped.splitlines() if any(word in line for word in words)]
