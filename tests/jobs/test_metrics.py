"""The job's Prometheus endpoint, read the way Prometheus reads it."""

import socket
import time

import pytest

from headrace_jobs.jobs.cpu_load import JOB as CPU_LOAD
from headrace_jobs.jobs.declared import parse_declared
from headrace_jobs.progress.metrics import BatchFacts, JobMetrics, MetricsServer
from headrace_jobs.progress.watermarks import SourceWatermarks
from support.jobs import scrape


@pytest.fixture
def metrics():
    return JobMetrics("app", "query", trigger_interval_seconds=2.0)


@pytest.fixture
def server(metrics):
    found = MetricsServer(metrics.registry, address="127.0.0.1", port=0)
    yield found
    found.close()


def test_what_a_batch_came_to_counts_when_it_is_committed(metrics, server):
    counts = {"rows": 2, "counted": 6, "late": 1, "partly_late": 5, "malformed": 3, "duplicate": 4}
    metrics.batch_counted(7, counts)  # its driver failed before the commit
    metrics.batch_counted(7, counts)
    metrics.batch_counted(8, dict.fromkeys(counts, 1))
    found = scrape(server.url)
    assert found["counted_records_total"] == 0
    metrics.batch_finished(BatchFacts(batch_id=7, input_rows=10))
    found = scrape(server.url)
    for name, count in counts.items():
        series = "output_rows_total" if name == "rows" else f"{name}_records_total"
        assert found[series] == count, name
    metrics.batch_finished(BatchFacts(batch_id=8, input_rows=1))
    metrics.batch_finished(BatchFacts(batch_id=8))
    assert scrape(server.url)["counted_records_total"] == 7


def test_a_batch_is_counted_and_its_watermark_ages(metrics, server):
    now = time.time()
    metrics.batch_finished(
        BatchFacts(
            batch_id=0,
            input_rows=10,
            output_rows=2,
            malformed_records=3,
            counted_records=6,
            late_records=1,
            partly_late_records=5,
            duplicate_records=4,
            dropped_groups=2,
            duration_seconds=2.5,
            phase_seconds={"addBatch": 2.0, "walCommit": 0.1},
            watermark_seconds=now - 30,
            state_rows=4,
            state_bytes=400,
        )
    )
    metrics.batch_finished(BatchFacts(batch_id=1, input_rows=5, duration_seconds=0.5))
    metrics.lag({"t": 7}, {"t": 1.5})
    metrics.offsets_committed()
    metrics.offset_commit_failed()
    found = scrape(server.url)
    expected = {
        "batches_total": 2,
        "input_rows_total": 15,
        "output_rows_total": 2,
        "malformed_records_total": 3,
        "counted_records_total": 6,
        "late_records_total": 1,
        "partly_late_records_total": 5,
        "duplicate_records_total": 4,
        "dropped_groups_total": 2,
        "batch_duration_seconds_count": 2,
        "batch_duration_seconds_sum": 3.0,
        "trigger_interval_seconds": 2.0,
        "trigger_delay_seconds": 0.0,
        "batch_phase_seconds/addBatch": 2.0,
        "lag_records/t": 7,
        "lag_seconds/t": 1.5,
        "offset_commits_total": 1,
        "offset_commit_failures_total": 1,
        "running": 1,
    }
    assert {name: found[name] for name in expected} == expected
    # A batch without a watermark of its own leaves the last one.
    assert found["watermark_timestamp_seconds"] == pytest.approx(now - 30)
    assert 30 <= found["watermark_delay_seconds"] < 60
    assert found["last_progress_timestamp_seconds"] >= now


def test_the_watermark_is_that_of_the_slowest_key_and_each_source_partition_has_its_own(
    metrics, server
):
    def came_to(group, partition, seconds, windows):
        names = ("group", "topic", "partition", "watermark_us", "windows")
        return dict(zip(names, (group, "t", partition, seconds * 1_000_000, windows), strict=True))

    metrics.partitions_progressed([came_to(0, 0, 100, 3), came_to(0, 1, 70, 3)])
    metrics.partitions_progressed([came_to(1, 0, 90, 2), came_to(1, 1, -1, 2)])
    metrics.batch_finished(BatchFacts(batch_id=0, state_rows=16))
    found = scrape(server.url)
    assert found["watermark_timestamp_seconds"] == 70
    assert found["source_watermark_timestamp_seconds/t/0"] == 90
    assert found["source_watermark_timestamp_seconds/t/1"] == 70
    assert found["state_rows"] == 5


def test_when_all_windows_are_closed_none_is_open(metrics, server):
    row = {"group": 0, "topic": "t", "partition": 0, "watermark_us": 1, "windows": 0}
    metrics.partitions_progressed([row])
    metrics.batch_finished(BatchFacts(batch_id=0, state_rows=16))
    assert scrape(server.url)["state_rows"] == 0


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        (("--trigger", "5s"), 5.0),
        (("--trigger", "0s"), 0.0),
        # A batch is as long as it was told to be, or follows the one before at once.
        (("--real-time", "10s"), 0.0),
        (("--available-now",), 0.0),
        (("--end-of-input",), 0.0),
    ],
)
def test_a_batch_overruns_no_interval_where_none_waits_for_its_time(arguments, seconds):
    common = ("--bootstrap-servers", "x:1", "--input-topic", "a", "--output-topic", "b")
    _, settings, _ = parse_declared(CPU_LOAD, (*common, "--checkpoint", "/nowhere", *arguments))
    assert settings.trigger_interval_seconds == seconds


def test_a_group_that_went_silent_holds_the_watermark_no_longer():
    watermarks = SourceWatermarks(idle_seconds=60)
    row = {"topic": "t", "partition": 0, "windows": 1}
    watermarks.report([{**row, "group": 0, "watermark_us": 10_000_000}], now_seconds=0)
    watermarks.report([{**row, "group": 1, "watermark_us": 90_000_000}], now_seconds=59)
    assert watermarks.by_partition() == {("t", 0): 10}
    watermarks.report([{**row, "group": 1, "watermark_us": 91_000_000}], now_seconds=60)
    assert watermarks.by_partition() == {("t", 0): 91}


def test_a_batch_longer_than_its_trigger_is_a_delay(metrics, server):
    metrics.batch_finished(BatchFacts(batch_id=0, duration_seconds=5.0))
    assert scrape(server.url)["trigger_delay_seconds"] == 3.0


def test_the_address_is_in_its_file_whole(server, tmp_path):
    path = tmp_path / "folder" / "address"
    server.write_address(path)
    assert path.read_text() == f"{server.url}\n"
    assert [child.name for child in path.parent.iterdir()] == ["address"]


def test_a_taken_port_is_an_os_error(metrics):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            MetricsServer(metrics.registry, address="127.0.0.1", port=taken.getsockname()[1])
