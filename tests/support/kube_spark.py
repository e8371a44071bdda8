"""SparkApplications on a real Kubernetes, as tests see them: through kubectl."""

import base64
import json
import time
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


def consumed(namespace: str, pod: str, topic: str, records: int = 1) -> list[dict[str, Any]]:
    """Return records of a topic, read in a broker's pod: its names are known there alone."""
    text = kubectl(
        *("-n", namespace, "exec", pod, "--", "headrace", "consume", topic, "--from", "earliest"),
        *("-o", "json", "--max-messages", str(records), "--bootstrap-server", "localhost:9092"),
        check=False,
    )
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


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


def scrape_config(monitor: dict[str, Any], namespace: str, folder: Path) -> dict[str, Any]:
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
    selector = ",".join(f"{k}={v}" for k, v in monitor["selector"]["matchLabels"].items())
    labels = []
    for pod in get(namespace, "pods", "-l", selector)["items"]:
        name = pod["metadata"]["name"]
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", []):
                if port.get("name") == endpoint["port"]:
                    where = f"/api/v1/namespaces/{namespace}/pods/{name}:{port['containerPort']}"
                    path = f"{where}/proxy{endpoint['path']}"
                    labels.append({"__metrics_path__": path, "namespace": namespace, "pod": name})
    return {
        "job_name": "pods",
        # The proxy of an API server that has much to do is no fast way.
        "scrape_interval": "5s",
        "scrape_timeout": "5s",
        "scheme": scheme,
        "honor_labels": endpoint.get("honorLabels", False),
        "tls_config": tls,
        **({"authorization": {"credentials": user["token"]}} if "token" in user else {}),
        "static_configs": [{"targets": [server], "labels": each} for each in labels],
    }
