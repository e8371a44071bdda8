"""SparkApplications on a real Kubernetes, run by Headrace's own runner.

The life of a driver's pod is tested with Python scripts in it, which start in a moment; the whole
of it (a JVM, an executor, records, metrics) with the example that users apply.
"""

import asyncio
import copy
import json
import os
import time
from collections.abc import Iterator

import pytest
import yaml

from headrace_operator.kubernetes.applications import DEFINITION, SparkRunner, install_definition
from headrace_operator.kubernetes.cache import Store
from headrace_operator.kubernetes.client import KubernetesClient
from headrace_operator.kubernetes.connection import find_connection
from support.kube import ROOT, apply, condition, get, kubectl
from support.kube_spark import (
    KubeJob,
    Stopwatch,
    consumed,
    driver,
    executors,
    reasons,
    scrape_config,
    state_of,
)
from support.kube_spark import application as application_of
from support.monitoring import MONITORING, Prometheus
from support.processes import wait_until

pytestmark = pytest.mark.timeout(600)

EXAMPLE = ROOT / "manifests/examples/cpu-load"
#: What is promised is 60 s on a machine that does nothing else.
EXAMPLE_SECONDS = float(os.environ.get("HEADRACE_EXAMPLE_SECONDS", "240"))
FAILS = "import sys; print('started', flush=True); sys.exit('no such topic')"
ENDS = "print('started', flush=True)"
WAITS = """
import signal, sys, time
def stop(*_):
    print('stopping', flush=True)
    time.sleep(2)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print('started', flush=True)
while True:
    time.sleep(0.1)
"""


def children(namespace, name):
    """Return what an application made, its pods first."""
    selector = f"sparkoperator.k8s.io/app-name={name}"
    items = get(namespace, "pods,services,configmaps", "-l", selector).get("items", [])
    return {f"{each['kind']}/{each['metadata']['name']}" for each in items}


def test_a_failed_job_is_retried_as_often_as_it_says_and_tells_why_it_failed(shared_namespace):
    policy = {"type": "OnFailure", "onFailureRetries": 1, "onFailureRetryInterval": 1}
    job = KubeJob(shared_namespace, "fails", FAILS, restartPolicy=policy).apply()
    status = job.wait_for("FAILED")["status"]
    assert status["executionAttempts"] == 2
    assert "exit status 1" in status["applicationState"]["errorMessage"]
    assert "no such topic" in status["applicationState"]["errorMessage"]
    found = reasons(shared_namespace, "fails")
    assert found.count("SparkApplicationSubmitted") == 2
    assert "SparkApplicationFailed" in found
    # A corrected spec is a new run, and the status follows.
    job.apply(arguments=["--other"])
    wait_until(lambda: job.resource()["status"]["executionAttempts"] == 1, 60, "a new run")


def test_a_job_that_always_runs_is_started_again_after_it_ended(shared_namespace):
    job = KubeJob(shared_namespace, "always", ENDS, restartPolicy={"type": "Always"}).apply()
    wait_until(lambda: job.resource().get("status", {}).get("executionAttempts", 0) >= 2, 120)
    job.apply(suspend=True)
    job.wait_for("SUSPENDED")


def test_a_finished_job_is_deleted_after_its_time_with_all_that_it_made(shared_namespace):
    job = KubeJob(shared_namespace, "ends", ENDS, timeToLiveSeconds=15).apply()
    status = job.wait_for("COMPLETED")["status"]
    assert status["terminationTime"]
    assert "Pod/ends-driver" in children(shared_namespace, "ends")
    wait_until(lambda: not job.resource(), 60, "the application to be deleted")
    wait_until(lambda: not children(shared_namespace, "ends"), 60, "what it made to be gone")


def test_suspend_lets_a_driver_finish_and_resume_starts_another(shared_namespace, operator):
    job = KubeJob(shared_namespace, "waits", WAITS, restartPolicy={"type": "Always"}).apply()
    first = job.wait_running()
    job.apply(suspend=True)
    wait_until(lambda: "stopping" in job.log(), 60, "the driver to be asked to stop")
    assert job.state() in ("SUSPENDING", "SUSPENDED")
    job.wait_for("SUSPENDED")
    wait_until(lambda: not driver(shared_namespace, "waits"), 30, "the driver to be gone")
    job.apply(suspend=False)
    assert job.wait_running() != first
    # Where nobody changed anything, nothing is written.
    before = job.resource()["metadata"]["resourceVersion"]
    time.sleep(5)
    assert job.resource()["metadata"]["resourceVersion"] == before
    # A new operator knows what the last one knew, and has nothing to do.
    second = driver(shared_namespace, "waits")["metadata"]["uid"]
    operator.kill()
    operator.wait_ready()
    time.sleep(5)
    assert driver(shared_namespace, "waits")["metadata"]["uid"] == second
    assert job.resource()["metadata"]["resourceVersion"] == before
    # A driver that somebody kills is made again.
    kubectl("-n", shared_namespace, "delete", "pod", "waits-driver", "--wait=false", "--now")
    wait_until(
        lambda: (
            driver(shared_namespace, "waits").get("metadata", {}).get("uid") not in (None, second)
        ),
        90,
        "another driver",
    )
    kubectl("-n", shared_namespace, "delete", "sparkapplication", "waits", "--wait=false")
    wait_until(lambda: not children(shared_namespace, "waits"), 90, "what it made to be gone")


def test_an_application_that_another_controller_runs_is_left_to_it(shared_namespace):
    job = KubeJob(shared_namespace, "theirs", ENDS, suspend=True).apply()
    job.wait_for("SUSPENDED")
    document = job.document()
    document.pop("spec")
    document["status"] = {"applicationState": {"state": "SUBMITTED"}}
    kubectl(
        *("apply", "--server-side", "--force-conflicts", "--subresource=status"),
        *("--field-manager=spark-operator", "-f", "-"),
        stdin=json.dumps(document),
    )
    job.apply(suspend=False)
    time.sleep(5)
    assert job.state() == "SUBMITTED"
    assert driver(shared_namespace, "theirs") == {}
    kubectl("-n", shared_namespace, "delete", "sparkapplication", "theirs", "--wait=false")


def test_a_crd_that_exists_is_never_touched(operator):
    assert operator.pods()

    async def install_again() -> bool:
        async with KubernetesClient(find_connection()) as client:
            return await install_definition(client)

    before = json.loads(kubectl("get", "crd", DEFINITION, "-o", "json"))
    assert asyncio.run(install_again())
    after = json.loads(kubectl("get", "crd", DEFINITION, "-o", "json"))
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_where_the_kubeflow_operator_is_deployed_nothing_is_run_unasked(namespace):
    labels = {"app.kubernetes.io/name": "spark-operator"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
    apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "spark-operator", "namespace": namespace, "labels": labels},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": pod},
        }
    )
    document = KubeJob(namespace, "job", ENDS).document()
    document["metadata"]["uid"] = "none"
    chosen = copy.deepcopy(document)
    chosen["metadata"]["labels"] = {"headrace.dev/spark-runner": "headrace"}

    async def is_for_us() -> list[bool]:
        async with KubernetesClient(find_connection()) as client:
            runner = SparkRunner(client, Store())
            return [await runner.is_for_us(each) for each in (document, chosen)]

    try:
        assert asyncio.run(is_for_us()) == [False, True]
    finally:
        kubectl("-n", namespace, "delete", "deployment", "spark-operator", "--wait=false")


@pytest.fixture(scope="module")
def example(new_namespace) -> Iterator[tuple[str, Stopwatch]]:
    """The cpu-load example, applied as a user does, from whose start the time is measured."""
    namespace = new_namespace()
    watch = Stopwatch()
    text = kubectl("kustomize", str(EXAMPLE))
    kubectl("-n", namespace, "apply", "--server-side", "-f", "-", stdin=text)
    yield namespace, watch
    kubectl("-n", namespace, "delete", "--wait=false", "--ignore-not-found", "-f", "-", stdin=text)


@pytest.mark.slow
@pytest.mark.spark
def test_the_example_computes_windows_a_minute_after_it_was_applied(example):
    namespace, watch = example

    def is_complete() -> bool:
        cluster = get(namespace, "cluster", "cpu")
        watch.note("brokers", is_so=condition(cluster).get("status") == "True")
        watch.note("driver", is_so=state_of(application_of(namespace, "cpu-load")) == "RUNNING")
        running = "Running" in executors(namespace, "cpu-load").values()
        watch.note("executor", is_so=running)
        group = get(namespace, "consumergroup", "cpu-load-job").get("status", {})
        watch.note("lag", is_so=group.get("lagRecords") is not None)
        if "executor" in watch.reached:
            windows = consumed(namespace, "cpu-brokers-0", "cpu-load-windows")
            watch.note("windows", is_so=bool(windows))
        return {"windows", "lag", "brokers"} <= watch.reached.keys()

    wait_until(is_complete, EXAMPLE_SECONDS, f"windows ({watch})")
    print(f"cpu-load on Kubernetes, since apply: {watch}")  # noqa: T201 - for whoever measures
    status = application_of(namespace, "cpu-load")["status"]
    assert status["driverInfo"]["podName"] == "cpu-load-driver"
    assert set(status["executorState"]) == set(executors(namespace, "cpu-load"))


@pytest.mark.slow
@pytest.mark.spark
def test_prometheus_finds_and_scrapes_the_driver(example, tmp_path):
    namespace, _ = example
    documents = yaml.safe_load_all((MONITORING / "pod-monitors.yaml").read_text())
    [monitor] = [each for each in documents if each["metadata"]["name"] == "headrace-jobs"]
    config = scrape_config(monitor["spec"], namespace, tmp_path)
    with Prometheus(tmp_path, {}, [config]) as prometheus:
        deadline = time.monotonic() + 60
        while not prometheus.query('up{job="pods"} == 1'):
            assert time.monotonic() < deadline, prometheus.targets_down()
            time.sleep(0.5)
        [target] = prometheus.query('up{job="pods"}')
        assert target["metric"]["pod"] == "cpu-load-driver"
        # The series keep their own label `job`, the application's name.
        wait_until(
            lambda: bool(prometheus.query('{__name__=~"headrace_job_.*", job="cpu-load"}')),
            30,
            "the job's own series",
        )


@pytest.mark.slow
@pytest.mark.spark
def test_a_job_is_resized_without_a_new_driver_and_stops_in_grace(example):
    namespace, _ = example
    before = driver(namespace, "cpu-load")["metadata"]["uid"]
    kubectl("-n", namespace, "scale", "sparkapplication/cpu-load", "--replicas=2")
    wait_until(
        lambda: list(executors(namespace, "cpu-load").values()).count("Running") == 2,
        EXAMPLE_SECONDS,
        "two executors",
    )
    wait_until(
        lambda: application_of(namespace, "cpu-load")["status"]["executors"] == 2,
        30,
        "a status that says so",
    )
    kubectl("-n", namespace, "scale", "sparkapplication/cpu-load", "--replicas=1")
    wait_until(
        lambda: list(executors(namespace, "cpu-load").values()).count("Running") == 1,
        EXAMPLE_SECONDS,
        "one executor",
    )
    assert driver(namespace, "cpu-load")["metadata"]["uid"] == before
    patch = json.dumps({"spec": {"suspend": True}})
    kubectl(
        *("-n", namespace, "patch", "sparkapplication", "cpu-load", "--type=merge", "-p", patch)
    )
    wait_until(lambda: state_of(application_of(namespace, "cpu-load")) == "SUSPENDED", 90, "a stop")
    wait_until(lambda: not executors(namespace, "cpu-load"), 60, "its executors to be gone")
