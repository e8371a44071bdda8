import shutil
from pathlib import Path

import pytest

from headrace_operator.resources import (
    Cluster,
    ConsumerGroup,
    Deployment,
    ManifestError,
    OpaqueObject,
    SparkApplication,
    Topic,
    load_manifests,
    parse_resource,
    to_document,
)

CPU_LOAD = Path(__file__).parents[2] / "manifests" / "examples" / "cpu-load"


def test_a_kustomization_is_read_in_the_order_that_it_lists():
    resources = load_manifests(CPU_LOAD)
    kinds = [type(resource) for resource in resources]
    assert kinds[:6] == [Cluster, Topic, Topic, Topic, ConsumerGroup, Deployment]
    assert kinds[6:] == [OpaqueObject, SparkApplication]


def test_a_folder_without_a_kustomization_is_read_by_file_name(tmp_path):
    shutil.copy(CPU_LOAD / "topics.yaml", tmp_path / "b.yaml")
    shutil.copy(CPU_LOAD / "cluster.yaml", tmp_path / "a.yml")
    (tmp_path / "notes.txt").write_text("not a manifest")
    kinds = [resource.kind for resource in load_manifests(tmp_path)]
    assert kinds == ["Cluster", "Topic", "Topic", "Topic"]


def test_what_is_not_typed_is_kept_in_the_document():
    application = load_manifests(CPU_LOAD / "spark-application.yaml")[0]
    assert isinstance(application, SparkApplication)
    assert application.spec.driver.memory == "512m"
    assert application.document["spec"]["imagePullPolicy"] == "IfNotPresent"


def test_kinds_of_others_are_kept_whole(tmp_path):
    file = tmp_path / "map.yaml"
    file.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {b: c}\n")
    (resource,) = load_manifests(file)
    assert isinstance(resource, OpaqueObject)
    assert resource.document["data"] == {"b": "c"}


def test_a_resource_is_written_as_it_was_read():
    for resource in load_manifests(CPU_LOAD)[:4]:
        assert parse_resource(to_document(resource)).spec == resource.spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\n", "x.yaml:2: not YAML"),
        ("- a\n", "x.yaml:1: a manifest is a mapping"),
        ("kind: Topic\nkind: Topic\n", "x.yaml:2: kind: the key stands here twice"),
        ("kind: Topic\nmetadata: {}\n", "x.yaml:1: a resource needs apiVersion"),
        (
            (
                "apiVersion: headrace.dev/v1beta1\nkind: Topic\nmetadata: {name: t}\nspec:\n"
                "  clusterRef: {name: c}\n  partitions: many\n"
            ),
            "x.yaml:6: Topic/t: Expected `int`",
        ),
    ],
)
def test_mistakes_are_reported_with_file_and_line(tmp_path, text, message):
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(ManifestError) as caught:
        load_manifests(file)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resources: [nothing.yaml]\n", "kustomization.yaml:1: resources: nothing.yaml does not"),
        ("resources: [.]\n", "includes itself"),
        ("resources: []\npatches: []\n", "kustomization.yaml:2: patches: only resources"),
    ],
)
def test_a_kustomization_that_cannot_be_followed_says_so(tmp_path, text, message):
    (tmp_path / "kustomization.yaml").write_text(text)
    with pytest.raises(ManifestError) as caught:
        load_manifests(tmp_path)
    assert message in str(caught.value)


def test_a_kustomization_gives_its_namespace(tmp_path):
    shutil.copy(CPU_LOAD / "cluster.yaml", tmp_path)
    (tmp_path / "kustomization.yaml").write_text("namespace: data\nresources: [cluster.yaml]\n")
    assert load_manifests(tmp_path)[0].key == ("Cluster", "data", "cpu")
