from pathlib import Path
from uuid import UUID

import pytest

from headrace_broker.raft.types import Endpoint
from headrace_broker.server.config.broker_config import ConfigError, parse_config, read_config
from headrace_broker.server.quorum.metadata_quorum import Identity, raft_config

GOOD = """
# a comment
node.id=3
process.roles=broker,controller
listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093
advertised.listeners=PLAINTEXT://broker-3.example:19092
controller.listener.names=CONTROLLER
controller.quorum.voters=3@127.0.0.1:9093
log.dirs=/tmp/data
num.partitions=4
auto.create.topics.enable=false
log.retention.ms=1000
headrace.http.listener=127.0.0.1:9094
"""


def problems_of(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="b.properties")
    return "\n".join(caught.value.problems)


def test_kafkas_own_names_are_read_with_their_types() -> None:
    config = parse_config(GOOD)
    assert config.node_id == 3
    assert config.values["num.partitions"] == 4
    assert config.values["auto.create.topics.enable"] is False
    assert config.http_listener == ("127.0.0.1", 9094)
    assert [(item.host, item.port) for item in config.advertised_listeners] == [
        ("broker-3.example", 19092)
    ]
    assert config.values["log.retention.ms"] == 1000


def test_without_advertised_listeners_the_client_listeners_are_advertised() -> None:
    config = parse_config("node.id=1\nlisteners=PLAINTEXT://:9092\nlog.dirs=/d")
    assert [(item.name, item.host) for item in config.advertised_listeners] == [
        ("PLAINTEXT", "localhost")
    ]


def test_an_unknown_setting_is_an_error_that_names_its_nearest_relative() -> None:
    found = problems_of(GOOD + "num.partition=4\n")
    assert "num.partition is not a setting" in found
    assert "did you mean num.partitions?" in found


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("num.io=x", "num.io is not a setting"),
        ("fetch.max.bytes=many", "Not a number of type INT"),
        ("socket.listen.backlog.size=0", "Value must be at least 1"),
        ("delete.topic.enable=yes", "either true or false"),
        ("log.dir", "is not name=value"),
        ("node.id=4", "node.id is set twice"),
        ("log.segment.bytes=-4", "log.segment.bytes=-4"),
    ],
)
def test_a_bad_line_is_named_with_what_is_allowed(line: str, reason: str) -> None:
    assert reason in problems_of(GOOD + line + "\n")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("PLAINTEXT://127.0.0.1:9092", "127.0.0.1:9092", "write NAME://host:port"),
        ("PLAINTEXT://127.0.0.1:9092", "PLAINTEXT://127.0.0.1:99999", "write NAME://host:port"),
        ("PLAINTEXT://127.0.0.1:9092", "SSL://127.0.0.1:9092", "SSL is not served yet"),
        ("PLAINTEXT://broker-3", "OTHER://broker-3", "which listeners does not bind"),
        (
            "PLAINTEXT://broker-3.example:19092",
            "PLAINTEXT://0.0.0.0:1",
            "clients cannot reach 0.0.0.0",
        ),
        ("3@127.0.0.1:9093", "3", "'3' is not id@host:port"),
        ("3@127.0.0.1:9093", "4@a:1,5@b:1", "does not name this controller (3)"),
        ("3@127.0.0.1:9093", "3@a:1,3@b:1", "names 3 twice"),
        ("3@127.0.0.1:9093", "3@a:1,4@b:1", "cluster.id is required with more than one node"),
        ("=broker,controller", "=broker", "cluster.id is required"),
        ("log.dirs=/tmp/data", "", "log.dirs is required"),
        ("node.id=3", "", "node.id is required"),
        ("headrace.http.listener=127.0.0.1:9094", "headrace.http.listener=9094", "write host:port"),
        (":9094", ":99999", "headrace.http.listener=127.0.0.1:99999: write host:port"),
        (
            "listener=127.0.0.1:9094",
            "listener=127.0.0.1:9093",
            "listeners: CONTROLLER and headrace.http.listener both listen on port 9093",
        ),
        (
            "PLAINTEXT://127.0.0.1:9092,",
            "PLAINTEXT://0.0.0.0:9093,",
            "listeners: PLAINTEXT and listeners: CONTROLLER both listen on port 9093",
        ),
    ],
)
def test_listeners_and_quorum_are_checked(old: str, new: str, reason: str) -> None:
    assert reason in problems_of(GOOD.replace(old, new))


def test_listeners_may_share_a_port_on_different_addresses_or_leave_it_to_the_system() -> None:
    for old, new in (("127.0.0.1:9094", "127.0.0.2:9093"), (":9092,", ":0,")):
        assert parse_config(GOOD.replace(old, new), source="b.properties").listeners


def test_every_problem_of_a_file_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "b.properties"
    path.write_text("num.partitions=x\nwrong=1\n")
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert len(caught.value.problems) == 3
    assert all(str(path) in problem for problem in caught.value.problems)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "none.properties")


def test_environment_variables_are_put_in_where_the_file_asks_for_it(monkeypatch) -> None:
    monkeypatch.setenv("HOST_IP", "10.0.0.7")
    text = GOOD.replace("broker-3.example:19092", "${env:HOST_IP}:31092")
    config = parse_config(f"{text}config.providers=env\n")
    assert [item.host for item in config.advertised_listeners] == ["10.0.0.7"]
    monkeypatch.delenv("HOST_IP")
    assert "no environment variable HOST_IP" in problems_of(f"{text}config.providers=env\n")


def test_a_controller_outside_of_the_voters_says_where_it_is() -> None:
    text = GOOD.replace("controller.quorum.voters=3@", "controller.quorum.bootstrap.servers=")
    text = text.replace("listeners=PLAINTEXT://b", "listeners=CONTROLLER://c3:9090,PLAINTEXT://b")
    config = parse_config(f"{text}cluster.id=c\n")
    assert [item.name for item in config.advertised_listeners] == ["PLAINTEXT"]
    identity = Identity(directory_id=UUID(int=1), cluster_id="c", ports={"CONTROLLER": 9093})
    assert raft_config(config, identity).endpoints == (Endpoint("c3", 9090, "CONTROLLER"),)


def test_what_kafka_knows_and_means_nothing_here_is_taken_and_reported() -> None:
    config = parse_config(GOOD + "num.io.threads=8\nqueued.max.requests=500\n")
    assert "num.io.threads" in config.without_meaning
    assert "num.io.threads" not in config.values


@pytest.mark.parametrize("line", ["authorizer.class.name=a.B", "ssl.keystore.location=/k"])
def test_what_would_make_a_broker_safe_is_not_taken_for_nothing(line: str) -> None:
    assert line.partition("=")[0] in problems_of(GOOD + line)
