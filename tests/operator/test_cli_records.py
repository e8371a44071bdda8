"""`headrace` on a real broker: records with all that they carry, offsets, JSON, profiles."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace_cli.commands.consume import record_json, record_text
from headrace_cli.commands.group_offsets import parse_offsets
from headrace_cli.commands.produce import Line, LineFormat, parse_line
from headrace_cli.errors import BadInputError
from headrace_cli.plugin import with_place_first
from support.command_line import run_headrace
from support.headrace_broker import HeadraceBroker
from support.processes import wait_until

BINARY = Path(sys.executable).parent


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceBroker]:
    # Records of the past stay, however long the tests take.
    settings = {"log.retention.ms": "-1"}
    with HeadraceBroker(tmp_path_factory.mktemp("broker"), settings) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        for each in admin.create_topics([NewTopic("t", 3, 1), NewTopic("u", 1, 1)]).values():
            each.result()
        yield running


@pytest.fixture
def topic(broker: HeadraceBroker) -> Iterator[str]:
    """A topic of three partitions that only this test has."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("own", 3, 1)])["own"].result()
    yield "own"
    admin.delete_topics(["own"])["own"].result()


def headrace(
    broker: HeadraceBroker, *arguments: object, stdin: str = "", status: int = 0, **more: str
) -> subprocess.CompletedProcess[str]:
    environment = {key: text for key, text in os.environ.items() if not key.startswith("HEADRACE")}
    environment |= {"HEADRACE_BOOTSTRAP_SERVER": broker.bootstrap, "NO_COLOR": "1"} | more
    environment = {key: text for key, text in environment.items() if text}
    done = run_headrace(*arguments, stdin=stdin, environment=environment)
    assert done.returncode == status, f"{arguments}: {done.stdout}\n{done.stderr}"
    return done


def consumed(broker: HeadraceBroker, *arguments: object) -> list[dict[str, Any]]:
    lines = headrace(broker, "consume", *arguments, "-o", "json").stdout.splitlines()
    return [json.loads(line) for line in lines]


def test_a_record_goes_where_and_with_what_options_say(broker: HeadraceBroker) -> None:
    options = ("--partition", 2, "--key", "k", "--header", "h=1", "--compression-type", "zstd")
    moment = ("--timestamp", "2026-01-31T10:00:00Z")
    headrace(broker, "produce", "t", *options, *moment, stdin="a\nb\n")
    found = consumed(broker, "t", "--partition", 2)
    assert [each["value"] for each in found] == ["a", "b"]
    assert {each["partition"] for each in found} == {2}
    assert {each["key"] for each in found} == {"k"}
    assert found[0]["headers"] == {"h": "1"}
    assert found[0]["timestamp"] == "2026-01-31T10:00:00.000Z"
    assert not consumed(broker, "t", "--partition", 0)
    refused = headrace(broker, "produce", "t", "--partition", 9, stdin="x\n", status=2)
    assert "has no partition 9" in refused.stderr
    assert headrace(broker, "consume", "t", "-p", 9, status=2)


def test_what_consume_prints_as_json_can_be_produced_again(broker: HeadraceBroker) -> None:
    lines = [
        {"key": "a", "value": "1", "headers": {"x": "2"}, "timestamp": "2026-02-01T00:00:00Z"},
        {"key_base64": "//8=", "value": None},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    headrace(broker, "produce", "u", "--format", "json", stdin=text)
    printed = headrace(broker, "consume", "u", "-o", "json").stdout
    headrace(broker, "produce", "u", "--format", "json", stdin=printed)
    first, second, *again = consumed(broker, "u")
    assert (first["key"], first["value"], first["headers"]) == ("a", "1", {"x": "2"})
    assert (second["key_base64"], second["value"]) == ("//8=", None)
    for each in (first, second, *again):
        del each["offset"]
    assert again == [first, second]


def test_headers_that_are_null_binary_or_repeated_are_kept(
    broker: HeadraceBroker, topic: str
) -> None:
    writer = Producer({"bootstrap.servers": broker.bootstrap})
    headers = [("a", b"1"), ("none", None), ("a", b"\xff"), ("a", None), ("b", b"")]
    writer.produce(topic, b"v", headers=headers, partition=0)
    assert writer.flush(30) == 0
    (found,) = consumed(broker, topic)
    assert found["headers"] == {"a": ["1", {"base64": "/w=="}, None], "none": None, "b": ""}
    line = json.dumps(found) + "\n"
    headrace(broker, "produce", topic, "-p", 0, "--format", "json", stdin=line)
    again = consumed(broker, topic)[-1]
    # kafka-python writes no null.
    assert again["headers"] == {"a": ["1", {"base64": "/w=="}, ""], "none": "", "b": ""}


def test_a_group_commits_all_its_positions(broker: HeadraceBroker, topic: str) -> None:
    """Of partitions without records, and behind what a transaction aborted."""
    headrace(broker, "produce", topic, "--partition", 1, stdin="x\n")
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "aborts"}
    writer = Producer(settings)
    writer.init_transactions()
    writer.begin_transaction()
    writer.produce(topic, b"aborted", partition=2)
    assert writer.flush(30) == 0
    writer.abort_transaction()
    read = ("consume", topic, "--group", "positions")
    committed = "--isolation-level", "read_committed"
    assert headrace(broker, *read, *committed).stdout == "x\n"
    exported = headrace(broker, "groups", "export", "positions").stdout
    expected = {(topic, 0): 0, (topic, 1): 1, (topic, 2): 2}
    assert parse_offsets(exported) == expected
    headrace(broker, "produce", topic, "--partition", 0, stdin="y\nz\n")
    assert headrace(broker, *read, *committed, "-n", 1).stdout == "y\n"
    exported = headrace(broker, "groups", "export", "positions").stdout
    assert parse_offsets(exported) == expected | {(topic, 0): 1}


def test_a_reader_that_has_enough_ends_the_command_quietly(
    broker: HeadraceBroker, topic: str
) -> None:
    headrace(broker, "produce", topic, stdin="x" * 1000 + "\n" * 5000)
    command = [sys.executable, "-m", "headrace_cli", "consume", topic]
    environment = os.environ | {"HEADRACE_BOOTSTRAP_SERVER": broker.bootstrap}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        assert reading.stdout.readline()
        reading.stdout.close()
        assert reading.stderr.read() == b""
    assert reading.returncode == 0


def test_a_topic_that_nobody_makes_is_not_waited_for(tmp_path: Path) -> None:
    with HeadraceBroker(tmp_path, {"auto.create.topics.enable": "false"}) as broker:
        refused = headrace(broker, "produce", "missing", stdin="x\n", status=1)
    assert refused.stderr.startswith("error: topic missing does not exist")


def test_a_topic_that_brokers_make_is_written_to(broker: HeadraceBroker) -> None:
    headrace(broker, "produce", "made", stdin="x\n")
    assert [each["value"] for each in consumed(broker, "made")] == ["x"]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["made"])["made"].result()
    refused = headrace(broker, "produce", "no/topic", stdin="x\n", status=1)
    assert "no/topic" in refused.stderr


def test_a_bad_line_names_itself_and_what_came_before_is_written(broker: HeadraceBroker) -> None:
    good = [json.dumps({"key": "before a bad line", "value": str(n)}) for n in range(50)]
    for bad in ("[1]", "{", '{"valeu": 1}'):
        text = "\n".join([*good, bad, json.dumps({"value": "after"}), ""])
        refused = headrace(broker, "produce", "u", "--format", "json", stdin=text, status=2)
        assert "line 51: " in refused.stderr
        assert "50 lines before it were written" in refused.stderr
        assert "Traceback" not in refused.stderr
    found = consumed(broker, "u")
    assert sum(each.get("key") == "before a bad line" for each in found) == 150
    assert not any(each.get("value") == "after" for each in found)


def test_a_file_that_is_not_there_is_named(broker: HeadraceBroker, tmp_path: Path) -> None:
    refused = headrace(broker, "groups", "import", "g", tmp_path / "offsets.yaml", status=2)
    assert "offsets.yaml" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_it_is_read_up_to_an_end_by_offset_key_and_as_columns(broker: HeadraceBroker) -> None:
    lines = "".join(f"k{number % 2}:{number}\n" for number in range(10))
    headrace(broker, "produce", "t", "-K", ":", "--partition", 1, stdin=lines)
    found = consumed(broker, "t", "-p", 1, "--from", 2, "--to", 7)
    assert [each["value"] for each in found] == ["2", "3", "4", "5", "6"]
    found = consumed(broker, "t", "-p", 1, "--key", "k1", "-n", 3)
    assert [each["value"] for each in found] == ["1", "3", "5"]
    line = headrace(broker, "consume", "t", "-p", 1, "-o", "full", "-n", 1).stdout
    partition, offset, moment, key, value = line.rstrip("\n").split("\t")
    assert (partition, offset, key, value) == ("1", "0", "k0", "0")
    assert moment.endswith("Z")
    assert headrace(broker, "consume", "t", "--to", "5", "--follow", status=2)


def test_offsets_are_exported_moved_imported_and_deleted(broker: HeadraceBroker) -> None:
    for topic in ("t", "u"):
        headrace(broker, "produce", topic, stdin="x\n")
        headrace(broker, "consume", topic, "--group", "g")
    exported = headrace(broker, "groups", "export", "g").stdout
    before = parse_offsets(exported)
    assert {topic for topic, _ in before} == {"t", "u"}
    assert sum(before.values()) > 0

    reset = ("groups", "reset", "g", "--all-topics", "--to", "earliest")
    headrace(broker, *reset)
    assert parse_offsets(headrace(broker, "groups", "export", "g").stdout) == before
    headrace(broker, *reset, "--execute")
    moved = json.loads(headrace(broker, "groups", "export", "g", "-o", "json").stdout)
    assert {each["offset"] for each in moved["offsets"]} == {0}

    load = ("groups", "import", "g", "-")
    assert "dry run" in headrace(broker, *load, stdin=exported).stderr
    headrace(broker, *load, "--execute", stdin=exported)
    after = parse_offsets(headrace(broker, "groups", "export", "g").stdout)
    assert {key: after[key] for key in before} == before
    headrace(broker, "groups", "import", "copy", "-", "--execute", stdin=exported)
    assert parse_offsets(headrace(broker, "groups", "export", "copy").stdout) == before

    forget = ("groups", "delete-offsets", "g", "--topic", "u")
    assert "dry run" in headrace(broker, *forget).stderr
    headrace(broker, *forget, "--execute")
    left = parse_offsets(headrace(broker, "groups", "export", "g").stdout)
    assert {topic for topic, _ in left} == {"t"}

    assert "dry run" in headrace(broker, "groups", "delete", "g", "copy").stderr
    headrace(broker, "groups", "delete", "g", "copy", "--execute")
    assert "does not exist" in headrace(broker, "groups", "export", "g", status=1).stderr


def test_whatever_is_shown_can_be_had_as_json(broker: HeadraceBroker) -> None:
    def ask(*arguments: str) -> Any:
        return json.loads(headrace(broker, *arguments, "-o", "json").stdout)

    topic = ask("describe", "topic", "t")
    assert topic["name"] == "t"
    assert [each["partition"] for each in topic["partitions"]] == [0, 1, 2]
    assert topic["partitions"][0]["inSync"] == 1
    headrace(broker, "consume", "t", "--group", "shown")
    rows = ask("describe", "group", "shown")["partitions"]
    assert {(each["topic"], each["lag"]) for each in rows} == {("t", 0)}
    assert [each["name"] for each in ask("describe", "cluster")["topics"]] == ["t", "u"]
    assert ask("cluster", "voters", "list")["replicas"][0]["role"] == "leader"
    assert ask("cluster", "plan", "--http", broker.http_address)["moves"] == []
    status = ("cluster", "rebalance", "--status", "--http", broker.http_address)
    assert ask(*status)["plan"] is None
    assert "headrace" in ask("version")
    yaml_text = headrace(broker, "describe", "topic", "t", "-o", "yaml").stdout
    assert yaml.safe_load(yaml_text) == topic


def test_a_watch_prints_what_changes(broker: HeadraceBroker, tmp_path: Path) -> None:
    file = tmp_path / "watched"
    command = [sys.executable, "-m", "headrace_cli", "get", "topics", "-w"]
    environment = os.environ | {"HEADRACE_BOOTSTRAP_SERVER": broker.bootstrap}
    with file.open("w") as output:
        watching = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        wait_until(lambda: file.read_text().count("\n") == 3, 30, "the first table")
        headrace(broker, "produce", "u", stdin="new\n")
        wait_until(lambda: file.read_text().count("\n") == 4, 30, "the topic that changed")
    finally:
        watching.terminate()
        watching.wait()
    head, *rows = file.read_text().splitlines()
    assert head.startswith("NAME")
    assert [row.split()[0] for row in rows] == ["t", "u", "u"]


def test_a_profile_names_brokers(broker: HeadraceBroker, tmp_path: Path) -> None:
    (file := tmp_path / "profiles.yaml").write_text(
        yaml.safe_dump({"profiles": {"edge": {"bootstrapServers": broker.bootstrap}, "none": {}}})
    )
    where = {"HEADRACE_PROFILES": str(file), "HEADRACE_BOOTSTRAP_SERVER": ""}
    names = headrace(broker, "--profile", "edge", "get", "topics", "-o", "name", **where)
    assert names.stdout.split() == ["topic/t", "topic/u"]
    again = headrace(broker, "get", "topic", "t", "-o", "name", HEADRACE_PROFILE="edge", **where)
    assert again.stdout == "topic/t\n"
    unknown = headrace(broker, "--profile", "lab", "get", "topics", status=2, **where)
    assert "has no profile lab, but edge, none" in unknown.stderr
    empty = headrace(broker, "--profile", "none", "get", "topics", status=2, **where)
    assert "needs either bootstrapServers" in empty.stderr


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ("get topics -n streams", "-n streams get topics"),
        ("get topics --context=work -o json", "--context=work get topics -o json"),
        ("-n streams consume t -n 7", "-n streams consume t -n 7"),
        ("consume t -n 7 --namespace streams", "--namespace streams consume t -n 7"),
        ("operator run --namespace a", "operator run --namespace a"),
        ("produce t -- -n x", "produce t -- -n x"),
        ("get topics -nstreams", "-n streams get topics"),
        ("get topics -n=streams -o json", "-n streams get topics -o json"),
        ("-nstreams get topics", "-n streams get topics"),
        ("consume t -n7 -n=8", "consume t -n7 -n=8"),
        ("-n=streams consume t -n 7", "-n=streams consume t -n 7"),
        ("get topics -n", "get topics -n"),
    ],
)
def test_kubectls_users_say_where_in_any_place(given: str, becomes: str) -> None:
    assert with_place_first(given.split()) == becomes.split()


def test_as_a_plugin_it_is_about_the_current_context(tmp_path: Path) -> None:
    environment = {"PATH": f"{BINARY}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    plugin = [str(BINARY / "kubectl-headrace"), "get", "topics", "-n", "streams"]
    done = subprocess.run(plugin, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert "no Kubernetes cluster is named" in done.stderr


def test_a_line_that_is_no_record_says_so() -> None:
    rest = Line(value=None)
    with pytest.raises(BadInputError, match="unknown fields vlaue"):
        parse_line(b'{"vlaue": "x"}', LineFormat.JSON, None, rest)
    with pytest.raises(BadInputError, match="not a record"):
        parse_line(b"plain", LineFormat.JSON, None, rest)
    assert parse_line(b'{"value": {"a": 1}}', LineFormat.JSON, None, rest).value == b'{"a": 1}'


@pytest.mark.parametrize("text", ["", "offsets: []", "offsets: [{topic: t, partition: 0}]"])
def test_offsets_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(BadInputError, match="not what `groups export` prints"):
        parse_offsets(text)


def test_a_timestamp_beyond_the_calendar_is_shown_as_a_number() -> None:
    record = SimpleNamespace(
        topic="t", partition=0, offset=7, timestamp=10**15, key=None, value=b"v", headers=[]
    )
    assert json.loads(record_json(record))["timestamp"] == str(10**15)
    assert record_text(record).split("\t")[2] == str(10**15)
