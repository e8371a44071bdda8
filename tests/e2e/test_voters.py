"""Who votes under `headrace up` while the cluster grows and shrinks, and when disks are emptied."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from headrace_operator.quorum import QuorumState, describe_quorum
from support.numbered import Writer, check
from support.processes import wait_until
from support.up import Up, command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC, PARTITIONS = "orders", 4
SECONDS_MAX = 60


class Running:
    """One cluster of one pool, started again and again on the same data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.root = folder / "headrace" / "solo"
        self.up: Up | None = None

    def start(self, brokers: int) -> Up:
        self.up = Up(self._manifest(brokers), self.root.parent, cluster="solo")
        return self.up

    def begin(self, brokers: int) -> Up:
        """Start, and wait until the topic is there."""
        up = self.start(brokers)
        up.wait_for(f"broker {brokers} ready", SECONDS_MAX)
        wait_until(lambda: TOPIC in up.run("get", "topics"), SECONDS_MAX, "the topic")
        return up

    def stop(self) -> None:
        if self.up is not None:
            self.up.kill_if_running()

    def scale(self, brokers: int) -> str:
        assert self.up is not None
        return self.up.run("apply", self._manifest(brokers))

    def _manifest(self, brokers: int) -> Path:
        # replicas is left open: the topic has as many as there are brokers, up to three.
        path = self._folder / "solo.yaml"
        path.write_text(
            f"""
apiVersion: headrace.dev/v1beta1
kind: Cluster
metadata: {{name: solo}}
spec:
  pools: [{{name: brokers, replicas: {brokers}}}]
---
apiVersion: headrace.dev/v1beta1
kind: Topic
metadata: {{name: {TOPIC}}}
spec: {{clusterRef: {{name: solo}}, partitions: {PARTITIONS}}}
"""
        )
        return path

    @property
    def bootstrap(self) -> str:
        assert self.up is not None
        return str(self.up.state()["bootstrap_servers"])

    def quorum(self) -> QuorumState | None:
        """Ask who votes; None while nobody leads."""
        try:
            admin = KafkaAdminClient(bootstrap_servers=self.bootstrap.split(","))
        except KafkaError:
            return None
        try:
            return describe_quorum(admin)
        except KafkaError:
            return None
        finally:
            admin.close()

    def voters(self) -> set[int]:
        found = self.quorum()
        return {each.node_id for each in found.voters} if found else set()

    def brokers(self) -> dict[int, dict[str, Any]]:
        assert self.up is not None
        try:
            listed = json.loads(self.up.run("get", "brokers", "-o", "json"))["items"]
        except AssertionError as error:
            # The last one of a shrunken cluster is restarted with its new settings.
            if "ECONNREFUSED" not in str(error):
                raise
            return {}
        return {each["nodeId"]: each for each in listed}

    def wait_for(self, brokers: int, voters: set[int]) -> None:
        """Wait until so many brokers are left and these vote."""
        ids = set(range(1, brokers + 1))
        wait_until(lambda: set(self.brokers()) == ids, SECONDS_MAX, f"brokers {ids}")
        wait_until(lambda: self.voters() == voters, SECONDS_MAX, f"voters {voters}")

    def properties(self, node_id: int) -> dict[str, str]:
        text = (self.root / f"broker-{node_id}" / "broker.properties").read_text()
        return dict(line.split("=", 1) for line in text.splitlines())


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """Nothing yet; stopped at the end, whatever happened."""
    found = Running(tmp_path)
    try:
        yield found
    finally:
        found.stop()
        subprocess.run([*command("down"), "--data-dir", str(found.root.parent)], check=False)


def test_three_become_one_and_three_again_and_nothing_written_is_lost(running: Running) -> None:
    up = running.begin(3)
    wait_until(lambda: running.voters() == {1, 2, 3}, SECONDS_MAX, "three voters")
    with Writer(running.bootstrap, TOPIC, PARTITIONS) as writer:
        writer.wait_for_more()
        said = running.scale(1)
        running.wait_for(1, {1})
        writer.wait_for_more()
        wait_until(
            lambda: running.properties(1)["default.replication.factor"] == "1",
            SECONDS_MAX,
            "defaults that one broker can hold",
        )
        writer.wait_for_more()
        said += running.scale(3)
        running.wait_for(3, {1, 2, 3})
        writer.wait_for_more()
    check(writer)
    # `apply` names what it leaves to `up`, which says it again when it is done.
    said = "".join(line for line in said.splitlines(keepends=True) if "by the running" not in line)
    said += up.output
    for once in (
        "~ cordon broker 2, 3",
        "- broker 2 (",
        "- broker 3 (",
        "+ broker 2 (",
        "+ broker 3 (",
    ):
        assert said.count(once) == 1, said
    assert said.count("- vote of broker") == said.count("+ vote of broker") == 2
    assert "uncordon" not in said


def test_three_become_five_and_three_again_and_nobody_else_votes(running: Running) -> None:
    running.begin(3)
    with Writer(running.bootstrap, TOPIC, PARTITIONS) as writer:
        writer.wait_for_more()
        running.scale(5)
        running.wait_for(5, {1, 2, 3})
        assert running.up is not None
        running.up.run("cluster", "rebalance", "--execute")
        assert running.brokers()[5]["replicas"]
        writer.wait_for_more()
        running.scale(3)
        running.wait_for(3, {1, 2, 3})
        writer.wait_for_more()
    check(writer)


def test_one_becomes_three_that_survive_any_of_them(running: Running) -> None:
    up = running.begin(1)
    with Writer(running.bootstrap, TOPIC, PARTITIONS) as writer:
        writer.wait_for_more()
        running.scale(3)
        running.wait_for(3, {1, 2, 3})
        writer.wait_for_more()
    check(writer)
    leader = running.quorum()
    assert leader is not None
    up.run("cluster", "voters", "list")


def test_an_emptied_disk_joins_again_and_two_of_them_never_begin_another_cluster(
    running: Running,
) -> None:
    running.begin(3)
    with Writer(running.bootstrap, TOPIC, PARTITIONS) as writer:
        writer.wait_for_more()
    wait_until(lambda: running.voters() == {1, 2, 3}, SECONDS_MAX, "three voters")
    for node_id in (1, 2, 3):
        assert "controller.quorum.voters" not in running.properties(node_id)
    before = running.quorum()
    running.stop()
    shutil.rmtree(running.root / "broker-2" / "data")
    up = running.begin(3)
    up.wait_for("+ vote of broker 2", SECONDS_MAX)
    running.wait_for(3, {1, 2, 3})
    after = running.quorum()
    assert before is not None
    assert after is not None
    assert _directory(before, 1) == _directory(after, 1)
    assert _directory(before, 2) != _directory(after, 2)
    check(writer)
    running.stop()
    for node_id in (2, 3):
        shutil.move(running.root / f"broker-{node_id}" / "data", running.root / f"kept-{node_id}")
    failed = running.start(3)
    assert failed.wait(120) != 0
    assert "the metadata log is gone from the disk of broker 2, 3" in failed.output
    for node_id in (2, 3):
        shutil.rmtree(running.root / f"broker-{node_id}" / "data")
        shutil.move(running.root / f"kept-{node_id}", running.root / f"broker-{node_id}" / "data")
    running.begin(3)
    running.wait_for(3, {1, 2, 3})
    check(writer)


def test_data_of_a_cluster_whose_voters_were_in_its_settings_goes_on(running: Running) -> None:
    running.begin(3)
    with Writer(running.bootstrap, TOPIC, PARTITIONS) as writer:
        writer.wait_for_more()
    running.stop()
    # As it was left before who votes was only in the log: nothing says that it was formed.
    state = json.loads((running.root / "state.json").read_text())
    assert state.pop("is_formed")
    (running.root / "state.json").write_text(json.dumps(state))
    shutil.rmtree(running.root / "broker-3" / "data")
    up = running.start(3)
    up.wait_for("broker 3 ready", SECONDS_MAX)
    # The file of the one with an empty disk never named voters; those of the others do no more.
    for node_id in (1, 2, 3):
        assert "controller.quorum.voters" not in running.properties(node_id)
    up.wait_for("+ vote of broker 3", SECONDS_MAX)
    running.wait_for(3, {1, 2, 3})
    check(writer)


def _directory(state: QuorumState, node_id: int) -> object:
    return next(each.directory_id for each in state.voters if each.node_id == node_id)
