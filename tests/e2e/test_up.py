"""`headrace up manifests/examples/cpu-load`, for real: our broker, this machine's CPUs, Spark."""

import json
import os
import signal
import subprocess
import time
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.processes import wait_until
from support.topics import read_topic
from support.up import Up, command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "manifests" / "examples" / "cpu-load"
WINDOW_SECONDS = 10
#: Until Spark has started and a window is closed, beside others.
PATIENCE_SECONDS = 240


def window_key(value: dict[str, Any]) -> tuple[float, str, int]:
    start = datetime.fromisoformat(value["window_start"]).timestamp()
    return (start, value["hostname"], str(value["cpu"]))


def expected_windows(readings: list[dict[str, Any]]) -> dict[tuple[float, str, int], list[float]]:
    windows = defaultdict(list)
    for reading in readings:
        at = datetime.fromisoformat(reading["occurred_at"]).timestamp()
        start = at // WINDOW_SECONDS * WINDOW_SECONDS
        windows[start, reading["hostname"], str(reading["cpu"])].append(reading["usage"])
    return windows


def check_windows(windows: list[dict[str, Any]], readings: list[dict[str, Any]]) -> None:
    """Every result is what its readings say; each window came once."""
    expected = expected_windows(readings)
    assert windows
    for window in windows:
        usages = expected[window_key(window)]
        assert window["readings"] == len(usages), window
        assert window["usage_avg"] == pytest.approx(sum(usages) / len(usages))
        assert window["usage_max"] == max(usages)
    assert len({window_key(window) for window in windows}) == len(windows)


def session_members(pids: list[int]) -> list[int]:
    members = []
    for process in psutil.process_iter():
        try:
            is_alive = process.status() != psutil.STATUS_ZOMBIE
            if is_alive and os.getsid(process.pid) in pids:
                members.append(process.pid)
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue
    return members


def wait_for_no_members(pids: list[int]) -> None:
    """A killed JVM is still listed until the kernel has given its memory back."""
    deadline = time.monotonic() + 20
    while (members := session_members(pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert members == []


@pytest.mark.spark
def test_windows_of_real_readings_arrive_an_interrupt_ends_all_and_a_second_up_goes_on(
    data: Path,
) -> None:
    # The brokers stop with `up`, so what they have is read while it runs.
    first = Up(EXAMPLE, data, "--rate", "2")
    try:
        first.wait_for("cpu-load-windows: window", PATIENCE_SECONDS)
        wait_until(lambda: first.output.count("cpu-load-windows: window") >= 4, 60, "4 windows")
        bootstrap = first.state()["bootstrap_servers"]
        windows = read_topic(bootstrap, "cpu-load-windows")
        readings = read_topic(bootstrap, "cpu-load")
        check_windows(windows, readings)
        pids = [process["pid"] for process in first.state()["processes"]]
        assert len(pids) == 5
        os.kill(first.pid, signal.SIGINT)
        assert first.wait(60) == 0, first.output
    finally:
        first.kill_if_running()
    wait_for_no_members([*pids, first.pid])
    assert first.state()["processes"] == []
    order = first.output.index("stopped cpu-load"), first.output.index("stopped brokers")
    assert order[0] < order[1]
    assert "results read from cpu-load-windows" in first.output
    assert "records of lag left to cpu-load-job" in first.output
    second = Up(EXAMPLE, data, "--for", "75s")
    try:
        second.wait_for("cpu-load-windows: window", PATIENCE_SECONDS)
        bootstrap = second.state()["bootstrap_servers"]
        again = read_topic(bootstrap, "cpu-load-windows")
        check_windows(again, read_topic(bootstrap, "cpu-load"))
        assert len(again) > len(windows)
        assert {window_key(window) for window in windows} <= {window_key(each) for each in again}
        assert "+ topic" not in second.output
        assert second.wait() == 0, second.output
    finally:
        second.kill_if_running()
    down = command("down", "--delete-data", "--yes", "--data-dir", data)
    subprocess.run(down, check=True)
    assert not (data / "cpu").exists()


@pytest.mark.spark
def test_a_second_interrupt_ends_everything_at_once(data: Path) -> None:
    up = Up(EXAMPLE, data)
    try:
        up.wait_for("job cpu-load: Spark is starting", PATIENCE_SECONDS)
        time.sleep(8)  # into the start of the JVM, which takes its time to stop
        pids = [process["pid"] for process in up.state()["processes"]]
        os.kill(up.pid, signal.SIGINT)
        up.wait_for("SIGINT: stopping", 10)
        os.kill(up.pid, signal.SIGINT)
        assert up.wait(10) == 130
    finally:
        up.kill_if_running()
    wait_for_no_members([*pids, up.pid])


def test_a_killed_up_is_cleaned_up_by_down(data: Path) -> None:
    up = Up(EXAMPLE, data, "--no-spark")
    try:
        up.wait_for("started cpu-load-producer", 60)
        wait_until(lambda: len(up.state()["processes"]) == 4, 10, "four processes in the state")
        pids = [process["pid"] for process in up.state()["processes"]]
        os.kill(up.pid, signal.SIGKILL)
        up.wait(10)
        assert session_members(pids) != []
        subprocess.run(command("down", "--data-dir", data), check=True)
    finally:
        up.kill_if_running()
    wait_for_no_members(pids)


def test_a_broker_that_dies_comes_back_and_nothing_acknowledged_is_lost(data: Path) -> None:
    up = Up(EXAMPLE, data, "--no-spark", "--rate", "20")
    try:
        up.wait_for("started cpu-load-producer", 60)
        time.sleep(3)
        bootstrap = up.state()["bootstrap_servers"]
        before = read_topic(bootstrap, "cpu-load")
        broker = next(each for each in up.state()["processes"] if each["name"] == "broker-1")
        os.kill(broker["pid"], signal.SIGKILL)
        up.wait_for("restarting broker-1", 20)
        wait_until(lambda: up.output.count("started broker-1") == 2, 20, "the second start")
        time.sleep(3)
        after = read_topic(bootstrap, "cpu-load")
        assert after[: len(before)] == before
        assert len(after) > len(before)
        moments = [reading["occurred_at"] for reading in after]
        assert moments == sorted(moments)
        unique = {(reading["occurred_at"], reading["cpu"]) for reading in after}
        assert len(unique) == len(after)
    finally:
        up.kill_if_running()


def test_apply_changes_a_running_cluster(data: Path, tmp_path: Path) -> None:
    up = Up(EXAMPLE, data, "--no-spark")
    topic = tmp_path / "notes.yaml"
    lines = (
        "apiVersion: headrace.dev/v1beta1",
        "kind: Topic",
        "metadata: {name: notes}",
        "spec: {clusterRef: {name: cpu}, partitions: PARTITIONS, config: {retention.ms: 60000}}",
    )

    run = up.run
    try:
        up.wait_for("started cpu-load-producer", 60)
        topic.write_text("\n".join(lines).replace("PARTITIONS", "2"))
        assert "+ topic notes" in run("diff", topic, status=1)
        assert "topic/notes created" in run("apply", topic)
        assert "topic/notes unchanged" in run("apply", topic)
        topic.write_text("\n".join(lines).replace("PARTITIONS", "3").replace("60000", "70000"))
        assert "partitions 2 -> 3" in run("apply", topic)
        described = json.loads(run("get", "topic", "notes", "-o", "json"))
        assert described["spec"]["partitions"] == 3
        assert described["spec"]["config"] == {"retention.ms": "70000"}
        topic.write_text("\n".join(lines).replace("PARTITIONS", "1"))
        assert "spec.partitions" in run("apply", topic, status=2)
        run("produce", "notes", "-K", ":", stdin="a:1\nb:2\na:3\n")
        values = run("consume", "notes", "--group", "readers").split()
        assert sorted(values) == ["1", "2", "3"]
        assert run("consume", "notes", "--group", "readers") == ""
        dry = run("groups", "reset", "readers", "--topic", "notes", "--to", "earliest")
        assert "dry run" in dry
        assert run("consume", "notes", "--group", "readers") == ""
        run("groups", "reset", "readers", "--topic", "notes", "--to", "earliest", "--execute")
        assert sorted(run("consume", "notes", "--group", "readers").split()) == ["1", "2", "3"]
    finally:
        up.kill_if_running()
