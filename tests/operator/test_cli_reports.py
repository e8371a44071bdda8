"""What commands that change something print with `-o json`: one document, errors in it as well."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from headrace_cli.app import app
from headrace_cli.errors import CommandError
from headrace_operator.local.desired import DesiredStore
from headrace_operator.local.layout import ClusterLayout
from headrace_operator.resources import parse_resource
from support.control_plane import own_api_server
from support.headrace_broker import HeadraceBroker
from support.kube import kubectl

API = "headrace.dev/v1beta1"


def report(*arguments: object, status: int = 0, stdin: str = "", output: str = "json") -> Any:
    """Run a command, and return its document, which is all of its standard output."""
    done = CliRunner().invoke(app, [*map(str, arguments), "-o", output], input=stdin)
    if isinstance(done.exception, CommandError):
        assert done.exception.exit_status == status, done.exception
    else:
        assert done.exit_code == status, f"{done.output}\n{done.exception!r}"
    found = (json.loads if output == "json" else yaml.safe_load)(done.stdout)
    assert {"dryRun", "results", "errors"} <= found.keys()
    is_failed = isinstance(done.exception, CommandError)
    assert bool(found["errors"]) == is_failed, found
    return found


def document(kind: str, name: str, **spec: object) -> dict[str, object]:
    reference = {} if kind == "Cluster" else {"clusterRef": {"name": "cpu"}}
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": reference | spec}


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The data directory of a cluster that does not run."""
    layout = ClusterLayout(root=tmp_path / "data" / "cpu")
    layout.create()
    documents = [
        document("Cluster", "cpu", pools=[{"name": "a"}]),
        document("Topic", "kept"),
        document("Topic", "gone", deletionPolicy="Delete"),
        document("Topic", "safe", deletionPolicy="Protect"),
    ]
    DesiredStore(layout).put([parse_resource(each) for each in documents])
    return tmp_path / "data"


def test_apply_and_delete_on_this_machine(stopped: Path, tmp_path: Path) -> None:
    place = ("--data-dir", stopped)
    (file := tmp_path / "topics.yaml").write_text(
        yaml.safe_dump_all([document("Topic", "new"), document("Topic", "kept", partitions=2)])
    )
    assert report("apply", file, *place) == {
        "dryRun": False,
        "results": [
            {"kind": "Topic", "name": "new", "result": "created"},
            {"kind": "Topic", "name": "kept", "result": "configured"},
        ],
        "errors": [],
    }
    assert report("delete", "topic", "kept", "gone", *place)["results"] == [
        {
            "kind": "Topic",
            "name": "kept",
            "result": "deleted",
            "message": "the topic and its records stay in the brokers (deletionPolicy: Retain)",
        },
        {"kind": "Topic", "name": "gone", "result": "pending"},
    ]
    assert report("delete", file, *place)["results"] == [
        {"kind": "Topic", "name": "kept", "result": "absent"},
        {
            "kind": "Topic",
            "name": "new",
            "result": "deleted",
            "message": "the topic and its records stay in the brokers (deletionPolicy: Retain)",
        },
    ]
    refused = report("delete", "topic", "safe", *place, status=1)
    assert refused["results"] == []
    assert "topic/safe is protected" in refused["errors"][0]
    assert refused["errors"][1] == "nothing was deleted"
    file.write_text("kind: Topic")
    assert report("apply", file, *place, status=2, output="yaml")["errors"]
    assert "is not running" in report("diff", file, *place, status=1)["errors"][0]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceBroker]:
    with HeadraceBroker(tmp_path_factory.mktemp("broker")) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        for each in admin.create_topics([NewTopic("t", 2, 1), NewTopic("u", 1, 1)]).values():
            each.result()
        yield running


@pytest.fixture
def group(broker: HeadraceBroker) -> str:
    """A group that committed offsets, and in which nobody reads."""
    name = f"g-{uuid.uuid4().hex[:8]}"
    client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": name})
    committed = [TopicPartition("t", 0, 0), TopicPartition("t", 1, 0), TopicPartition("u", 0, 0)]
    client.commit(offsets=committed, asynchronous=False)
    client.close()
    return name


def test_offsets_of_groups(broker: HeadraceBroker, group: str) -> None:
    place = ("--bootstrap-server", broker.bootstrap)
    reset = ("groups", "reset", group, "--topic", "t", "--to", "latest", *place)
    assert report(*reset) == {
        "dryRun": True,
        "group": group,
        "results": [
            {"topic": "t", "partition": 0, "current": 0, "new": 0},
            {"topic": "t", "partition": 1, "current": 0, "new": 0},
        ],
        "errors": [],
    }
    assert report(*reset, "--execute")["dryRun"] is False
    offsets = json.dumps({"offsets": [{"topic": "t", "partition": 1, "offset": 0}]})
    moved = report("groups", "import", group, "-", "--execute", *place, stdin=offsets)
    assert moved["results"] == [{"topic": "t", "partition": 1, "current": 0, "new": 0}]
    forget = ("groups", "delete-offsets", group, "--topic", "u", *place)
    row = {"topic": "u", "partition": 0, "offset": 0}
    assert report(*forget)["results"] == [{**row, "result": "planned"}]
    assert report(*forget, "--execute")["results"] == [{**row, "result": "deleted"}]
    assert report("groups", "delete", group, *place)["results"] == [
        {"group": group, "result": "planned"}
    ]
    assert report("groups", "delete", group, "--execute", *place, output="yaml")["results"] == [
        {"group": group, "result": "deleted"}
    ]


def test_what_is_wrong_with_a_command_for_groups(broker: HeadraceBroker, group: str) -> None:
    place = ("--bootstrap-server", broker.bootstrap)
    both = report("groups", "reset", group, "--to", "earliest", *place, status=2)
    assert both["errors"] == ["say either --topic or --all-topics"]
    absent = report("groups", "delete", "absent", *place, status=1)
    assert absent["errors"] == ["group absent does not exist"]
    assert report("groups", "import", group, "-", *place, stdin="x", status=2)["errors"]
    nobody = ("--bootstrap-server", "127.0.0.1:1")
    silent = report("groups", "delete-offsets", group, "--topic", "t", *nobody, status=1)
    assert "no answer from 127.0.0.1:1" in silent["errors"][0]


def test_cordons_and_drains(broker: HeadraceBroker) -> None:
    place = ("--bootstrap-server", broker.bootstrap)
    assert report("cluster", "cordon", 1, *place) == {
        "dryRun": False,
        "results": [{"broker": 1, "result": "cordoned"}],
        "errors": [],
    }
    uncordoned = report("cluster", "uncordon", 1, *place)
    assert uncordoned["results"] == [{"broker": 1, "result": "uncordoned"}]
    drain = ("cluster", "drain", 1, "--http", broker.http_address, *place)
    refused = report(*drain, status=1)
    assert refused["dryRun"] is True
    assert refused["plan"]["hash"]
    assert "broker 1 cannot be drained" in refused["errors"][0]
    unreached = report("cluster", "drain", 1, "--http", "http://127.0.0.1:1", *place, status=1)
    assert "no plan" in unreached["errors"][0]


def test_deleting_what_no_manifest_describes(broker: HeadraceBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("own", 1, 1)])["own"].result()
    place = ("--bootstrap-server", broker.bootstrap)
    unanswered = report("delete", "topic", "own", *place, status=1)
    assert "add --yes" in unanswered["errors"][0]
    deleted = report("delete", "topic", "own", "--yes", *place)
    assert deleted["results"] == [{"kind": "Topic", "name": "own", "result": "deleted"}]


def test_jobs_without_generations_and_without_a_module(tmp_path: Path) -> None:
    (module := tmp_path / "orders_job.py").write_text(
        "from headrace_jobs.declaration import Job, Topic\n"
        "from headrace_jobs.sinks.kafka import KafkaSink\n"
        "JOB = Job(name='orders', sources=(Topic('orders'),), transform=lambda records: records,\n"
        "          sinks=(KafkaSink(topic='out', key_columns=('k',)),))\n"
    )
    for command in (("generations",), ("diff", 1, 2)):
        name, *numbers = command
        refused = report("jobs", name, module, *numbers, status=1)
        assert "no sink of orders has generations side by side" in refused["errors"][0]
        assert report("jobs", name, tmp_path / "none.py", *numbers, status=2)["errors"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_apply_and_diff_in_kubernetes(tmp_path: Path) -> None:
    with own_api_server(tmp_path):
        kubectl("create", "namespace", "streams")
        (file := tmp_path / "topics.yaml").write_text(
            yaml.safe_dump_all([document("Topic", "good"), document("Topic", "bad", partitions=0)])
        )
        place = ("-n", "streams")
        row = {"kind": "Topic", "namespace": "streams"}
        first = report(*place, "diff", file, status=2)
        assert first["dryRun"] is True
        good, bad = first["results"]
        assert good["message"].startswith("--- /dev/null\n+++ applied/streams/Topic/good")
        del good["message"]
        assert good == {**row, "name": "good", "result": "created"}
        assert bad["result"] == "refused"
        assert "partitions" in bad["message"]
        applied = report(*place, "apply", file, status=1)
        good, bad = applied["results"]
        assert good == {**row, "name": "good", "result": "created"}
        assert bad["result"] == "refused"
        assert applied["errors"][0].startswith("topic/bad: ")
        file.write_text(yaml.safe_dump(document("Topic", "good")))
        assert report(*place, "apply", file)["results"][0]["result"] == "unchanged"
        # The namespace may come after the command, too, without a context.
        same = report("diff", file, *place)
        assert same == {"dryRun": True, "results": [], "errors": []}
        file.write_text(yaml.safe_dump(document("Topic", "good", partitions=2)))
        assert report("diff", file, *place, status=1)["results"][0]["result"] == "configured"


SINK = """
from headrace_jobs.declaration import Job, Topic
from headrace_jobs.progress.offsets import TopicPartition
from headrace_jobs.sinks.generations import Difference, OutputGeneration
from headrace_jobs.sinks.kafka import KafkaSink

class Table:
    def all(self):
        return [
            OutputGeneration(generation=number, output=f"rows_g{number}", is_live=number == 1,
                batch_id=7, offsets={TopicPartition("in", 0): 10}, delivery="exactly-once")
            for number in (1, 2)
        ]
    def diff(self, old, new, *, examples_max):
        rows = (('{"k": 1}', None),) if old != new else ()
        return Difference(only_old=len(rows), only_new=0, changed=0, same=3, examples=rows,
            columns_new=("total",) if rows else ())
    def swap(self, generation): pass
    def discard(self, generation): pass

class Sink(KafkaSink):
    def describe(self): return "table rows"
    def output_generations(self, job): return Table()

JOB = Job(name="orders", sources=(Topic("orders"),), transform=lambda records: records,
          sinks=(Sink(topic="out", key_columns=("k",)),))
"""


def test_generations_of_a_job_with_a_sink_of_its_own(tmp_path: Path) -> None:
    (module := tmp_path / "own_sink_job.py").write_text(SINK)
    listed = report("jobs", "generations", module)
    assert [each["isLive"] for each in listed["results"]] == [True, False]
    assert listed["results"][1] == {
        "sink": "table rows",
        "generation": 2,
        "isLive": False,
        "output": "rows_g2",
        "delivery": "exactly-once",
        "batch": 7,
        "offsets": {"in": {"0": 10}},
    }
    row = {"sink": "table rows", "same": 3, "changed": 0, "onlyNew": 0}
    differing = report("jobs", "diff", module, 1, 2, status=1)
    examples = [{"old": '{"k": 1}', "new": None}]
    columns = {"columnsOnlyOld": [], "columnsOnlyNew": ["total"]}
    assert differing["results"] == [{**row, **columns, "onlyOld": 1, "examples": examples}]
    equal = report("jobs", "diff", module, 1, 1, output="yaml")
    columns = {"columnsOnlyOld": [], "columnsOnlyNew": []}
    assert equal["results"] == [{**row, **columns, "onlyOld": 0, "examples": []}]
    for command, result, more in (("swap", "swapped", ()), ("discard", "discarded", ("--yes",))):
        done = report("jobs", command, module, 2, *more)
        assert done["results"] == [{"sink": "table rows", "generation": 2, "result": result}]
