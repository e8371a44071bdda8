"""What `headrace up` stores survives a power cut."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace_operator.local.desired import DesiredStore
from headrace_operator.local.layout import ClusterLayout
from headrace_operator.local.ports import load_ports, save_ports
from headrace_operator.local.state import ClusterState, load_state, save_state
from headrace_operator.resources import parse_resource

TOPIC = {
    "apiVersion": "headrace.dev/v1beta1",
    "kind": "Topic",
    "metadata": {"name": "t"},
    "spec": {"clusterRef": {"name": "cpu"}, "partitions": 1},
}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What was made durable and renamed, in order."""
    done: list[tuple[str, str]] = []
    sync, replace = os.fsync, Path.replace

    def fsync(handle: int) -> None:
        done.append(("sync", Path(f"/proc/self/fd/{handle}").readlink().name))
        sync(handle)

    def rename(path: Path, target: Path) -> Any:
        done.append(("rename", target.name))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", rename)
    return done


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("state.json", lambda path: save_state(path, ClusterState(cluster="cpu"))),
        ("ports.json", lambda path: save_ports(path, {"a": 1})),
    ],
    ids=["state", "ports"],
)
def test_a_file_is_replaced_by_one_that_is_durable(
    tmp_path: Path, steps: list[tuple[str, str]], name: str, save: Callable[[Path], None]
) -> None:
    save(tmp_path / name)
    assert steps == [("sync", f"{name}.tmp"), ("rename", name), ("sync", tmp_path.name)]
    assert load_state(tmp_path / name) or load_ports(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_manifests_are_stored_and_removed_durably(
    tmp_path: Path, steps: list[tuple[str, str]]
) -> None:
    layout = ClusterLayout(root=tmp_path / "cpu")
    layout.create()
    store, topic = DesiredStore(layout), parse_resource(TOPIC)
    store.put([topic])
    assert ("rename", "topic.default.t.yaml") in steps
    steps.clear()
    store.remove([topic.key])
    assert steps[0] == ("sync", layout.desired_directory.name)
    assert not store.documents()
