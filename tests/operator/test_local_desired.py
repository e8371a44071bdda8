from pathlib import Path

import pytest
import yaml

from headrace_operator.local.desired import DesiredStore, desired_of
from headrace_operator.local.layout import ClusterLayout, clusters_in
from headrace_operator.resources import ConsumerGroup, Topic, load_manifests, parse_resource

EXAMPLE = Path(__file__).parents[2] / "manifests" / "examples" / "cpu-load"


@pytest.fixture
def store(tmp_path: Path) -> DesiredStore:
    layout = ClusterLayout(root=tmp_path / "cpu")
    layout.create()
    return DesiredStore(layout)


def topic(partitions: int, name: str = "t") -> Topic:
    spec = {"clusterRef": {"name": "cpu"}, "partitions": partitions}
    document = {
        "apiVersion": "headrace.dev/v1beta1",
        "kind": "Topic",
        "metadata": {"name": name},
        "spec": spec,
    }
    return parse_resource(yaml.safe_load(yaml.safe_dump(document)))


def only_topic(store: DesiredStore) -> Topic:
    (found,) = store.load()
    assert isinstance(found, Topic)
    return found


def test_the_example_is_read_back_whole(store: DesiredStore) -> None:
    resources = load_manifests(EXAMPLE)
    store.merge(resources)
    assert {each.key for each in store.load()} == {each.key for each in resources}
    assert store.load()[0].kind == "Cluster"
    desired = desired_of(store.load(), "cpu")
    assert desired.cluster is not None
    topics = {"cpu-load", "cpu-load-windows", "cpu-load-dead-letters"}
    assert {each.topic_name for each in desired.topics} == topics
    assert len(desired.applications) == 2


def test_what_apply_changed_survives_an_up_of_the_same_manifests(store: DesiredStore) -> None:
    store.merge([topic(2)])
    store.put([topic(6)])
    store.merge([topic(2)])
    assert only_topic(store).spec.partitions == 6


def test_a_manifest_that_changed_since_the_last_up_wins(store: DesiredStore) -> None:
    store.merge([topic(2)])
    store.put([topic(6)])
    store.merge([topic(8)])
    assert only_topic(store).spec.partitions == 8


def test_generations_count_changes_of_the_spec_only(store: DesiredStore) -> None:
    for partitions, generation in ((2, 1), (2, 1), (3, 2)):
        store.put([topic(partitions)])
        assert only_topic(store).metadata.generation == generation


def test_what_was_reconciled_is_remembered_without_touching_the_manifests(
    store: DesiredStore,
) -> None:
    store.put([topic(2)])
    revision = store.revision()
    store.record_observed(store.load())
    assert only_topic(store).status.observed_generation == 1
    assert store.revision() == revision


def test_a_reset_that_was_done_is_not_pending_again(store: DesiredStore) -> None:
    from headrace_operator.plan import pending_reset

    document = {
        "apiVersion": "headrace.dev/v1beta1",
        "kind": "ConsumerGroup",
        "metadata": {"name": "g"},
        "spec": {
            "clusterRef": {"name": "cpu"},
            "topics": ["t"],
            "reset": {"requestId": "one", "to": {"position": "Earliest"}},
        },
    }
    store.put([parse_resource(document)])
    (group,) = store.load()
    assert isinstance(group, ConsumerGroup)
    assert pending_reset(group) is not None
    store.record_reset(group.key, "one", {("t", 0): 5})
    (group,) = store.load()
    assert isinstance(group, ConsumerGroup)
    assert pending_reset(group) is None
    assert group.status.last_reset is not None
    assert group.status.last_reset.previous_offsets[0].offset == 5


@pytest.mark.usefixtures("store")
def test_clusters_are_the_folders_that_have_manifests(tmp_path: Path) -> None:
    (tmp_path / "something-else").mkdir()
    assert clusters_in(tmp_path) == ["cpu"]
    assert clusters_in(tmp_path / "nothing") == []


def test_a_manifest_that_goes_while_the_set_is_read_is_left_out(store: DesiredStore) -> None:
    store.put([topic(2), topic(3, name="u")])
    # Listed, and gone when it is opened: a link to nothing behaves so each time.
    listed = next(each for each in store._folder.iterdir() if ".u." in each.name)
    listed.unlink()
    listed.symlink_to("gone")
    assert only_topic(store).metadata.name == "t"
    assert [name for name, _, _ in store.revision()] == ["topic.default.t.yaml"]
    store.mark_deleted([topic(3, name="u").key])
    assert only_topic(store).metadata.deletion_timestamp is None
