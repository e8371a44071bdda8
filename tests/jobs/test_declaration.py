"""A job is declared with types, refused where it cannot hold, and run by the name of its module."""

import ast
import dataclasses
import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace_cli.main import main as headrace_main
from headrace_jobs.declaration import Job, Parameter, Topic, problems
from headrace_jobs.jobs.cpu_load import JOB as CPU_LOAD
from headrace_jobs.jobs.declared import parse_declared
from headrace_jobs.jobs.run import DeclarationError, load_job
from headrace_jobs.jobs.runner import explained
from headrace_jobs.progress.offsets import offsets_of
from headrace_jobs.scaffold import job_files
from headrace_jobs.sinks.files import FileTable
from headrace_jobs.sinks.kafka import KafkaSink
from headrace_jobs.sinks.only import Only
from headrace_jobs.sinks.postgres import PostgresTable
from headrace_operator.validation import validate_manifests
from support.command_line import run_headrace
from support.jobs import JobProcess
from support.processes import wait_until

OUT = KafkaSink(topic="out", key_columns=("key",))


def passed_on(records):
    return records


def declared(**changes):
    job = Job(name="orders", sources=(Topic("orders"),), transform=passed_on, sinks=(OUT,))
    return dataclasses.replace(job, **changes)


def test_what_is_declared_well_has_no_problems():
    assert problems(CPU_LOAD) == []
    assert problems(declared()) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "Orders!"}, "name 'Orders!': lower-case letters"),
        ({"sources": ()}, "reads at least one topic"),
        ({"sources": (Topic("a"), Topic("b"))}, "names are not unique: input, input"),
        ({"sinks": ()}, "computes for nobody"),
        ({"generation": 0}, "generation: 0 is not a number from 1"),
        (
            {"sinks": (FileTable(path="/t"), FileTable(path="/t"))},
            "sinks: delta table /t is there more than once",
        ),
        (
            {"output_mode": "update", "sinks": (FileTable(path="/t"),)},
            "delivery at-least-once cannot hold in delta table /t: files are appended",
        ),
    ],
)
def test_what_cannot_hold_is_refused_with_the_reason(change, reason):
    (problem,) = problems(declared(**change))
    assert reason in problem


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": None}, "name: None is no str"),
        ({"sources": Topic("a")}, "sources: a tuple of Topic, as in sources=(…,)"),
        ({"sources": ("a",)}, "sources: 'a' is no Topic"),
        ({"sinks": OUT}, "sinks: a tuple of sinks, as in sinks=(…,)"),
        ({"sinks": ("out",)}, "sinks: 'out' is no sink"),
        ({"delivery": "exactly_once"}, "delivery: 'exactly_once' is none of at-most-once, at-leas"),
        ({"generation": "2"}, "generation: '2' is no int"),
        ({"output_mode": "complete"}, "output_mode: 'complete' is neither append nor update"),
        ({"transform": "passed_on"}, "transform: 'passed_on' is no function"),
        (
            {"sources": (Topic("a"), Topic("b", name="other"))},
            "transform: too many positional arguments; it gets a frame for each of input, other",
        ),
        (
            {"parameters": (Parameter(name="so-long", help="…"),)},
            "got an unexpected keyword argument 'so_long'; it gets a frame for each of input, and",
        ),
        ({"parameters": ("window",)}, "parameters: 'window' is no Parameter"),
        # Parentheses without a comma make no tuple.
        ({"result_key": "key"}, "result_key: 'key' is one name: a tuple of names, as in ('key',)"),
        (
            {"sinks": (KafkaSink(topic="out", key_columns="key"),)},
            "sinks: key_columns: 'key' is one name: a tuple of names",
        ),
        (
            {"sinks": (Only(rows="true", columns="key", sink=OUT),)},
            "sinks: columns: 'key' is one name: a tuple of names",
        ),
        (
            {"sinks": (Only(rows="true", columns=("a",), sink=PostgresTable(table="t", key="a")),)},
            "sinks: key: 'a' is one name: a tuple of names",
        ),
    ],
)
def test_what_is_declared_with_another_kind_of_value_is_refused_by_its_name(change, reason):
    (problem,) = problems(declared(**change))
    assert reason in problem


def test_each_source_gets_the_offsets_of_its_own_topic():
    both = json.dumps({"sales": {"0": 7}, "shipments": {"0": 9, "1": 3}})
    assert json.loads(offsets_of("shipments", both)) == {"shipments": {"0": 9, "1": 3}}
    assert offsets_of("sales", "earliest") == "earliest"


def run_module(*arguments, cwd=None):
    command = [sys.executable, "-m", "headrace_jobs.jobs.run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=cwd)


def test_a_job_is_refused_before_anything_starts():
    done = run_module(
        "headrace_jobs.jobs.cpu_load",
        *("--input-topic", "a", "--output-topic", "b", "--checkpoint", "/nowhere"),
        *("--bootstrap-servers", "x:1", "--generation", "2", "--shadow"),
    )
    assert done.returncode == 2
    assert "shadow: the output topic cannot be swapped in one step" in done.stderr


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("nobody.has.this", "no module nobody.has.this"),
        ("nothing.py", "no such file"),
        ("json", "module json has no JOB"),
        (".", "no module ."),
    ],
)
def test_a_module_without_a_job_is_an_error_that_says_so(module, message):
    with pytest.raises(DeclarationError, match=message):
        load_job(module)


IMPORT = "from headrace_jobs.declaration import Job\n"
MISTAKEN = {
    "unknown": (
        f"{IMPORT}JOB = Job(name='unknown', source=())\n",
        "unknown.py, line 2: TypeError: Job.__init__() got an unexpected keyword argument 'source'",
    ),
    "unparsed": ("JOB = (\n", "unparsed.py, line 1: SyntaxError: '(' was never closed"),
    "needy": ("import nobody_has_this\n", "needy.py, line 1: ModuleNotFoundError: No module named"),
    "plain": (
        f"{IMPORT}JOB = Job(name='x', sources=(), transform=1, sinks=1)",
        "the JOB of module plain: transform: 1 is no function; sinks: a tuple of sinks",
    ),
}


@pytest.mark.parametrize("name", MISTAKEN)
def test_a_mistake_in_a_module_is_said_with_its_line_and_without_a_stack(name, tmp_path):
    text, reason = MISTAKEN[name]
    (tmp_path / f"{name}.py").write_text(text)
    done = run_module(f"{name}.py", cwd=tmp_path)
    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    # And where only the sinks are asked.
    done = run_headrace("jobs", "generations", f"{name}.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("json.py", "json.py has the name of another module"),
        ("by.hour.py", "by.hour.py: a module has no dot in its name: rename the file"),
    ],
)
def test_a_file_whose_name_no_module_can_have_is_told_to_be_renamed(name, reason, tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / name).write_text(TWO_TOPICS)
    done = run_module(f"jobs/{name}", cwd=tmp_path)
    assert done.returncode == 2
    assert reason in done.stderr


TWO_TOPICS = """
from headrace_jobs.declaration import Job, Topic
from headrace_jobs.sinks.kafka import KafkaSink
from headrace_jobs.sinks.only import Only
JOB = Job(
    name="two", sources=(Topic("a", name="sales"), Topic(name="shipments")),
    transform=lambda sales, shipments: sales.unionByName(shipments),
    sinks=(KafkaSink(topic="out", key_columns=("key",)),),
)
"""


def test_the_topics_of_several_sources_are_distinguished_by_name(tmp_path):
    (tmp_path / "two.py").write_text(TWO_TOPICS)
    common = ("two", "--checkpoint", "/nowhere", "--bootstrap-servers", "127.0.0.1:1")
    wrong = run_module(*common, "--input-topic", "b", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "write sales=TOPIC, shipments=TOPIC" in wrong.stderr
    right = (*common, "--input-topic", "shipments=b", "--startup-timeout", "0s")
    assert "no broker answers" in run_module(*right, cwd=tmp_path).stderr


PARTS = Only(rows="true", columns=("key",), sink=KafkaSink(topic="parts", key_columns=("key",)))
COMMON = ("--checkpoint", "/nowhere", "--bootstrap-servers", "127.0.0.1:1", "--delivery")


def test_a_job_waits_for_all_the_topics_that_it_writes_each_under_its_own_name():
    asked = (*COMMON, "at-least-once")
    _, settings, _ = parse_declared(declared(sinks=(OUT, PARTS)), asked)
    assert settings.topics == {"orders", "out", "parts"}
    # It would be every sink's.
    assert settings.output_topic is None
    _, settings, _ = parse_declared(declared(sinks=(PARTS,)), (*asked, "--output-topic", "other"))
    assert settings.topics == {"orders", "other"}
    assert settings.output_topic == "other"


def test_of_several_topics_each_has_a_name_in_the_declaration():
    nameless = KafkaSink(key_columns=("key",))
    (problem,) = problems(declared(sinks=(nameless, PARTS)))
    assert "the output topic is one of several: name it, KafkaSink(topic=" in problem
    assert problems(declared(sinks=(nameless,))) == []


@pytest.fixture
def new_job(tmp_path, monkeypatch):
    """What `headrace jobs new orders-by-key` writes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["headrace", "jobs", "new", "orders-by-key", "job"])
    with pytest.raises(SystemExit) as ended:
        headrace_main()
    assert ended.value.code in (0, None)
    return tmp_path / "job"


def test_a_new_job_has_a_manifest_that_is_valid_and_is_never_written_over(new_job, capfd):
    assert sorted(path.name for path in new_job.iterdir()) == [
        "manifest.yaml",
        "orders_by_key.py",
        "test_orders_by_key.py",
    ]
    assert validate_manifests(new_job / "manifest.yaml").problems == ()
    with pytest.raises(SystemExit) as ended:
        headrace_main()
    assert ended.value.code == 1
    assert "nothing was written" in capfd.readouterr().err


@pytest.mark.parametrize(
    "name", ["class", "json", "spark", "pytest", "test-orders", "on", "null", "a" * 57, "A", ""]
)
def test_a_name_that_no_job_can_have_is_refused(name, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["headrace", "jobs", "new", name])
    with pytest.raises(SystemExit) as ended:
        headrace_main()
    assert ended.value.code == 2
    assert "is no name for a job" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["records", "rows", "found", "orders"])
def test_the_test_of_a_new_job_calls_it_whatever_its_name_is(name):
    tree = ast.parse(job_files(name)[f"test_{name}.py"])
    for function in (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)):
        nodes = list(ast.walk(function))
        stored = {
            each.id
            for each in nodes
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        }
        called = {
            each.func.id
            for each in nodes
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
        }
        assert not stored & called


@pytest.mark.spark
def test_a_new_job_counts_as_its_own_test_says(new_job, spark, monkeypatch):
    monkeypatch.syspath_prepend(str(new_job))
    transform = load_job("orders_by_key").transform
    rows = [(b"a", datetime(2026, 1, 31, 12, 0, second)) for second in (1, 2, 11)]  # noqa: DTZ001
    records = spark.createDataFrame(rows, "key BINARY, timestamp TIMESTAMP")
    assert sorted((row.name, row.records) for row in transform(records).collect()) == [
        ("a", 1),
        ("a", 2),
    ]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_users_own_module_runs_from_its_manifest_without_a_fork_of_ours(
    new_job, broker, tmp_path
):
    documents = list(yaml.safe_load_all((new_job / "manifest.yaml").read_text()))
    (application,) = (each for each in documents if each["kind"] == "SparkApplication")
    (path,) = (
        each for each in application["spec"]["driver"]["env"] if each["name"] == "PYTHONPATH"
    )
    path["value"] = str(new_job)
    application["spec"]["arguments"] += ["--available-now", "--no-console"]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    # The records are older than a week: the broker's next look at retention would take them.
    kept = {"retention.ms": "-1"}
    names = ("orders-by-key", "orders-by-key-out")
    topics = [NewTopic(name, 1, 1, config=kept) for name in names]
    for future in admin.create_topics(topics).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    noon = int(datetime.fromisoformat("2026-01-31T12:00:00+00:00").timestamp() * 1000)
    for second in (1, 2, 11, 40):
        producer.produce("orders-by-key", b"x", key=b"a", timestamp=noon + second * 1000)
    assert producer.flush(30) == 0
    job = JobProcess(tmp_path, application, broker.bootstrap)
    job.start()
    wait_until(lambda: not job.process.is_running, 400, "the end of what was there")
    job.close()
    settings = {"group.id": "reader", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **settings})
    consumer.subscribe(["orders-by-key-out"])
    found = []
    while len(found) < 2:
        record = consumer.poll(30)
        assert record is not None, job.output
        found.append((record.key(), json.loads(record.value())["records"]))
    consumer.close()
    # Two windows that close in one batch are written by two tasks, in any order.
    assert sorted(found) == [(b"a", 1), (b"a", 2)]


def test_jobs_of_one_package_have_checkpoints_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begun = []
    monkeypatch.setattr(os, "execv", lambda _, command: begun.append(command))
    for module in ("shop.by_hour", "shop.by_day", "shop/by_week.py"):
        arguments = ["headrace", "jobs", "run", module, "--bootstrap-servers", "x:1"]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit):
            headrace_main()
    folders = [Path(command[-1]).parent.name for command in begun]
    assert folders == ["shop.by_hour", "shop.by_day", "by_week"]


@pytest.mark.parametrize("command", ["run", "replay-late"])
def test_what_the_environment_says_of_a_job_is_not_said_otherwise(command, tmp_path, monkeypatch):
    """An argument would come before it: the job began a new checkpoint, and read all again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CHECKPOINT_DIR", "/checkpoints/orders")
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "there:9092")
    begun = []
    monkeypatch.setattr(os, "execv", lambda _, command: begun.append(command[4:]))
    for more in ([], ["--bootstrap-server", "here:9092"], ["--checkpoint", "/mine"]):
        monkeypatch.setattr(sys, "argv", ["headrace", "jobs", command, "orders", *more])
        with pytest.raises(SystemExit):
            headrace_main()
    assert begun == [[], ["--bootstrap-servers", "here:9092"], ["--checkpoint", "/mine"]]


def even(text):
    if int(text) % 2:
        raise ValueError(f"{text} is odd: write an even number")
    return int(text)


@pytest.mark.parametrize(
    ("parameter", "arguments", "said"),
    [
        ({"parse": even}, ("--share", "3"), "argument --share: 3 is odd: write an even number"),
        ({"parse": int}, ("--share", "x"), "argument --share: invalid int value: 'x'"),
        ({"name": "group"}, (), "parameters: there is an argument --group already"),
    ],
)
def test_a_parameter_that_cannot_be_is_said_with_its_own_reason(parameter, arguments, said, capsys):
    def transform(records, share=None, group=None):  # noqa: ARG001 - never called
        return records

    own = Parameter(**{"name": "share", "help": "in %, 50% at most"} | parameter)
    job = declared(transform=transform, parameters=(own,))
    with pytest.raises(SystemExit) as ended:
        parse_declared(job, (*COMMON, "at-least-once", *arguments))
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_help_of_a_parameter_may_have_percents(capsys):
    own = Parameter(name="share", help="in %, of 100% (default: %(default)s)", default="5")
    with pytest.raises(SystemExit) as ended:
        parse_declared(declared(parameters=(own,)), ("--help",))
    assert ended.value.code == 0
    assert "in %, of 100% (default: 5)" in capsys.readouterr().out


def test_an_error_of_a_task_is_told_without_the_stack_of_its_worker():
    stack = (
        "An exception was thrown from the Python worker:\n"
        "Traceback (most recent call last):\n"
        '  File "postgres_rows.py", line 177, in run\n'
        "    raise ex.with_traceback(None)\n"
        'psycopg.errors.NumericValueOutOfRange: value "7" is out of range\n'
        'CONTEXT:  COPY t, line 1, column v: "7"\n'
    )
    told = 'psycopg.errors.NumericValueOutOfRange: value "7" is out of range CONTEXT:  COPY t, li'
    assert explained(RuntimeError(stack)).startswith(told)
    assert explained(KeyError()) == "KeyError"


def test_jobs_run_becomes_the_job_and_shows_its_arguments():
    command = [Path(sys.executable).parent / "headrace", "jobs", "run"]
    command += ["headrace_jobs.jobs.cpu_load", "--", "--help"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env=dict(os.environ)
    )
    assert "--watermark" in done.stdout
    assert "--delivery" in done.stdout
