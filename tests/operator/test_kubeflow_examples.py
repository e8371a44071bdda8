"""The Kubeflow operator's own published examples, unchanged, through our CRD and our runner.

They are read from its Go module (github.com/kubeflow/spark-operator, Apache-2.0), and are no part
of this project: `go mod download github.com/kubeflow/spark-operator/v2@v2.5.1` fetches them, with
their checksum, and HEADRACE_SPARK_EXAMPLES names another folder of them. API server, etcd and
operator are real; there is no node, so drivers are made and wait for one.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from support.control_plane import own_api_server
from support.kube import get, kubectl
from support.kube_process import OperatorProcess
from support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MODULE = "github.com/kubeflow/spark-operator/v2@v2.5.1"
NAMESPACE = "default"  # what the examples say
#: Of each file: the fields that an Event names as not acted on. All that is asked besides is done.
RUN: dict[str, list[str]] = {
    "spark-pi.yaml": [],
    "spark-pi-configmap.yaml": [],
    "spark-pi-custom-resource.yaml": [],
    "spark-pi-dynamic-allocation.yaml": [],
    "spark-pi-emptydir.yaml": [],
    "spark-pi-kube-scheduler.yaml": ["spec.batchScheduler"],
    "spark-pi-pod-template.yaml": [],
    "spark-pi-prometheus-servlet.yaml": [],
    "spark-pi-python.yaml": [],
    "spark-pi-ttl.yaml": [],
    "spark-pi-volcano.yaml": ["spec.batchScheduler"],
    "spark-pi-yunikorn.yaml": ["spec.batchScheduler", "spec.batchSchedulerOptions"],
}
#: Those whose image is a blank to fill in (`{IMAGE_REGISTRY}`): filled in here, all else unchanged.
FILLED_IN: dict[str, list[str]] = {
    "spark-pi-prometheus.yaml": [
        "spec.monitoring.exposeExecutorMetrics",
        "spec.monitoring.prometheus.jmxExporterJar",
    ],
}
#: Kinds that are not run here: the API server does not know them.
NO_SUCH_KIND = {
    "spark-pi-scheduled.yaml": "ScheduledSparkApplication",
    "sparkconnect/spark-connect.yaml": "SparkConnect",
}


def find_examples() -> Path | None:
    """Return the folder of the examples; None where nobody has fetched them."""
    if named := os.environ.get("HEADRACE_SPARK_EXAMPLES"):
        return Path(named)
    if (go := shutil.which("go")) is None:
        return None
    cache = subprocess.run([go, "env", "GOMODCACHE"], capture_output=True, text=True, check=True)
    folder = Path(cache.stdout.strip()) / MODULE / "examples"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="module")
def examples() -> Path:
    if (found := find_examples()) is None:
        pytest.skip(f"NOT TESTED: no published examples; `go mod download {MODULE}`")
    return found


@pytest.fixture(scope="module")
def world(examples: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An API server with an operator that runs SparkApplications; the examples."""
    folder = tmp_path_factory.mktemp("examples")
    with ExitStack() as stack:
        stack.enter_context(own_api_server(folder))
        operator = OperatorProcess(folder, [NAMESPACE], {}, "--spark-runner")
        stack.enter_context(operator)
        kind = "crd/sparkapplications.sparkoperator.k8s.io"
        wait_until(lambda: kubectl("get", kind, "--ignore-not-found"), 60, "the runner's CRD")
        kubectl("wait", "--for=condition=Established", "--timeout=60s", kind)
        yield examples


def test_each_example_has_its_expected_outcome_here(examples: Path) -> None:
    files = {str(path.relative_to(examples)) for path in examples.rglob("*.yaml")}
    assert files == RUN.keys() | FILLED_IN.keys() | NO_SUCH_KIND.keys()


def events_of(name: str, reason: str) -> list[str]:
    """Return what events of this reason say of an application."""
    listed = kubectl("-n", NAMESPACE, "get", "events", "-o", "json")
    return [
        each["message"]
        for each in json.loads(listed)["items"]
        if (each["involvedObject"]["name"], each["reason"]) == (name, reason)
    ]


@pytest.mark.parametrize("file", RUN | FILLED_IN)
def test_it_is_taken_as_it_is_and_its_driver_is_made(world: Path, file: str) -> None:
    text = (world / file).read_text()
    if file in FILLED_IN:
        assert "{IMAGE_REGISTRY}/{IMAGE_REPOSITORY}" in text
        text = text.replace("{IMAGE_REGISTRY}/{IMAGE_REPOSITORY}", "registry.example/team")
    asked = next(
        each for each in yaml.safe_load_all(text) if each and each["kind"] == "SparkApplication"
    )
    name = asked["metadata"]["name"]
    kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin=text)
    try:
        wait_until(lambda: get(NAMESPACE, "pod", f"{name}-driver"), 60, "the driver's pod")
        driver = get(NAMESPACE, "pod", f"{name}-driver")
        container = driver["spec"]["containers"][0]
        assert container["name"] == "spark-kubernetes-driver"
        assert container["image"] == asked["spec"]["image"]
        assert asked["spec"]["mainApplicationFile"] in container["args"]
        account = asked["spec"]["driver"].get("serviceAccount") or "spark-operator-spark"
        assert driver["spec"]["serviceAccountName"] == account
        ignored = (RUN | FILLED_IN)[file]
        wait_until(lambda: events_of(name, "SparkApplicationSubmitted"), 30, "its event")
        if ignored:
            wait_until(lambda: events_of(name, "SparkApplicationFieldsIgnored"), 30, "its event")
        said = events_of(name, "SparkApplicationFieldsIgnored")
        assert all(message.endswith(f"act on {', '.join(ignored)}") for message in said), said
        assert bool(said) == bool(ignored)
    finally:
        kubectl("-n", NAMESPACE, "delete", "sparkapplication", name, "--wait=false")
        kubectl("-n", NAMESPACE, "delete", "pod", f"{name}-driver", "--ignore-not-found", "--force")
        kubectl("-n", NAMESPACE, "delete", "events", "--all")


@pytest.mark.parametrize("file", NO_SUCH_KIND)
def test_a_kind_that_is_not_run_is_refused_at_once(world: Path, file: str) -> None:
    with pytest.raises(RuntimeError, match=f'no matches for kind "{NO_SUCH_KIND[file]}"'):
        kubectl("-n", NAMESPACE, "apply", "-f", str(world / file))
