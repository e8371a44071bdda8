"""What we write and accept is what the Kubeflow operator's published API has.

Its own models (kubeflow-spark-api, generated from its OpenAPI document) are the judge.
"""

import ast
import datetime as dt
import functools
from pathlib import Path
from typing import Any, get_args

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
from headrace_operator.render.spark import render_access, render_submission
from headrace_operator.render.spark_fields import ignored_fields
from headrace_operator.render.spark_submission import FINGERPRINT_ANNOTATION, refusal_of
from support.spark_world import World, application, submission

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


#: What the published API has besides, and an Event names.
NOT_ACTED_ON = {
    *("batchScheduler", "batchSchedulerOptions", "driver.memoryLimit", "driver.podName"),
    *("driver.secrets.secretType", "driverIngressOptions", "executor.memoryLimit"),
    *("executor.secrets.secretType", "monitoring.exposeExecutorMetrics"),
    *("monitoring.metricsProperties", "monitoring.metricsPropertiesFile"),
    *("monitoring.prometheus.configFile", "monitoring.prometheus.configuration"),
    *("monitoring.prometheus.jmxExporterJar", "monitoring.prometheus.portName"),
    *("sparkUIOptions.ingressAnnotations", "sparkUIOptions.ingressTLS"),
}
REFUSED = {"proxyUser"}
#: They are in no pod: what is decided follows from them (test_spark_states.py).
DECISIVE = {
    *("failureRetries", "restartPolicy", "retryInterval", "suspend", "timeToLiveSeconds"),
    # They say what the image and the runner already are.
    *("mode", "pythonVersion", "sparkVersion"),
    # On, or named.
    "dynamicAllocation.shuffleTrackingEnabled",
}


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the Kubeflow operator's own models that a field's type has."""
    found = [model for each in get_args(annotation) for model in models_in(each)]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        found += [annotation] if annotation.__name__.startswith("Spark") else []
    return found


def published_paths(model: type[BaseModel], prefix: str = "") -> list[tuple[str, Any]]:
    """Return each field that has no fields of theirs, by its path, with its type."""
    found = []
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        # Names of variables are the users' own.
        inner = models_in(field.annotation) if "envSecretKeyRefs" not in path else []
        found += published_paths(inner[0], f"{path}.") if inner else [(path, field.annotation)]
    return found


PATHS = published_paths(models.SparkV1beta2SparkApplicationSpec)
LISTS = ("configMaps", "secrets")


def spec_with(path: str, value: Any) -> dict[str, Any]:
    """Return a spec in which one field has a value."""
    *outer, name = path.split(".")
    spec: dict[str, Any] = {}
    place = spec
    for each in outer:
        inner: dict[str, Any] = {}
        place[each] = [inner] if each in LISTS else inner
        place = inner
    place[name] = value
    return spec


def test_every_published_field_is_honoured_or_named_as_ignored_in_an_event() -> None:
    assert len(PATHS) > 150
    named = {
        path: [each.removeprefix("spec.") for each in ignored_fields({"spec": spec})]
        for path, _ in PATHS
        for spec in [spec_with(path, "value")]
    }
    for path, ignored in named.items():
        # An object of which nothing is honoured is named as a whole.
        wanted = [each for each in NOT_ACTED_ON if f"{path}.".startswith(f"{each}.")]
        assert ignored == (wanted or (["proxyUser"] if path in REFUSED else [])), path
    assert all(refusal_of({"spec": spec_with(path, "value")}) for path in REFUSED)


@pytest.mark.parametrize(
    "path",
    ["restartpolicy", "driver.core", "driver.template.metadta", "executor.kubernetesMaster"],
)
def test_a_field_that_nobody_has_published_is_named(path: str) -> None:
    assert ignored_fields({"spec": spec_with(path, "value")}) == [f"spec.{path}"]
    assert not ignored_fields({"spec": spec_with(path, None)})


#: Values that mean something, where any of the type do not.
VALUES: dict[str, Any] = {
    "deps.jars": ["local:///a.jar"],
    "driver.template": {"spec": {"priority": 7}},
    "executor.template": {"metadata": {"labels": {"a": "b"}}},
    "executor.deleteOnTermination": False,
    "envSecretKeyRefs": {"A": {"name": "n", "key": "k"}},
    "type": "R",
    "volumes": [{"name": "a", "emptyDir": {}}],
}


def value_for(path: str, annotation: Any) -> Any:
    for name, value in VALUES.items():
        if path == name or path.endswith(f".{name}"):
            return value
    text = str(annotation)
    if any(each in text for each in ("Dict[", "Security", "Affinity", "Lifecycle", "DNSConfig")):
        return {"a": "7"}
    if "List[" in text:
        return [{"name": "a7"}] if "Annotated" not in text else ["a7"]
    return True if "bool" in text else 7 if "int" in text else "7"


def laid(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = {key: laid(base[key], over[key]) for key in base.keys() & over if over[key] is not None
            and isinstance(base[key], dict) and isinstance(over[key], dict)}  # fmt: skip
    return base | over | both


@pytest.mark.parametrize(
    ("path", "annotation"),
    [
        each
        for each in PATHS
        if not any(f"{each[0]}.".startswith(f"{one}.") for one in NOT_ACTED_ON | REFUSED | DECISIVE)
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_is_said_to_be_honoured_changes_what_is_made(path: str, annotation: Any) -> None:
    mount = {"volumeMounts": [{"name": "a", "mountPath": "/a"}]}
    base = application(mainApplicationFile="local:///a.jar", type="Scala")["spec"]
    base |= {"dynamicAllocation": {"enabled": path != "dynamicAllocation.enabled"}}
    if path == "volumes":
        base = laid(base, {"driver": mount})
    if any(f".{each}." in path for each in LISTS):
        # One of a list needs all of its fields.
        role, field, name = path.split(".")
        one, other = ({"name": "n", "path": "/p", name: each} for each in ("7", "8"))
        without, with_it = (laid(base, {role: {field: [each]}}) for each in (one, other))
    elif ".gpu." in path:
        role, _, name = path.split(".")
        without, with_it = (
            laid(base, {role: {"gpu": {"name": "g", "quantity": 1, name: each}}}) for each in (2, 3)
        )
    else:
        without, with_it = base, laid(base, spec_with(path, value_for(path, annotation)))
    made = [
        (render_submission(submission(manifest)), render_access(submission(manifest)))
        for spec in (without, with_it)
        for manifest in [application(**spec)]
    ]
    for objects, _ in made:
        # Its fingerprint changes with every field.
        objects[-1]["metadata"]["annotations"].pop(FINGERPRINT_ANNOTATION)
    assert made[0] != made[1]
