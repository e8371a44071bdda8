"""What we write and accept is what the Kubeflow operator's published API has.

Its own models (kubeflow-spark-api, generated from its OpenAPI document) are the judge.
"""

import ast
import datetime as dt
import functools
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeflow_spark_api import models
from kubeflow_spark_api.models import SparkV1beta2SparkApplication as Published
from pydantic import BaseModel, ValidationError

import headrace_operator.render
from headrace_operator.kubernetes.spark.seen import State, timestamp
from headrace_operator.kubernetes.spark.states import decide
from headrace_operator.kubernetes.spark.status import render_status
from headrace_operator.render import spark_pods
from headrace_operator.render.spark_submission import ignored_fields
from support.spark_world import World, application

ROOT = Path(__file__).parents[2]
#: What is in our statuses and not in theirs. Their CRD drops it, and nothing depends on it.
OUR_STATUS_FIELDS = {"executors", "failures", "fingerprint", "observedGeneration"}


def applications() -> list[dict[str, Any]]:
    """Return every SparkApplication of the manifests."""
    documents = [
        document
        for path in sorted((ROOT / "manifests").rglob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]
    return [each for each in documents if each and each.get("kind") == "SparkApplication"]


def dropped(given: Any, kept: Any, path: str = "") -> list[str]:
    """Return the paths of `given` that are not in `kept`, or are there with another value."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [
            found
            for key, value in given.items()
            for found in (
                dropped(value, kept[key], f"{path}.{key}") if key in kept else [f"{path}.{key}"]
            )
        ]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        return [
            found
            for index, (one, other) in enumerate(zip(given, kept, strict=True))
            for found in dropped(one, other, f"{path}[{index}]")
        ]
    if isinstance(kept, dt.datetime):
        kept = timestamp(kept)
    return [] if given == kept else [path]


def unpublished(manifest: dict[str, Any]) -> list[str]:
    """Return fields that the published API does not have; raises for values of a wrong type."""
    published = Published.from_dict(manifest)
    assert published is not None
    return dropped(manifest, published.to_dict())


def test_the_manifests_have_applications():
    assert len(applications()) >= 1


@pytest.mark.parametrize("manifest", applications(), ids=lambda each: str(each["metadata"]["name"]))
def test_our_manifests_are_valid_for_the_kubeflow_operator(manifest):
    assert unpublished(manifest) == []


def test_a_field_that_is_not_published_is_found():
    manifest = application(driver={"cores": 1, "memoryInGigabytes": 4})
    manifest["metadata"].pop("generation")
    assert unpublished(manifest) == [".spec.driver.memoryInGigabytes"]
    with pytest.raises(ValidationError):
        unpublished(application(executor={"instances": "2"}))


def test_our_status_is_theirs_and_four_fields_more():
    world = World(restartPolicy={"type": "Always"}).settle().runs().ends(1)
    world.pass_the_wait()
    world.runs()
    submission = world.status["submissionID"]
    world.executors = [
        {
            "metadata": {
                "name": "e-1",
                "labels": {"sparkoperator.k8s.io/submission-id": submission},
            },
            "status": {"phase": "Running"},
        }
    ]
    world.settle().ends(1)
    assert world.application is not None
    found = {path.split(".")[2] for path in unpublished(world.application) if ".status." in path}
    assert found <= OUR_STATUS_FIELDS
    assert render_status(world.seen(), decide(world.seen()))["executorState"] == {"e-1": "RUNNING"}


#: Every state of theirs that a runner without a submitting process has.
THEIR_STATES = {
    *("", "SUBMITTED", "RUNNING", "COMPLETED", "FAILED", "SUBMISSION_FAILED", "PENDING_RERUN"),
    *("INVALIDATING", "SUCCEEDING", "FAILING", "SUSPENDING", "SUSPENDED", "RESUMING", "UNKNOWN"),
}


def test_our_states_are_named_as_theirs():
    assert {str(state) for state in State} <= THEIR_STATES


def fields_of(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


@functools.cache
def read_fields(module: str, variable: str) -> set[str]:
    """Return the literal names by which a module reads a dict: x.get("name"), x["name"]."""
    tree = ast.parse((Path(headrace_operator.render.__file__).parent / module).read_text())
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, arguments = node.func.value, node.args
            is_read = node.func.attr == "get"
        elif isinstance(node, ast.Subscript):
            owner, arguments, is_read = node.value, [node.slice], True
        else:
            continue
        name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
        if is_read and name == variable and arguments and isinstance(arguments[0], ast.Constant):
            found.add(str(arguments[0].value))
    return found


@pytest.mark.parametrize("module", ["spark_pods.py", "spark_settings.py", "spark_submission.py"])
def test_every_field_that_the_runner_reads_is_published(module):
    # Published since these models were, and refused.
    published = fields_of(models.SparkV1beta2SparkApplicationSpec) | {"kerberos"}
    assert read_fields(module, "spec") <= published
    drivers = fields_of(models.SparkV1beta2DriverSpec)
    executors = fields_of(models.SparkV1beta2ExecutorSpec)
    assert read_fields(module, "driver") <= drivers
    assert read_fields(module, "executor") <= executors
    assert read_fields(module, "role") <= drivers | executors
    assert read_fields(module, "dynamic") <= fields_of(models.SparkV1beta2DynamicAllocation)
    assert read_fields(module, "deps") <= fields_of(models.SparkV1beta2Dependencies)


def test_the_check_sees_what_is_read():
    assert {"coreLimit", "memory"} <= read_fields("spark_pods.py", "driver")
    assert {"maxExecutors"} <= read_fields("spark_settings.py", "dynamic")
    assert set(spark_pods._SAME_FIELDS) <= fields_of(models.SparkV1beta2DriverSpec)


def set_fields(model: type[BaseModel]) -> dict[str, Any]:
    """Return every optional field of a model with a value that is there."""
    return {name: {"any": "value"} for name in fields_of(model)}


HONOURED = {
    *("arguments", "deps", "driver", "dynamicAllocation", "executor", "failureRetries"),
    *("hadoopConf", "hadoopConfigMap", "image", "imagePullPolicy", "imagePullSecrets"),
    *("mainApplicationFile", "mainClass", "memoryOverheadFactor", "monitoring", "nodeSelector"),
    *("restartPolicy", "retryInterval", "sparkConf", "sparkConfigMap", "sparkUIOptions"),
    *("suspend", "timeToLiveSeconds", "type", "volumes"),
}
#: They say what the image and the runner already are.
DESCRIPTIVE = {"mode", "pythonVersion", "sparkVersion"}


def test_every_published_field_is_honoured_or_named_as_ignored_in_an_event():
    published = set_fields(models.SparkV1beta2SparkApplicationSpec)
    ignored = {name.removeprefix("spec.") for name in ignored_fields({"spec": published})}
    assert HONOURED | DESCRIPTIVE | ignored == set(published)
    assert not HONOURED & ignored
