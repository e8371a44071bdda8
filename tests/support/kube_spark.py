"""SparkApplications on a real Kubernetes, as tests see them: through kubectl."""

import base64
import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace_operator.resources import SPARK_API_VERSION
from support.kube import apply, get, kubectl
from support.processes import wait_until

#: Jobs here count as Headrace's own: started as Python, without a JVM.
SCRIPTS = "/opt/headrace/test"


class KubeJob:
    """A SparkApplication whose main file is a short Python script of the test's."""

    def __init__(self, namespace: str, name: str, script: str, **spec: Any) -> None:
        self.namespace, self.name = namespace, name
        self._script = script
        self.spec: dict[str, Any] = {
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "sparkVersion": "4.3.0",
            "image": "headrace/jobs:0.1.0",
            "mainApplicationFile": f"local://{SCRIPTS}/job.py",
            "driver": {
                "coreRequest": "50m",
                "memory": "128m",
                "serviceAccount": "spark",
                "configMaps": [{"name": f"{name}-script", "path": SCRIPTS}],
            },
            "executor": {"instances": 1, "cores": 1, "memory": "128m"},
            **spec,
        }

    def document(self) -> dict[str, Any]:
        return {
            "apiVersion": SPARK_API_VERSION,
            "kind": "SparkApplication",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": self.spec,
        }

    def apply(self, **changed: Any) -> "KubeJob":
        self.spec |= changed
        metadata = {"name": f"{self.name}-script", "namespace": self.namespace}
        script = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        apply(script | {"data": {"job.py": self._script}}, self.document())
        return self

    def resource(self) -> dict[str, Any]:
        return application(self.namespace, self.name)

    def state(self) -> str:
        return state_of(self.resource())

    def wait_for(self, *states: str, seconds: float = 120) -> dict[str, Any]:
        """Wait until the state is one of these; return the resource."""
        try:
            wait_until(lambda: self.state() in states, seconds)
        except TimeoutError:
            found = json.dumps(self.resource().get("status"))
            raise TimeoutError(f"not {states} in {seconds} s but {found}") from None
        return self.resource()

    def wait_running(self) -> str:
        """Wait until the driver's container runs; return the pod's uid."""
        self.wait_for("RUNNING")
        wait_until(lambda: "started" in self.log(), 30, "the job to say that it started")
        return str(driver(self.namespace, self.name)["metadata"]["uid"])

    def log(self) -> str:
        return kubectl("-n", self.namespace, "logs", f"{self.name}-driver", check=False)


def application(namespace: str, name: str) -> dict[str, Any]:
    return get(namespace, "sparkapplication", name)  # type: ignore[no-any-return]  # JSON


def state_of(resource: dict[str, Any]) -> str:
    state = resource.get("status", {}).get("applicationState", {})
    return str(state.get("state", ""))


def driver(namespace: str, name: str) -> dict[str, Any]:
    """Return the driver's pod; {} where there is none."""
    return get(namespace, "pod", f"{name}-driver")  # type: ignore[no-any-return]  # JSON


def executors(namespace: str, name: str) -> dict[str, str]:
    """Return the phases of an application's executors by their names."""
    selector = f"spark-role=executor,sparkoperator.k8s.io/app-name={name}"
    items = get(namespace, "pods", "-l", selector).get("items", [])
    return {each["metadata"]["name"]: each["status"]["phase"] for each in items}


def reasons(namespace: str, name: str) -> list[str]:
    """Return the reasons of an application's Events."""
    selector = f"involvedObject.kind=SparkApplication,involvedObject.name={name}"
    items = get(namespace, "events", "--field-selector", selector).get("items", [])
    return [str(each["reason"]) for each in items]


def first_record(namespace: str, pod: str, topic: str) -> "subprocess.Popen[str]":
    """Wait for a topic's first record in a broker's pod: names of brokers are known there alone.

    The process ends with the record, which is its output as JSON.
    """
    command = ["kubectl", "-n", namespace, "exec", pod, "--", "headrace", "consume", topic]
    command += ["--from", "earliest", "--follow", "--max-messages", "1", "-o", "json"]
    command += ["--bootstrap-server", "localhost:9092"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


#: Writes readings of made-up machines to all partitions, until its input ends.
_READINGS = """
import datetime, json, select, sys, time
from kafka import KafkaProducer
topic, partitions = sys.argv[1], int(sys.argv[2])
producer = KafkaProducer(bootstrap_servers="localhost:9092", linger_ms=20)
number = 0
while not select.select([sys.stdin], [], [], 0.25)[0]:
    now = datetime.datetime.now(datetime.UTC).isoformat()
    for number in range(number, number + 15 * partitions):
        reading = {"hostname": f"h{number % 8}", "cpu": 0, "usage": 50.0, "occurred_at": now}
        producer.send(topic, json.dumps(reading).encode(), partition=number % partitions)
producer.flush()
"""


@contextmanager
def readings(namespace: str, pod: str, topic: str, partitions: int = 4) -> Iterator[None]:
    """Write 60 readings a second to each partition meanwhile, from within a broker's pod."""
    command = ["kubectl", "-n", namespace, "exec", "-i", pod, "--"]
    command += ["/opt/headrace/venv/bin/python", "-c", _READINGS, topic, str(partitions)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as writing:
        assert writing.stdin is not None
        try:
            yield
        finally:
            writing.stdin.close()
        assert writing.wait(30) == 0


class Stopwatch:
    """When something was first so, in seconds since the start; for a report of a whole start."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.reached: dict[str, float] = {}

    def note(self, what: str, *, is_so: bool) -> None:
        if is_so and what not in self.reached:
            self.reached[what] = time.monotonic() - self.began

    def __str__(self) -> str:
        return ", ".join(f"{what} {seconds:.1f} s" for what, seconds in self.reached.items())


def scrape_config(
    job: str, monitor: dict[str, Any], namespace: str, folder: Path
) -> dict[str, Any]:
    """Say as Prometheus' own settings what a PodMonitor says of the pods that are there now.

    By way of the API server's proxy, so it works wherever kubectl does, also where no route leads
    to a pod. Debian's Prometheus has no discovery of its own for Kubernetes.
    """
    view = json.loads(kubectl("config", "view", "--minify", "--raw", "--flatten", "-o", "json"))
    cluster, user = view["clusters"][0]["cluster"], view["users"][0]["user"]
    tls = {}
    for name, data in (
        ("ca_file", cluster.get("certificate-authority-data")),
        ("cert_file", user.get("client-certificate-data")),
        ("key_file", user.get("client-key-data")),
    ):
        if data:
            path = folder / name
            path.write_bytes(base64.b64decode(data))
            tls[name] = str(path)
    scheme, _, server = cluster["server"].partition("://")
    [endpoint] = monitor["podMetricsEndpoints"]
    return {
        "job_name": job,
        # The proxy of an API server that has much to do is no fast way.
        "scrape_interval": "5s",
        "scrape_timeout": "5s",
        "scheme": scheme,
        "honor_labels": endpoint.get("honorLabels", False),
        "tls_config": tls,
        **({"authorization": {"credentials": user["token"]}} if "token" in user else {}),
        "static_configs": [
            {"targets": [server], "labels": each}
            for each in _targets(monitor["selector"]["matchLabels"], endpoint, namespace)
        ],
    }


def _targets(
    selector: dict[str, str], endpoint: dict[str, Any], namespace: str
) -> Iterator[dict[str, str]]:
    """Yield the labels of each target: where it is, whose it is, and those that are relabelled."""
    query = ",".join(f"{key}={value}" for key, value in selector.items())
    for pod in get(namespace, "pods", "-l", query)["items"]:
        name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
        found = {
            f"__meta_kubernetes_pod_label_{re.sub(r'[^a-zA-Z0-9_]', '_', key)}": value
            for key, value in labels.items()
        }
        relabelled = {
            each["targetLabel"]: found[source]
            for each in endpoint.get("relabelings", ())
            for source in each["sourceLabels"]
            if source in found
        }
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", []):
                if port.get("name") == endpoint["port"]:
                    where = f"/api/v1/namespaces/{namespace}/pods/{name}:{port['containerPort']}"
                    path = f"{where}/proxy{endpoint['path']}"
                    yield {
                        "__metrics_path__": path,
                        "namespace": namespace,
                        "pod": name,
                        **relabelled,
                    }
