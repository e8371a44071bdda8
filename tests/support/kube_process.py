"""The operator as a process beside a cluster, and one broker that it reaches: no image, no pods.

What it does to the API server is what it does in a pod. An operator that the cluster already has,
and that serves all namespaces, is stopped meanwhile: two would not know of one another.
"""

import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

from confluent_kafka.admin import AdminClient

from support.headrace_broker import HeadraceBroker
from support.kube import (
    OPERATOR,
    RESTRICTED,
    ROOT,
    SYSTEM_NAMESPACE,
    KubeOperator,
    apply,
    condition,
    get,
    kubectl,
    resource,
)
from support.processes import LOOPBACK, ManagedProcess, free_port, wait_until

_COMMAND = Path(sys.executable).parent / "headrace"
_TRIES = 12
_READY_SECONDS = 60.0
MONITOR = "podmonitors.monitoring.coreos.com"


def podmonitor_definition() -> dict[str, Any]:
    """Return a CRD like that of the Prometheus operator."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "PodMonitor", "plural": "podmonitors", "singular": "podmonitor"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": MONITOR},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }


@contextmanager
def others_stopped() -> Iterator[None]:
    """Let no operator that serves all namespaces run meanwhile."""
    other = KubeOperator()
    found = get(SYSTEM_NAMESPACE, "deployment", OPERATOR)
    replicas = found.get("spec", {}).get("replicas", 0)
    if replicas:
        other.scale(0)
    try:
        yield
    finally:
        # One that was about to go when this began is gone by now.
        if replicas and get(SYSTEM_NAMESPACE, "deployment", OPERATOR):
            other.scale(replicas)


def free_namespace(*, restricted: bool = True) -> str:
    """Make a namespace by a name that nobody has."""
    name = f"headrace-process-{uuid.uuid4().hex[:8]}"
    labels = RESTRICTED if restricted else {}
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    return name


class OperatorProcess:
    """`headrace operator run` for some namespaces."""

    def __init__(
        self, directory: Path, namespaces: list[str], reach: dict[str, str], *more: str
    ) -> None:
        """`more`: other options; without namespaces one of them says where the lease is."""
        self.port = free_port()
        self._directory = directory
        self._starts = 0
        self._command = [str(_COMMAND), "operator", "run", "--listen", f"{LOOPBACK}:{self.port}"]
        self._command += [f"--namespace={name}" for name in namespaces]
        self._command += [f"--reach={where}={address}" for where, address in reach.items()]
        self._command += [f"--lease-namespace={name}" for name in namespaces[:1]]
        self._command += more
        self.process: ManagedProcess

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it leads."""
        self._starts += 1
        log = self._directory / f"operator-{self._starts}.log"
        self.process = ManagedProcess(self._command, log)
        self.process.wait_ready(self._leads, _READY_SECONDS)

    def stop(self) -> None:
        self.process.stop()

    def log(self) -> str:
        """Return what it has logged since its last start."""
        return (self._directory / f"operator-{self._starts}.log").read_text()

    def fetch(self, path: str) -> tuple[int, str]:
        """GET a page of its own; status 0 where nobody answers."""
        try:
            with urlopen(f"http://{LOOPBACK}:{self.port}{path}", timeout=5) as response:
                return response.status, response.read().decode()
        except OSError as error:
            return getattr(error, "code", 0), str(error)

    def metrics(self) -> str:
        """Return its metrics page; without a sample where nobody answers."""
        return self.fetch("/metrics")[1]

    def metric(self, name: str, *labels: str) -> float:
        """Return the sum of a metric's samples that have all these `label="value"`."""
        total = 0.0
        for line in self.metrics().splitlines():
            is_it = line.startswith((f"{name}{{", f"{name} "))
            if is_it and all(label in line for label in labels):
                total += float(line.rpartition(" ")[2])
        return total

    def writes_by_kind(self) -> dict[str, float]:
        """Return how often it wrote to the API server, save for its lease and Events."""
        for _ in range(_TRIES):  # a sum without its samples would be another number
            status, page = self.fetch("/metrics")
            if status == HTTPStatus.OK:
                break
        else:
            raise RuntimeError(f"the operator's metrics cannot be read: {page}")
        found: dict[str, float] = {}
        for line in page.splitlines():
            if line.startswith("headrace_operator_kubernetes_writes_total{"):
                kind = line.partition('kind="')[2].partition('"')[0]
                found[kind] = found.get(kind, 0.0) + float(line.rpartition(" ")[2])
        found.pop("Event", None)
        return found

    def writes(self) -> float:
        """Return how often it wrote at all, save for its lease and Events."""
        return sum(self.writes_by_kind().values())

    def _leads(self) -> bool:
        return self.metric("headrace_operator_leader") == 1


class Served:
    """Two namespaces, a Cluster that is one broker beside them, and the operator that serves it."""

    def __init__(self, directory: Path, *more: str) -> None:
        self.namespace = free_namespace()
        self.other_namespace = free_namespace()
        self.broker = HeadraceBroker(directory / "broker")
        reach = {f"{self.namespace}/c": self.broker.bootstrap}
        namespaces = [self.namespace, self.other_namespace]
        self.operator = OperatorProcess(directory, namespaces, reach, *more)

    def __enter__(self) -> Self:
        kubectl("apply", "--server-side", "--force-conflicts", "-k", str(ROOT / "crds"))
        self.broker.start()
        self.apply_cluster()
        self.operator.start()
        wait_until(lambda: self.ready("Cluster", "c") == "True", 60, "the Cluster to be ready")
        return self

    def __exit__(self, *_: object) -> None:
        self.operator.stop()
        self.broker.stop()
        self.remove()

    def metrics(self) -> str:
        """Return its operator's metrics page."""
        return self.operator.metrics()

    def remove(self) -> None:
        """Delete the namespaces."""
        names = (self.namespace, self.other_namespace)
        kubectl("delete", "namespace", "--ignore-not-found", "--wait=false", *names)

    def apply_cluster(self, **spec: Any) -> None:
        """Apply the Cluster."""
        pools = [{"name": "a", "replicas": 1, "storage": {"type": "Ephemeral"}}]
        config = {"default.replication.factor": "1"}
        body = {"pools": pools, "config": config, **spec}
        apply(resource("Cluster", self.namespace, "c", **body))

    def topic(self, name: str, namespace: str = "", **spec: Any) -> dict[str, Any]:
        """Return a Topic of the Cluster."""
        reference = {"name": "c", "namespace": self.namespace}
        return resource("Topic", namespace or self.namespace, name, clusterRef=reference, **spec)

    def group(self, name: str, **spec: Any) -> dict[str, Any]:
        """Return a ConsumerGroup of the Cluster."""
        return resource("ConsumerGroup", self.namespace, name, clusterRef={"name": "c"}, **spec)

    def get(self, kind: str, name: str, namespace: str = "") -> Any:
        """Return a resource as the API server has it."""
        return get(namespace or self.namespace, kind.lower(), name)

    def ready(self, kind: str, name: str, namespace: str = "") -> str:
        """Return the status of its Ready condition; '' where it has none of this generation."""
        found = self.get(kind, name, namespace)
        ready = condition(found)
        if ready.get("observedGeneration") != found.get("metadata", {}).get("generation"):
            return ""
        return str(ready.get("status", ""))

    def reason(self, kind: str, name: str, namespace: str = "") -> str:
        """Return the reason of its Ready condition."""
        return str(condition(self.get(kind, name, namespace)).get("reason", ""))

    def wait_ready(self, kind: str, name: str, seconds: float = 30) -> None:
        """Wait until it is ready."""
        wait_until(lambda: self.ready(kind, name) == "True", seconds, f"{kind} {name} to be ready")

    def topics(self) -> set[str]:
        """Return the topics that the broker has."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        return set(admin.list_topics(timeout=10).topics)
