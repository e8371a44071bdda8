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

from headrace_operator.kubernetes.api.cache import Store
from headrace_operator.kubernetes.api.client import KubernetesClient
from headrace_operator.kubernetes.api.connection import find_connection
from headrace_operator.kubernetes.spark.applications import (
    DEFINITION,
    SparkRunner,
    install_definition,
)
from headrace_operator.render.policies import render_pod_monitor
from headrace_operator.resources import Cluster, parse_resource
from support.kube import ROOT, apply, condition, get, kubectl
from support.kube_spark import (
    KubeJob,
    Stopwatch,
    driver,
    executors,
    first_record,
    readings,
    reasons,
    scrape_config,
    state_of,
)
from support.kube_spark import application as application_of
from support.monitoring import MONITORING, Prometheus
from support.processes import wait_until

pytestmark = pytest.mark.timeout(600)

EXAMPLE = ROOT / "manifests/examples/cpu-load"
#: What is promised, on a machine that does nothing else.
EXAMPLE_SECONDS = float(os.environ.get("HEADRACE_EXAMPLE_SECONDS", "60"))
#: What is waited for, so that a slow start says how slow it was.
EXAMPLE_PATIENCE_SECONDS = 240
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


@pytest.fixture(scope="module")
def running(example) -> str:
    """The example's namespace, as soon as its job reads: each test can be run alone."""
    namespace, _ = example
    wait_until(lambda: running_executors(namespace) == 1, EXAMPLE_PATIENCE_SECONDS, "its executor")
    return namespace


def scrape_configs(namespace, operator, folder):
    """Say what the PodMonitors of brokers, operator and jobs say, as Prometheus' own settings."""
    text = (MONITORING / "pod-monitors.yaml").read_text()
    monitors = {each["metadata"]["name"]: each["spec"] for each in yaml.safe_load_all(text)}
    cluster = parse_resource(get(namespace, "cluster", "cpu"))
    assert isinstance(cluster, Cluster)
    where = operator.namespace
    return [
        scrape_config("brokers", render_pod_monitor(cluster)["spec"], namespace, folder),
        scrape_config("operator", monitors["headrace-operator"], where, folder),
        scrape_config("jobs", monitors["headrace-jobs"], namespace, folder),
    ]


@pytest.mark.slow
@pytest.mark.spark
def test_the_example_runs_in_whole_a_minute_after_it_was_applied(example, operator, tmp_path):
    namespace, watch = example

    def has_started() -> bool:
        is_ready = condition(get(namespace, "cluster", "cpu")).get("status") == "True"
        watch.note("brokers", is_so=is_ready)
        topics = [condition(each).get("status") for each in get(namespace, "topics")["items"]]
        watch.note("topics", is_so=topics == ["True"] * 3)
        watch.note("driver", is_so=state_of(application_of(namespace, "cpu-load")) == "RUNNING")
        watch.note("executor", is_so=running_executors(namespace) == 1)
        group = get(namespace, "consumergroup", "cpu-load-job").get("status", {})
        watch.note("lag", is_so=group.get("lagRecords") is not None)
        return watch.reached.keys() >= {"brokers", "topics", "driver", "executor", "lag"}

    wait_until(has_started, EXAMPLE_PATIENCE_SECONDS, f"the example to start ({watch})")
    reading = first_record(namespace, "cpu-brokers-0", "cpu-load-windows")
    with Prometheus(tmp_path, {}, scrape_configs(namespace, operator, tmp_path)) as prometheus:
        # Three brokers, the operator, the driver.
        are_up = 'count(up{job=~"brokers|operator|jobs"} == 1) == 5'

        def is_whole() -> bool:
            watch.note("targets", is_so=bool(prometheus.query(are_up)))
            watch.note("windows", is_so=reading.poll() == 0)
            return watch.reached.keys() >= {"targets", "windows"}

        wait_until(is_whole, EXAMPLE_PATIENCE_SECONDS, f"the example to be whole ({watch})")
        assert len(prometheus.query('up{job="brokers", headrace_cluster="cpu"}')) == 3
        # The job's series keep their own label `job`, the application's name.
        of_job = '{__name__=~"headrace_job_.*", job="cpu-load", pod="cpu-load-driver"}'
        assert prometheus.query(of_job)
    print(f"cpu-load on Kubernetes, since apply: {watch}")  # noqa: T201 - for whoever measures
    window = json.loads(json.loads(reading.communicate()[0])["value"])
    assert window["readings"] > 0
    assert max(watch.reached.values()) < EXAMPLE_SECONDS, str(watch)
    status = application_of(namespace, "cpu-load")["status"]
    assert status["driverInfo"]["podName"] == "cpu-load-driver"
    assert set(status["executorState"]) == set(executors(namespace, "cpu-load"))


def running_executors(namespace):
    return list(executors(namespace, "cpu-load").values()).count("Running")


def follow_lag(namespace, **policy):
    """Let the example's ConsumerGroup resize its job."""
    patch = json.dumps({"spec": {"lagPolicy": policy}})
    kubectl("-n", namespace, "patch", "consumergroup", "cpu-load-job", "--type=merge", "-p", patch)


@pytest.mark.slow
@pytest.mark.spark
def test_lag_resizes_a_job_without_a_new_driver(running):
    namespace = running
    before = driver(namespace, "cpu-load")["metadata"]["uid"]
    follow_lag(namespace, target={"maxLagRecords": 50}, maxReplicas=2, scaleDownDelay="10s")
    with readings(namespace, "cpu-brokers-0", "cpu-load"):
        # As long as by hand: what takes time is the start of its JVM.
        patience = EXAMPLE_PATIENCE_SECONDS
        wait_until(lambda: running_executors(namespace) == 2, patience, "two executors")
    group = get(namespace, "consumergroup", "cpu-load-job")
    assert condition(group)["status"] == "True"
    wait_until(lambda: running_executors(namespace) == 1, 120, "one executor for what is left")
    assert driver(namespace, "cpu-load")["metadata"]["uid"] == before
    application = application_of(namespace, "cpu-load")
    assert application["spec"]["executor"]["instances"] == 1
    assert application["status"]["executionAttempts"] == 1
    kubectl(
        *("-n", namespace, "patch", "consumergroup", "cpu-load-job", "--type=json"),
        *("-p", '[{"op": "remove", "path": "/spec/lagPolicy"}]'),
    )


@pytest.mark.slow
@pytest.mark.spark
def test_a_job_is_resized_by_hand_without_a_new_driver_and_stops_in_grace(running):
    namespace = running
    before = driver(namespace, "cpu-load")["metadata"]["uid"]
    for count in (2, 1):
        kubectl("-n", namespace, "scale", "sparkapplication/cpu-load", f"--replicas={count}")
        wait_until(
            lambda count=count: running_executors(namespace) == count,
            EXAMPLE_PATIENCE_SECONDS,
            f"{count} executors",
        )
        wait_until(
            lambda count=count: (
                application_of(namespace, "cpu-load")["status"]["executors"] == count
            ),
            30,
            "a status that says so",
        )
    assert driver(namespace, "cpu-load")["metadata"]["uid"] == before
    patch = json.dumps({"spec": {"suspend": True}})
    kubectl(
        *("-n", namespace, "patch", "sparkapplication", "cpu-load", "--type=merge", "-p", patch)
    )
    wait_until(lambda: state_of(application_of(namespace, "cpu-load")) == "SUSPENDED", 90, "a stop")
    wait_until(lambda: not executors(namespace, "cpu-load"), 60, "its executors to be gone")
