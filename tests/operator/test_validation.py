import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from headrace_operator.validation import validate_manifests, validate_object
from headrace_operator.validation.defaults import with_defaults
from headrace_operator.validation.problems import path_text
from headrace_operator.validation.rules import compile_rule
from headrace_operator.validation.schemas import resource_schemas
from headrace_operator.validation.settings import check_broker_settings, check_topic_settings

FIXTURES = Path(__file__).parent / "fixtures"
EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
CASES = yaml.safe_load((FIXTURES / "cases.yaml").read_text())
VERDICTS = json.loads((FIXTURES / "verdicts.json").read_text())


def manifest(kind, spec, name="x"):
    document = {
        "apiVersion": "headrace.dev/v1beta1",
        "kind": kind,
        "metadata": {"name": name},
    }
    return document if spec is None else {**document, "spec": spec}


def plain(path):
    return re.sub(r"\[([^\]]*\.[^\]]*)\]", r".\1", path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"].replace(" ", "-"))
def test_verdicts_are_those_of_the_api_server(case):
    old = case.get("old")
    value = manifest(case["kind"], case.get("spec"))
    problems = validate_object(value, old and manifest(case["kind"], old))
    # What only Kafka knows is ours alone: the API server cannot have said it.
    config = (case.get("spec") or {}).get("config") or {}
    ours = [*check_topic_settings(config), *check_broker_settings(config)]
    problems = [each for each in problems if each not in ours]
    verdict = VERDICTS[case["name"]]
    assert (not problems) == verdict["accepted"], problems
    if verdict["accepted"]:
        schema = resource_schemas()["headrace.dev/v1beta1", case["kind"]].schema
        assert with_defaults(value, schema)["spec"] == verdict["spec"]
    elif "strict decoding" in verdict["message"]:
        assert f'"{plain(path_text(problems[0].path))}"' in verdict["message"]
    else:
        assert {plain(path_text(each.path)) for each in problems} <= set(verdict["fields"])


def test_every_case_was_shown_to_the_api_server():
    assert {case["name"] for case in CASES} == set(VERDICTS)


def test_the_examples_are_valid():
    for folder in EXAMPLES.iterdir():
        assert validate_manifests(folder).problems == ()


def test_every_rule_of_the_crds_compiles_and_says_something():
    def rules(schema):
        if isinstance(schema, dict):
            yield from schema.get("x-kubernetes-validations", ())
            for value in schema.values():
                yield from rules(value)

    found = [rule for each in resource_schemas().values() for rule in rules(each.schema)]
    assert len(found) > 20
    for rule in found:
        assert compile_rule(rule["rule"], rule["message"], rule.get("fieldPath", ""))


def test_a_problem_names_file_line_path_reason_and_what_to_do(tmp_path):
    file = tmp_path / "topics.yaml"
    file.write_text(
        "apiVersion: headrace.dev/v1beta1\n"
        "kind: Topic\n"
        "metadata:\n"
        "  name: orders\n"
        "spec:\n"
        "  clusterRef: {name: main}\n"
        "  partitons: 4\n"
        "---\n"
        "apiVersion: headrace.dev/v1beta1\n"
        "kind: Topic\n"
        "metadata: {name: payments}\n"
        "spec:\n"
        "  clusterRef: {name: main}\n"
        "  partitions: 0\n"
        "  config:\n"
        "    preallocate: true\n"
    )
    assert list(map(str, validate_manifests(file).problems)) == [
        f"{file}:7: Topic/orders: spec.partitons: unknown field; did you mean partitions?",
        f"{file}:14: Topic/payments: spec.partitions: 0 is too small; at least 1",
        (
            f"{file}:16: Topic/payments: spec.config.preallocate: true is not an integer or a"
            ' string; quote it: "true"'
        ),
    ]


def test_an_unknown_topic_setting_is_reported_with_the_nearest_name():
    spec = {"clusterRef": {"name": "c"}, "config": {"retention.msec": 1, "segment.bytes": "1GB"}}
    reasons = [problem.reason for problem in validate_object(manifest("Topic", spec))]
    assert reasons == [
        "unknown topic setting; did you mean retention.ms?",
        "'1GB' is not an integer; Kafka's settings have no units",
    ]


def test_an_unknown_broker_setting_is_reported_before_a_broker_does_not_start():
    spec = {"pools": [{"name": "a"}], "config": {"log.retention.ms": "1d", "num.partition": 3}}
    assert [problem.reason for problem in validate_object(manifest("Cluster", spec))] == [
        "'1d' is not an integer; Kafka's settings have no units",
        "unknown broker setting; did you mean num.partitions?",
    ]


def test_an_unknown_kind_of_our_group_is_reported_and_other_groups_are_left_alone():
    value = manifest("Topics", {})
    assert "did you mean Topic?" in validate_object(value)[0].reason
    assert validate_object({**value, "apiVersion": "example.com/v1"}) == []


def test_a_change_is_held_against_what_was_applied_before(tmp_path):
    file = tmp_path / "topic.yaml"
    value = manifest("Topic", {"clusterRef": {"name": "c"}, "partitions": 2}, "t")
    file.write_text(yaml.safe_dump(value))
    old = manifest("Topic", {"clusterRef": {"name": "c"}, "partitions": 3}, "t")
    validated = validate_manifests(file, old={("Topic", "default", "t"): old})
    assert validated.resources == ()
    assert "partitions cannot be removed" in str(validated.problems[0])


def test_the_same_resource_twice_names_both_places(tmp_path):
    for name in ("a.yaml", "b.yaml"):
        shutil.copy(EXAMPLES / "cpu-load" / "cluster.yaml", tmp_path / name)
    (problem,) = validate_manifests(tmp_path).problems
    assert problem.file.name == "b.yaml"
    assert "a.yaml:1" in problem.reason
