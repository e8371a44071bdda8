"""`headrace delete` and `down --delete-data`: what deletionPolicy says, by real processes."""

from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from headrace_operator.local.desired import DesiredStore
from headrace_operator.local.layout import ClusterLayout
from headrace_operator.resources import parse_resource
from support.command_line import run_headrace
from support.headrace_broker import HeadraceBroker

API = "headrace.dev/v1beta1"


def document(kind: str, name: str, **spec: object) -> dict[str, object]:
    reference = {} if kind == "Cluster" else {"clusterRef": {"name": "cpu"}}
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": reference | spec}


@pytest.fixture
def store(tmp_path: Path) -> DesiredStore:
    """A cluster that does not run, with a topic and a group of each policy."""
    layout = ClusterLayout(root=tmp_path / "cpu")
    layout.create()
    found = DesiredStore(layout)
    documents = [document("Cluster", "cpu", pools=[{"name": "a"}])]
    for policy in ("Retain", "Delete", "Protect"):
        name = policy.lower()
        documents.append(document("Topic", f"{name}-topic", deletionPolicy=policy))
        documents.append(document("ConsumerGroup", f"{name}-group", deletionPolicy=policy))
    found.put([parse_resource(each) for each in documents])
    return found


def delete(tmp_path: Path, *arguments: object, status: int = 0) -> str:
    done = run_headrace("delete", *arguments, "--data-dir", tmp_path)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def names(store: DesiredStore) -> set[str]:
    return {each.metadata.name for each in store.load()}


def test_retain_takes_the_manifest_away_and_says_what_stays(
    store: DesiredStore, tmp_path: Path
) -> None:
    said = delete(tmp_path, "topic", "retain-topic")
    assert "topic/retain-topic deleted; the topic and its records stay" in said
    assert "retain-topic" not in names(store)
    said = delete(tmp_path, "consumergroup/retain-group")
    assert "consumergroup/retain-group deleted; its committed offsets stay" in said


def test_delete_waits_for_the_next_up_where_brokers_do_not_run(
    store: DesiredStore, tmp_path: Path
) -> None:
    said = delete(tmp_path, "topics", "delete-topic")
    assert "topic/delete-topic is deleted at the next `up`, from the brokers too" in said
    (marked,) = [each for each in store.load() if each.metadata.deletion_timestamp]
    assert marked.metadata.name == "delete-topic"
    # Whoever applies it again wants it after all.
    store.put([parse_resource(document("Topic", "delete-topic", deletionPolicy="Delete"))])
    assert not [each for each in store.load() if each.metadata.deletion_timestamp]


def test_protect_refuses_everything_and_says_what_to_do(
    store: DesiredStore, tmp_path: Path
) -> None:
    said = delete(tmp_path, "topic", "retain-topic", "protect-topic", status=1)
    assert "topic/protect-topic is protected (deletionPolicy: Protect)" in said
    assert "apply it with deletionPolicy: Delete or Retain first" in said
    assert {"retain-topic", "protect-topic"} <= names(store)


@pytest.mark.usefixtures("store")
def test_a_file_deletes_what_it_describes(tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    text = f"apiVersion: {API}\nkind: Topic\nmetadata: {{name: NAME}}\n"
    text += "spec: {clusterRef: {name: cpu}}\n"
    file.write_text(
        text.replace("NAME", "retain-topic") + "---\n" + text.replace("NAME", "unknown")
    )
    said = delete(tmp_path, file)
    assert "topic/retain-topic deleted" in said
    assert "topic/unknown is not there" in said


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (("topic",), 2, "NAME is missing"),
        (("nonsense", "x"), 2, "nonsense: no such file or folder, and no kind (topic, group"),
        (("nonsense.yaml",), 2, "nonsense.yaml: no such file or folder"),
        (("cluster", "cpu"), 1, "`headrace down --delete-data` removes it"),
        (("job", "nobody"), 1, "SparkApplication nobody does not exist"),
        (("topic", "nobody"), 1, "cluster cpu is not running"),
    ],
)
@pytest.mark.usefixtures("store")
def test_mistakes_are_reported_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], status: int, expected: str
) -> None:
    done = run_headrace("delete", *arguments, "--data-dir", tmp_path)
    assert done.returncode == status, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("store")
def test_down_keeps_protected_data_unless_asked_twice(tmp_path: Path) -> None:
    refused = run_headrace("down", "--delete-data", "--yes", "--data-dir", tmp_path)
    assert refused.returncode == 1
    assert "topic/protect-topic is protected" in refused.stderr
    assert "--even-protected" in refused.stderr
    assert (tmp_path / "cpu").exists()
    assert run_headrace("down", "--data-dir", tmp_path).returncode == 0
    twice = ("down", "--delete-data", "--even-protected", "--yes", "--data-dir", tmp_path)
    assert run_headrace(*twice).returncode == 0
    assert not (tmp_path / "cpu").exists()


def test_what_no_manifest_describes_is_removed_from_the_brokers_only_with_a_word(
    tmp_path: Path,
) -> None:
    with HeadraceBroker(tmp_path / "broker") as broker:
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        admin.create_topics({"scratch": {"num_partitions": 1, "replication_factor": 1}})
        admin.wait_for_topics(["scratch"])
        command = ("delete", "topic", "scratch", "--bootstrap-server", broker.bootstrap)
        asked = run_headrace(*command)
        assert asked.returncode == 1
        assert "records and offsets would be gone for good: add --yes" in asked.stderr
        assert [topic["name"] for topic in admin.describe_topics()] == ["scratch"]
        done = run_headrace(*command, "--yes")
        assert done.returncode == 0, done.stderr
        assert "topic/scratch deleted" in done.stdout
        assert admin.describe_topics() == []
        again = run_headrace(*command, "--yes")
        assert again.returncode == 1
        assert "Topic scratch does not exist" in again.stderr
        admin.close()
