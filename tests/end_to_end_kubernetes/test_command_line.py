"""The command line from outside: through the API server, with no listener for clients outside."""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.kube import kubectl
from support.kube_cluster import KubeCluster
from support.processes import free_port, wait_until

pytestmark = pytest.mark.timeout(600)

RECORDS = 500


@pytest.fixture(scope="module")
def cluster(shared_namespace: str) -> Iterator[KubeCluster]:
    with KubeCluster(shared_namespace, listeners=[{"name": "plain"}]) as running:
        yield running


def headrace(
    cluster: KubeCluster,
    *arguments: object,
    stdin: str = "",
    status: int = 0,
    kubeconfig: Path | None = None,
    where: tuple[str, ...] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command about the cluster, and check its exit status."""
    environment = {key: text for key, text in os.environ.items() if not key.startswith("HEADRACE_")}
    if kubeconfig is not None:
        environment["KUBECONFIG"] = str(kubeconfig)
    place = ("-n", cluster.namespace) if where is None else where
    done = subprocess.run(
        [sys.executable, "-m", "headrace_cli", *place, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment | {"NO_COLOR": "1", "TERM": "dumb"},
    )
    assert done.returncode == status, f"{arguments}: {done.stdout}\n{done.stderr}"
    return done


def test_manifests_are_compared_and_applied(cluster: KubeCluster) -> None:
    text = topic_text(cluster, "lines", 3)
    compared = headrace(cluster, "diff", "-", stdin=text, status=1)
    assert "+  partitions: 3" in compared.stdout
    assert headrace(cluster, "apply", "-", stdin=text).stdout == "topic/lines created\n"
    assert headrace(cluster, "apply", "-", stdin=text).stdout == "topic/lines unchanged\n"
    assert not headrace(cluster, "diff", "-", stdin=text).stdout
    refused = headrace(cluster, "apply", "-", stdin=topic_text(cluster, "lines", 1), status=1)
    assert "partitions" in refused.stderr
    wait_for_topic(cluster, "lines")


def test_records_go_in_and_come_out_of_all_brokers(cluster: KubeCluster) -> None:
    lines = "".join(f"k{number}:v{number}\n" for number in range(RECORDS))
    headrace(cluster, "produce", "lines", "-K", ":", stdin=lines)
    read = headrace(cluster, "consume", "lines", "-o", "json", "--group", "readers").stdout
    found = [json.loads(line) for line in read.splitlines()]
    assert {each["value"] for each in found} == {f"v{number}" for number in range(RECORDS)}
    assert len(found) == RECORDS
    assert len({each["partition"] for each in found}) == 3

    assert "LEADER" in headrace(cluster, "describe", "topic", "lines").stdout
    groups = json.loads(headrace(cluster, "get", "groups", "-o", "json").stdout)["items"]
    assert [each["status"]["lagRecords"] for each in groups] == [0]
    reset = ("groups", "reset", "readers", "--topic", "lines", "--to", "earliest", "--execute")
    headrace(cluster, *reset)
    again = headrace(cluster, "consume", "lines", "--group", "readers", "-n", 7).stdout
    assert len(again.splitlines()) == 7


def test_cluster_and_brokers_are_shown_as_kubernetes_has_them(cluster: KubeCluster) -> None:
    item = json.loads(headrace(cluster, "get", "cluster", "-o", "json").stdout)
    assert item["metadata"]["uid"] == cluster.resource()["metadata"]["uid"]
    assert item["status"]["readyBrokers"] == 3
    brokers = json.loads(headrace(cluster, "get", "brokers", "-o", "json").stdout)["items"]
    assert [each["pool"] for each in brokers] == ["a"] * 3
    assert "True (" in headrace(cluster, "get", "cluster").stdout


def test_a_plan_is_proposed_approved_by_its_hash_paused_and_carried_out(
    cluster: KubeCluster,
) -> None:
    rebalance = ("cluster", "rebalance")
    headrace(cluster, "cluster", "cordon", "3")
    assert "Cordoned" in headrace(cluster, "get", "brokers").stdout
    try:
        headrace(cluster, "apply", "-", stdin=topic_text(cluster, "single", 6, replicas=1))
        wait_for_topic(cluster, "single")
    finally:
        headrace(cluster, "cluster", "uncordon", "3")
    headrace(cluster, "produce", "single", stdin=("x" * 1000 + "\n") * 3000)

    proposed = headrace(cluster, *rebalance, "--throttle", "100KB")
    found = re.search(r"plan ([0-9a-f]+): ([0-9.]+) MB to copy, [0-9]+ s", proposed.stderr)
    assert found, proposed.stderr
    assert float(found[2]) > 0
    assert "dry run" in proposed.stderr
    refused = headrace(cluster, *rebalance, "--approve", "0" * len(found[1]), status=1)
    assert "look at it again" in refused.stderr
    assert "no plan is under way" in headrace(cluster, *rebalance, "--status").stdout

    headrace(cluster, *rebalance, "--approve", found[1], "--throttle", "100KB", "--no-wait")
    headrace(cluster, *rebalance, "--pause")
    wait_until(lambda: "is paused" in headrace(cluster, *rebalance, "--status").stdout)
    assert "MB left" in headrace(cluster, *rebalance, "--status").stdout
    headrace(cluster, *rebalance, "--resume", "--throttle", "100MB")
    wait_until(
        lambda: "no plan is under way" in headrace(cluster, *rebalance, "--status").stdout, 90
    )
    described = headrace(cluster, "describe", "topic", "single").stdout
    rows = [line.split() for line in described.splitlines() if line.strip()[:1].isdigit()]
    assert {row[2] for row in rows} == {"1", "2", "3"}, described


def topic_text(cluster: KubeCluster, name: str, partitions: int, **spec: int) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "headrace.dev/v1beta1",
            "kind": "Topic",
            "metadata": {"name": name},
            "spec": {"clusterRef": {"name": cluster.name}, "partitions": partitions, **spec},
        }
    )


def wait_for_topic(cluster: KubeCluster, name: str) -> None:
    ready = ("wait", "--for=condition=Ready", f"topic/{name}", "--timeout=60s")
    kubectl("-n", cluster.namespace, *ready)


def test_a_plain_port_forward_ends_with_a_reason_and_does_not_hang(cluster: KubeCluster) -> None:
    port = free_port()
    pod = next(iter(cluster.pods()))
    forward = subprocess.Popen(
        ["kubectl", "-n", cluster.namespace, "port-forward", pod, f"{port}:9092"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert forward.stdout is not None
        assert "Forwarding" in forward.stdout.readline()
        server = ("--bootstrap-server", f"127.0.0.1:{port}")
        for command in ("produce", "consume"):
            done = headrace(cluster, command, "lines", *server, stdin="x\n", status=1, where=())
            assert "the brokers name themselves" in done.stderr
            assert "--context" in done.stderr
    finally:
        forward.terminate()
        forward.communicate()


def test_an_exec_plugin_of_the_kubeconfig_logs_in(cluster: KubeCluster, tmp_path: Path) -> None:
    config = yaml.safe_load(kubectl("config", "view", "--raw", "--minify", "--flatten"))
    user = config["users"][0]["user"]
    if "client-certificate-data" not in user and "token" not in user:
        pytest.skip("this kubeconfig logs in by neither a certificate nor a token")
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": certificate_of(user) or {"token": user.get("token")},
    }
    (tmp_path / "credential.json").write_text(json.dumps(credential))
    plugin = tmp_path / "plugin"
    plugin.write_text('#!/bin/sh\necho "$KUBERNETES_EXEC_INFO" >> "$SEEN"\ncat "$CREDENTIAL"\n')
    plugin.chmod(0o755)
    config["users"][0]["user"] = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./plugin",
            "interactiveMode": "Never",
            "env": [
                {"name": "SEEN", "value": str(tmp_path / "seen")},
                {"name": "CREDENTIAL", "value": str(tmp_path / "credential.json")},
            ],
        }
    }
    config["contexts"][0]["name"] = "by-plugin"
    config["current-context"] = ""
    (file := tmp_path / "config").write_text(yaml.safe_dump(config))
    where = ("--context", "by-plugin", "-n", cluster.namespace)
    shown = headrace(cluster, "get", "topics", "-o", "name", kubeconfig=file, where=where)
    assert "topic/lines" in shown.stdout
    asked = (tmp_path / "seen").read_text().splitlines()
    assert len(asked) == 1, "what it said holds for the whole command"
    assert json.loads(asked[0])["spec"] == {"interactive": False}


def certificate_of(user: dict[str, str]) -> dict[str, str]:
    """Return a kubeconfig's certificate as a plugin gives it."""
    if "client-certificate-data" not in user:
        return {}
    return {
        "clientCertificateData": base64.b64decode(user["client-certificate-data"]).decode(),
        "clientKeyData": base64.b64decode(user["client-key-data"]).decode(),
    }
