"""A cluster of three brokers under `headrace up`: one is killed, one joins, one leaves."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.numbered import Writer, check
from support.processes import wait_until
from support.up import Up, command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC, PARTITIONS = "orders", 6
MANIFEST = f"""
apiVersion: headrace.dev/v1beta1
kind: Cluster
metadata: {{name: trio}}
spec:
  pools: [{{name: brokers, replicas: 3, roles: [broker, controller]}}]
---
apiVersion: headrace.dev/v1beta1
kind: Topic
metadata: {{name: {TOPIC}}}
spec:
  clusterRef: {{name: trio}}
  partitions: {PARTITIONS}
  replicas: 3
  config: {{min.insync.replicas: 2}}
"""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """Three brokers with the topic; stopped at the end, whatever happened."""
    manifest = tmp_path / "trio.yaml"
    manifest.write_text(MANIFEST)
    session = Up(manifest, tmp_path / "headrace", cluster="trio")
    try:
        session.wait_for(f"+ topic {TOPIC}", 60)
        wait_until(lambda: TOPIC in session.run("get", "topics"), 30, "the topic")
        yield session
    finally:
        session.kill_if_running()
        subprocess.run([*command("down"), "--data-dir", str(session.data)], check=False)


def brokers(up: Up) -> dict[int, dict[str, object]]:
    listed = json.loads(up.run("get", "brokers", "-o", "json"))["items"]
    return {each["nodeId"]: each for each in listed}


def is_in_sync(up: Up, node_ids: set[int]) -> bool:
    found = brokers(up)
    return set(found) == node_ids and all(
        each["replicas"] == each["inSyncReplicas"] for each in found.values()
    )


def apply_replicas(up: Up, tmp_path: Path, replicas: int, *, status: int = 0) -> str:
    path = tmp_path / "changed.yaml"
    cluster, _, _ = MANIFEST.partition("---")
    path.write_text(cluster.replace("replicas: 3", f"replicas: {replicas}"))
    return up.run("apply", path, status=status)


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_a_killed_broker_costs_no_record_no_copy_and_no_order(up: Up, node_id: int) -> None:
    bootstrap = up.state()["bootstrap_servers"]
    with Writer(bootstrap, TOPIC, PARTITIONS) as writer:
        writer.wait_for_more()
        os.kill(up.broker_pid(node_id), signal.SIGKILL)
        writer.wait_for_more()
        up.wait_for(f"restarting broker-{node_id}", 20)
        writer.wait_for_more()
        wait_until(lambda: is_in_sync(up, {1, 2, 3}), 60, "all replicas in sync")
        writer.wait_for_more()
    check(writer)


def test_a_cluster_grows_and_shrinks_while_it_is_written_to(up: Up, tmp_path: Path) -> None:
    bootstrap = up.state()["bootstrap_servers"]
    with Writer(bootstrap, TOPIC, PARTITIONS) as writer:
        writer.wait_for_more()
        assert "+ broker 4" in apply_replicas(up, tmp_path, 4)
        wait_until(lambda: 4 in brokers(up), 30, "the fourth broker")
        writer.wait_for_more()
        late = tmp_path / "late.yaml"
        late.write_text(MANIFEST.partition("---")[2].replace(TOPIC, "late"))
        assert "+ topic late" in up.run("apply", late)
        wait_until(lambda: brokers(up)[4]["replicas"], 30, "replicas on the fourth broker")
        apply_replicas(up, tmp_path, 3)
        wait_until(lambda: is_in_sync(up, {1, 2, 3}), 60, "the fourth broker's end")
        writer.wait_for_more()
        up.wait_for("- registration of broker 4", 30)
    check(writer)
    refusal = apply_replicas(up, tmp_path, 2, status=1)
    assert "DrainRefused" in refusal
    assert is_in_sync(up, {1, 2, 3})


def test_a_cluster_is_balanced_and_a_broker_drained_by_command(up: Up, tmp_path: Path) -> None:
    bootstrap = up.state()["bootstrap_servers"]
    assert "nothing to do" in up.run("cluster", "plan")
    with Writer(bootstrap, TOPIC, PARTITIONS) as writer:
        writer.wait_for_more()
        apply_replicas(up, tmp_path, 4)
        wait_until(lambda: 4 in brokers(up), 30, "the fourth broker")
        assert "dry run" in up.run("cluster", "rebalance")
        assert brokers(up)[4]["replicas"] == 0
        assert "now, not abc" in up.run("cluster", "rebalance", "--approve", "abc", status=1)
        assert "done" in up.run("cluster", "rebalance", "--execute")
        assert brokers(up)[4]["replicas"]
        assert is_in_sync(up, {1, 2, 3, 4})
        writer.wait_for_more()
        up.run("cluster", "drain", 4, "--execute")
        assert brokers(up)[4]["replicas"] == 0
        writer.wait_for_more()
    check(writer)
    assert "no broker 9" in up.run("cluster", "drain", 9, status=1)
