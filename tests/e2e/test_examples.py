"""Every example under `manifests/examples`, as users start it on this machine.

The same folders run on Kubernetes in `tests/end_to_end_kubernetes`.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from confluent_kafka import ShareConsumer

from support.processes import wait_until
from support.retail import oracle
from support.topics import read_topic
from support.up import Up, command

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
#: Which module here runs an example.
RUN_BY = {
    "cpu-load": "test_up.py",
    "orders": "test_examples.py",
    "retail": "test_examples.py",
    "tasks": "test_examples.py",
}


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The example beside the files of a cluster that is stopped."""
    data = tmp_path_factory.mktemp("examples") / "headrace"
    (data / "former" / "desired").mkdir(parents=True)
    session = Up(EXAMPLES / "orders", data, cluster="main")
    try:
        session.wait_for("+ topic orders", 60)
        yield session
    finally:
        session.kill_if_running()
        down = [*command("down"), "--data-dir", str(data), "--cluster", "main"]
        subprocess.run(down, check=False)


def test_every_example_is_run_by_a_test() -> None:
    here = {each.name for each in EXAMPLES.iterdir() if each.is_dir()}
    assert here == set(RUN_BY)
    for name, module in RUN_BY.items():
        assert name in (Path(__file__).parent / module).read_text()


@pytest.mark.slow
def test_the_consumer_of_orders_reads_what_is_written(orders: Up) -> None:
    orders.run("produce", "orders", "--cluster", "main", stdin="one\ntwo\nthree\n")
    log = orders.data / "main" / "logs" / "orders-app.log"
    wait_until(
        lambda: all(each in log.read_text() for each in ("one", "two", "three")),
        60,
        "the consumer to read the records",
    )
    assert "orders-app" in orders.run("get", "groups", "--cluster", "main")
    assert "no answer" not in log.read_text()


@pytest.mark.slow
def test_the_cluster_that_runs_is_meant_where_another_is_stopped(orders: Up) -> None:
    assert "orders" in orders.run("get", "topics")
    assert "orders-app" in orders.run("describe", "group", "orders-app")
    said = orders.run("down", "--delete-data", "--yes", status=2)
    assert "say which with --cluster" in said
    assert (orders.data / "former").is_dir()


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Up]:
    session = Up(EXAMPLES / "tasks", tmp_path / "headrace", cluster="main")
    try:
        session.wait_for("+ topic tasks", 60)
        yield session
    finally:
        session.kill_if_running()
        down = [*command("down"), "--data-dir", str(session.data), "--cluster", "main"]
        subprocess.run(down, check=False)


def work(bootstrap: str, count: int, seconds: float = 60) -> list[str]:
    """Join the share group `workers` and accept so many tasks, or what there is in the time."""
    worker = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": "workers"})
    worker.subscribe(["tasks"])
    found: list[str] = []
    end = time.monotonic() + seconds
    try:
        while len(found) < count and time.monotonic() < end:
            found += [message.value().decode() for message in worker.poll(0.5)]
        worker.commit_sync(30)
    finally:
        worker.close()
    return sorted(found)


@pytest.mark.slow
def test_the_share_group_of_tasks_begins_where_its_manifest_says(tasks: Up) -> None:
    where = ("--cluster", "main")

    def listed() -> list[str]:
        table = tasks.run("get", "groups", *where)
        return next((line.split() for line in table.splitlines() if "workers" in line), [])

    # The reset has made the group, before any member came.
    tasks.wait_for("~ group workers:", 60)
    tasks.run("produce", "tasks", *where, stdin="one\ntwo\nthree\n")
    wait_until(lambda: listed()[1:5] == ["share", "Empty", "0", "3"], 60, "the tasks")
    document = yaml.safe_load(tasks.run("get", "group", "workers", "-o", "yaml", *where))
    assert document["spec"]["type"] == "Share"
    assert document["status"]["lagRecords"] == 3
    bootstrap = tasks.state()["bootstrap_servers"]
    assert work(bootstrap, 3) == ["one", "three", "two"]
    assert listed()[4] == "0"
    # By hand, too: the ConsumerGroup names no workload that `up` could stop.
    wait_until(lambda: listed()[2] == "Empty", 60, "an empty group")
    reset = ("groups", "reset", "workers", "--topic", "tasks", "--to", "earliest", "--execute")
    tasks.run(*reset, *where)
    assert work(bootstrap, 3) == ["one", "three", "two"]


@pytest.fixture
def retail(tmp_path: Path) -> Iterator[Up]:
    """The example of a shop, which here closes after some sales."""
    folder = tmp_path / "retail"
    shutil.copytree(EXAMPLES / "retail", folder)
    producer = folder / "producer.yaml"
    more = '- --rate\n            - "10"\n            - --sales\n            - "60"'
    text = producer.read_text().replace('- --rate\n            - "10"', more)
    assert "--sales" in text
    producer.write_text(text)
    session = Up(folder, tmp_path / "headrace", cluster="shop")
    try:
        yield session
    finally:
        session.kill_if_running()
        down = [*command("down"), "--data-dir", str(session.data), "--cluster", "shop"]
        subprocess.run(down, check=False)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_shop_of_the_example_has_the_stock_that_the_oracle_says(retail: Up) -> None:
    retail.wait_for("+ topic retail-sales", 120)
    log = retail.data / "shop" / "logs" / "retail-producer.log"
    wait_until(
        lambda: log.exists() and "the day is over" in log.read_text(), 240, "the end of the day"
    )
    names = {"sale": "sales", "shipment": "shipments", "product": "products"}
    values = {kind: retail_values(retail, topic) for kind, topic in names.items()}
    expected = {row[:3] for row in oracle(values)["stock"]}

    def stock() -> set[tuple[str, str, int]]:
        rows = {}
        for row in map(json.loads, retail_values(retail, "stock")):
            rows[row["product"], row["store"]] = row["stock"]
        return {(*shelf, count) for shelf, count in rows.items()}

    wait_until(lambda: stock() == expected, 300, "the stock of the whole day")


def retail_values(up: Up, topic: str) -> list[str]:
    """What is in a topic of the example, by partition and offset."""
    bootstrap = up.state()["bootstrap_servers"]
    return [json.dumps(value) for value in read_topic(bootstrap, f"retail-{topic}")]
