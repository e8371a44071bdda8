"""What the command line says about mistakes, by real processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from support.command_line import run_headrace
from support.headrace_broker import HeadraceBroker

CLUSTER = """\
apiVersion: headrace.dev/v1beta1
kind: Cluster
metadata: {name: cpu}
spec:
  pools: [{name: brokers, replicas: 1}]
"""
TOPIC = """\
apiVersion: headrace.dev/v1beta1
kind: Topic
metadata:
  name: t
spec:
  clusterRef: {name: cpu}
  partitions: 1
"""


def headrace(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {key: text for key, text in os.environ.items() if not key.startswith("HEADRACE_")}
    environment |= {"NO_COLOR": "1", "TERM": "dumb"}
    return run_headrace(*arguments, stdin=stdin, environment=environment)


@pytest.mark.parametrize(
    ("wrong", "line", "expected"),
    [
        ("  partitions: -1", 7, "spec.partitions"),
        ("  partitons: 3", 7, "partitons"),
        ("  partitions: 1\n  config: {retention.mss: 1}", 8, "retention.ms"),
    ],
)
def test_a_wrong_manifest_is_reported_with_file_line_path_and_reason(
    tmp_path: Path, wrong: str, line: int, expected: str
) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    file = tmp_path / "topic.yaml"
    file.write_text(TOPIC.replace("  partitions: 1", wrong))
    done = headrace("up", tmp_path, "--data-dir", tmp_path / "data")
    assert done.returncode == 2
    assert f"{file}:{line}: Topic/t: " in done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()


def test_yaml_that_cannot_be_read_is_reported_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("kind: Topic\n  wrong: [\n")
    done = headrace("up", file, "--data-dir", tmp_path / "data")
    assert done.returncode == 2
    assert f"{file}:2: not YAML" in done.stderr


def test_manifests_without_a_cluster_do_not_come_up(tmp_path: Path) -> None:
    file = tmp_path / "topic.yaml"
    file.write_text(TOPIC)
    done = headrace("up", file, "--data-dir", tmp_path / "data")
    assert done.returncode == 2
    assert "exactly one Cluster; found: none" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (("up", "/no/such/folder"), 2, "/no/such/folder: no such file or folder"),
        (("up", "manifests", "--for", "soon"), 2, "soon: not a duration"),
        (("broker", "/no/such.properties"), 2, "/no/such.properties: no such file"),
        (("get", "topics"), 1, "headrace up"),
        (("down",), 1, "no cluster in"),
        (("get", "nonsense"), 2, "nonsense"),
        (("describe", "topic"), 2, "NAME is missing"),
        (("get", "topics", "--bootstrap-server", "127.0.0.1:1"), 1, "no answer from 127.0.0.1:1"),
        (("consume", "t", "--from", "sometime"), 2, "sometime: not a position"),
        (("produce", "t", "--header", "x"), 2, "must be name=value"),
        (("groups", "reset", "g", "--topic", "t", "--to", "shift:x"), 2, "not a whole number"),
        (("get", "topics", "--bootstrap-server", "foo:bar"), 2, "'foo:bar' is not host:port"),
        (("produce", "t", "--bootstrap-server", "a:1,b:99999"), 2, "'b:99999' is not host:port"),
        (("get", "topics", "--bootstrap-server", "[::1"), 2, "'[::1' is not host:port"),
        (("consume", "t", "--from", "9" * 30), 2, "more than 9223372036854775807"),
        (("consume", "t", "--from", "timestamp:" + "9" * 30), 2, "more than 9223372036854775807"),
        (("consume", "t", "--from", "9" * 30 + "d"), 2, "longer than 999999999 days"),
        (("consume", "t", "--from", "9999999d"), 2, "too long ago"),
        (("up", "manifests", "--for", "9" * 400), 2, "longer than 999999999 days"),
        (("apply",), 2, "say which manifests"),
        (("apply", "a.yaml", "-f", "b.yaml"), 2, "say which manifests"),
    ],
)
def test_mistakes_are_one_line_and_a_documented_exit_status(
    tmp_path: Path, arguments: tuple[str, ...], status: int, expected: str
) -> None:
    if arguments[0] != "broker" and "--bootstrap-server" not in arguments:
        arguments = (*arguments, "--data-dir", str(tmp_path / "data"))
    done = headrace(*arguments)
    assert done.returncode == status, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("how", [("-",), ("-f", "-"), ("--filename", "-")])
def test_a_list_on_standard_input_is_applied(tmp_path: Path, how: tuple[str, ...]) -> None:
    """As `headrace get topics -o yaml` prints it."""
    (tmp_path / "cpu" / "desired").mkdir(parents=True)
    items = [yaml.safe_load(text) for text in (CLUSTER, TOPIC)]
    listed = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items})
    done = headrace("apply", *how, "--data-dir", tmp_path, stdin=listed)
    assert done.returncode == 0, done.stderr
    assert "topic/t created" in done.stdout
    wrong = listed.replace("partitions: 1", "partitions: -1")
    done = headrace("apply", *how, "--data-dir", tmp_path, stdin=wrong)
    assert done.returncode == 2
    line = 1 + wrong.splitlines().index("    partitions: -1")
    assert f"-:{line}: Topic/t: spec.partitions" in done.stderr


def test_a_broker_starts_without_the_command_lines_libraries(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['headrace', 'broker', '/no/such.properties']\n"
        "import headrace_cli.main\n"
        "try: headrace_cli.main.main()\n"
        "except SystemExit: pass\n"
        "print(*({'typer', 'rich', 'click', 'kafka'} & set(sys.modules)))"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == ""
    assert time.monotonic() - began < 3


def test_version_and_help_work_everywhere() -> None:
    assert headrace("version").stdout.startswith("headrace ")
    for command in ("up", "apply", "diff", "get", "describe", "produce", "consume", "down"):
        done = headrace(command, "--help")
        assert done.returncode == 0
        assert "Usage" in done.stdout


def test_delete_data_asks_before_it_deletes(tmp_path: Path) -> None:
    (tmp_path / "cpu" / "desired").mkdir(parents=True)
    done = headrace("down", "--delete-data", "--data-dir", tmp_path)
    assert done.returncode == 1
    assert "--yes" in done.stderr
    assert (tmp_path / "cpu").exists()
    assert headrace("down", "--delete-data", "-y", "--data-dir", tmp_path).returncode == 0
    assert not (tmp_path / "cpu").exists()


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_brokers_that_name_themselves_in_vain_are_reported_and_not_waited_for(
    tmp_path: Path, command: str
) -> None:
    # What a port-forward to one pod gives.
    name = "PLAINTEXT://c-a-0.c-brokers.n.svc.invalid:9092"
    with HeadraceBroker(tmp_path, {"advertised.listeners": name}) as broker:
        done = headrace(command, "t", "--bootstrap-server", broker.bootstrap, stdin="x\n")
    assert done.returncode == 1
    assert "the brokers name themselves c-a-0.c-brokers.n.svc.invalid:9092" in done.stderr


@pytest.mark.parametrize("command", [("up", "manifests"), ("delete", "topic", "t"), ("down",)])
def test_what_is_about_this_machine_takes_no_context(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    done = headrace("--context", "c", *command, "--data-dir", tmp_path)
    assert done.returncode == 2
    assert "this command is about clusters of this machine" in done.stderr
