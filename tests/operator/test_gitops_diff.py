"""`headrace diff FILE --context` against a real API server; skipped loudly without KUBECONFIG."""

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest
import yaml

pytestmark = pytest.mark.skipif(
    "KUBECONFIG" not in os.environ, reason="NOT TESTED: no KUBECONFIG, diff has nothing to ask"
)

TOPIC = {
    "apiVersion": "headrace.dev/v1beta1",
    "kind": "Topic",
    "metadata": {"name": "orders"},
    "spec": {"clusterRef": {"name": "nobody"}, "partitions": 3},
}


def kubectl(*arguments: str, stdin: str = "") -> str:
    program = shutil.which("kubectl") or "kubectl"
    return subprocess.run(
        [program, *arguments], input=stdin, capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def namespace() -> Iterator[str]:
    name = f"diff-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def diff(manifest: str, namespace: str, *, context: str = "") -> subprocess.CompletedProcess[str]:
    context = context or kubectl("config", "current-context").strip()
    command = [sys.executable, "-m", "headrace_cli", "diff", "-", "--context", context]
    return subprocess.run(
        [*command, "--namespace", namespace],
        input=manifest,
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_shows_what_would_be_created_changed_and_nothing_after_that(namespace: str) -> None:
    created = diff(yaml.safe_dump(TOPIC), namespace)
    assert created.returncode == 1, created.stderr
    assert f"+++ applied/{namespace}/Topic/orders" in created.stdout
    assert "+  partitions: 3" in created.stdout
    # A dry run: nothing is there.
    assert kubectl("get", "topics", "-n", namespace, "-o", "name") == ""
    kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=yaml.safe_dump(TOPIC))
    same = diff(yaml.safe_dump(TOPIC), namespace)
    assert (same.returncode, same.stdout) == (0, "")
    grown = {**TOPIC, "spec": {**TOPIC["spec"], "partitions": 6}}
    changed = diff(yaml.safe_dump(grown), namespace)
    assert changed.returncode == 1
    assert {"-  partitions: 3", "+  partitions: 6"} <= set(changed.stdout.splitlines())


def test_what_the_api_server_refuses_is_said_with_its_reason(namespace: str) -> None:
    kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=yaml.safe_dump(TOPIC))
    shrunk = {**TOPIC, "spec": {**TOPIC["spec"], "partitions": 1}}
    refused = diff(yaml.safe_dump(shrunk), namespace)
    assert refused.returncode == 2
    assert "partitions cannot be removed without losing records" in refused.stdout


def test_objects_of_a_namespace_that_comes_with_them_are_shown_as_new() -> None:
    name = f"diff-{uuid.uuid4().hex[:8]}"
    brought = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        {**TOPIC, "metadata": {"name": "orders", "namespace": name}},
    ]
    found = diff(yaml.safe_dump_all(brought), "default")
    assert found.returncode == 1, found.stdout + found.stderr
    assert f"applied/{name}/Topic/orders" in found.stdout


def test_an_unknown_context_is_bad_input() -> None:
    found = diff(yaml.safe_dump(TOPIC), "default", context="nowhere")
    assert found.returncode == 2
    assert "nowhere" in found.stderr


def test_a_manifest_without_a_name_is_bad_input() -> None:
    found = diff("apiVersion: v1\nkind: ConfigMap\n", "default")
    assert found.returncode == 2
    assert "metadata.name" in found.stderr
