"""What changes a running cluster besides `apply`: resets of groups, and `delete`."""

import json
from pathlib import Path

import pytest

from support.processes import wait_until
from support.up import Up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

EXAMPLE = Path(__file__).parents[2] / "manifests" / "examples" / "cpu-load"
RESET = ("groups", "reset", "cpu-load-job", "--topic", "cpu-load", "--execute", "--to")


def generation(data: Path) -> int:
    pointer = data / "cpu" / "jobs" / "cpu-load" / "checkpoint" / "generations.json"
    return json.loads(pointer.read_text())["current"]


@pytest.mark.spark
def test_a_reset_stops_the_spark_job_moves_it_and_starts_it_again(data: Path) -> None:
    up = Up(EXAMPLE, data)
    try:
        up.wait_for("cpu-load-windows: window", 120)
        first = next(line for line in up.output.splitlines() if "cpu-load-windows: window" in line)
        # Without the time of day at which it was seen.
        window = first.partition(" ")[2]
        assert "--to previous undoes it" in up.run(*RESET, "earliest")
        assert up.output.count("- SparkApplication cpu-load") == 1
        # The first window comes out again: its records were read again.
        wait_until(lambda: up.output.count(window) == 2, 120, "the first window again")
        assert generation(data) == 2
        assert "-> 0" in up.output
        described = up.run("describe", "group", "cpu-load-job")
        assert "records, " in described
        assert "at-least-once" in up.run("describe", "job", "cpu-load")
        up.run(*RESET, "previous")
        assert up.output.count("+ SparkApplication cpu-load") == 3
        wait_until(lambda: generation(data) == 1, 60, "the first generation")
    finally:
        up.kill_if_running()


def test_delete_does_what_the_deletion_policy_says(data: Path, tmp_path: Path) -> None:
    up = Up(EXAMPLE, data, "--no-spark")
    run = up.run
    topic = tmp_path / "topic.yaml"

    def write(policy: str) -> None:
        topic.write_text(
            "apiVersion: headrace.dev/v1beta1\nkind: Topic\nmetadata: {name: notes}\n"
            f"spec: {{clusterRef: {{name: cpu}}, replicas: 1, deletionPolicy: {policy}}}\n"
        )

    try:
        up.wait_for("started cpu-load-producer", 60)
        write("Protect")
        run("apply", topic)
        assert "is protected" in run("delete", topic, status=1)
        assert "is protected" in run("down", "--delete-data", "--yes", status=1)
        write("Delete")
        run("apply", topic)
        assert "topic/notes deleted" in run("delete", "topic", "notes")
        assert "does not exist" in run("get", "topic", "notes", status=1)
        write("Retain")
        run("apply", topic)
        assert "stay in the brokers" in run("delete", topic)
        assert "notes" in run("get", "topic", "notes")
        assert "--yes" in run("delete", "topic", "notes", status=1)
        run("delete", "topic", "notes", "--yes")
        assert "does not exist" in run("get", "topic", "notes", status=1)
        assert "deployment/cpu-load-producer deleted" in run(
            "delete", "deployment", "cpu-load-producer"
        )
        assert "- Deployment cpu-load-producer" in up.output
        assert len(up.state()["processes"]) == 3
    finally:
        up.kill_if_running()
