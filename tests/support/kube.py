"""kubectl as tests use it, and the operator installed from the manifests that users apply.

Owns no cluster: whatever KUBECONFIG names is used, and what was installed is taken away again.
"""

import atexit
import functools
import http.client
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from support.processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
SYSTEM_NAMESPACE = "headrace-system"
_LAB_CLASS = "standard"
OPERATOR = "headrace-operator"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
_OPERATOR_SECONDS = 180
_NODE_SECONDS = 60
_CONTROL_PLANE_SECONDS = 180
_READS_MAX = 20
_READ_AGAIN_SECONDS = 0.5
_GROUPS = {
    "api/v1": "pod service configmap persistentvolumeclaim serviceaccount",
    "apis/apps/v1": "statefulset deployment",
    "apis/policy/v1": "poddisruptionbudget",
    "apis/networking.k8s.io/v1": "networkpolicie",
    "apis/headrace.dev/v1beta1": "cluster topic consumergroup",
    "apis/sparkoperator.k8s.io/v1beta2": "sparkapplication",
}
_PATHS = {
    name: f"{group}/namespaces/{{namespace}}/{kind}s"
    for group, kinds in _GROUPS.items()
    for kind in kinds.split()
    for name in (kind, f"{kind}s")
}
_SHORT = {
    "svc": "service",
    "cm": "configmap",
    "pvc": "persistentvolumeclaim",
    "sa": "serviceaccount",
    "sts": "statefulset",
    "pdb": "poddisruptionbudget",
    "networkpolicy": "networkpolicies",
}
_PATHS |= {short: _PATHS[kind] for short, kind in _SHORT.items()}


def kubectl(
    *arguments: str, stdin: str | None = None, check: bool = True, seconds: float | None = None
) -> str:
    """Run kubectl and return what it says; raises RuntimeError with its complaint.

    And after `seconds`: what is asked of a node that is cut off is never answered.
    """
    command = ["kubectl", *arguments]
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"kubectl {' '.join(arguments)}: {error}") from error
    if check and done.returncode:
        raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def get(namespace: str, kinds: str, *what: str) -> Any:
    """Return an object, {} where there is none, or a list of those of some kinds.

    As `kubectl get KINDS [NAME | -l SELECTOR]`, without a process for each question. Raises
    RuntimeError when nobody answers.
    """
    if not _PATHS.keys() >= set(kinds.split(",")):
        text = kubectl("-n", namespace, "get", kinds, *what, "--ignore-not-found", "-o", "json")
        return json.loads(text) if text.strip() else {}
    if what and what[0] != "-l":
        return reader().read(namespace, kinds, what[0])
    query = f"?labelSelector={quote(what[1])}" if what else ""
    items = []
    for kind in kinds.split(","):
        found = reader().read(namespace, kind, query=query)
        name = found.get("kind", "").removesuffix("List")
        items += [{"kind": name, **each} for each in found.get("items", ())]
    return {"items": items}


class Reader:
    """Reads objects through `kubectl proxy`, which knows every way to log in."""

    def __init__(self) -> None:
        self._proxy = subprocess.Popen(
            ["kubectl", "proxy", "--port=0"],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        atexit.register(self.close)
        assert self._proxy.stdout is not None
        self._port = int(self._proxy.stdout.readline().rpartition(":")[2])

    def close(self) -> None:
        """End the proxy."""
        atexit.unregister(self.close)
        self._proxy.terminate()
        self._proxy.wait()
        if self._proxy.stdout is not None:
            self._proxy.stdout.close()

    def read(self, namespace: str, kind: str, name: str = "", query: str = "") -> Any:
        """Return what the API server answers; {} for Not Found."""
        where = _PATHS[kind].format(namespace=namespace)
        for _ in range(_READS_MAX):
            status, body = self._ask(f"/{where}" + (f"/{name}" if name else "") + query)
            if status == HTTPStatus.NOT_FOUND:
                return {}
            if status == HTTPStatus.OK:
                return json.loads(body)
            # A server that has just started asks to retry later.
            time.sleep(_READ_AGAIN_SECONDS)
        raise RuntimeError(f"reading {where}: {status} {body[:200]!r}")

    def _ask(self, path: str) -> tuple[int, bytes]:
        link = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            link.request("GET", path)
            answer = link.getresponse()
            return answer.status, answer.read()
        except OSError as error:
            return 0, str(error).encode()
        finally:
            link.close()


@functools.cache
def reader() -> Reader:
    """Return the run's reader."""
    return Reader()


def forget_reader() -> None:
    """Let the next question go to the API server that KUBECONFIG names by then."""
    if reader.cache_info().currsize:
        reader().close()
        reader.cache_clear()


def apply(*documents: Mapping[str, Any]) -> None:
    """Apply documents as a user's tool does: by the server, as the field manager kubectl."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)


def resource(kind: str, namespace: str, name: str, **spec: Any) -> dict[str, Any]:
    """Return a document of one of Headrace's kinds."""
    return {
        "apiVersion": "headrace.dev/v1beta1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def condition(document: Mapping[str, Any], kind: str = "Ready") -> dict[str, Any]:
    """Return a condition of a resource; {} where it has none."""
    conditions = document.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == kind), {})


@dataclass(kw_only=True)
class KubeOperator:
    """The operator on a cluster.

    By default it is one for all namespaces (manifests/components/cluster-wide), with the runner of
    Spark applications. With a `scope` it has a namespace of its own and serves `namespaces` alone,
    so that several installations share a cluster in peace.
    """

    scope: str = ""
    namespaces: Sequence[str] = ()
    #: Another image than the manifests name; brokers run it as well.
    image: str = ""
    was_there: bool = field(default=False, init=False)

    @property
    def namespace(self) -> str:
        return f"headrace-{self.scope}" if self.scope else SYSTEM_NAMESPACE

    def documents(self) -> Iterator[dict[str, Any]]:
        """Yield what is applied."""
        text = kubectl("kustomize", str(ROOT / "tests/end_to_end_kubernetes/operator"))
        for document in yaml.safe_load_all(text):
            if document["kind"] == "Deployment" and self.image:
                container = document["spec"]["template"]["spec"]["containers"][0]
                container["image"] = self.image
            yield self._scoped(document) if self.scope else document

    def _scoped(self, document: dict[str, Any]) -> dict[str, Any]:
        kind, metadata = document["kind"], document["metadata"]
        if kind == "Namespace":
            metadata["name"] = self.namespace
        elif "namespace" in metadata:
            metadata["namespace"] = self.namespace
        if kind == "ClusterRoleBinding":
            metadata["name"] += f"-{self.scope}"
        for subject in document.get("subjects", ()):
            subject["namespace"] = self.namespace
        if kind == "Deployment":
            container = document["spec"]["template"]["spec"]["containers"][0]
            container["args"] += [f"--namespace={name}" for name in self.namespaces]
        return document

    def install(self) -> None:
        """Apply the manifests and wait until the operator of the image as it is now is ready."""
        phase = (
            "get",
            "namespace",
            self.namespace,
            "--ignore-not-found",
            "-o",
            "jsonpath={.status}",
        )
        wait_until(
            lambda: "Terminating" not in kubectl(*phase),
            _OPERATOR_SECONDS,
            "the end of a former operator's namespace",
        )
        self.was_there = bool(get(self.namespace, "deployment", OPERATOR))
        documents = list(self.documents())
        # Kinds first: what uses them is refused until they are known.
        kinds = [each for each in documents if each["kind"] == "CustomResourceDefinition"]
        apply(*kinds, *(each for each in documents if each["kind"] == "Namespace"))
        names = [f"crd/{each['metadata']['name']}" for each in kinds]
        kubectl("wait", "--for=condition=Established", "--timeout=60s", *names)
        apply(*(each for each in documents if each["kind"] not in {"Namespace", "Secret"}))
        if self.was_there:
            self.restart()
        self.wait_ready()

    def uninstall(self) -> None:
        """Take it away unless it was there before. Kinds stay: others may have some of them."""
        if self.was_there:
            return
        bindings = [
            f"clusterrolebinding/{each['metadata']['name']}"
            for each in self.documents()
            if each["kind"] == "ClusterRoleBinding"
        ]
        kubectl("delete", "--ignore-not-found", "--wait=false", *bindings)
        kubectl("delete", "--ignore-not-found", "--wait=false", f"namespace/{self.namespace}")

    def restart(self) -> None:
        """Roll its Deployment."""
        kubectl("-n", self.namespace, "rollout", "restart", f"deployment/{OPERATOR}")

    def wait_ready(self) -> None:
        """Wait until the Deployment is complete: then the new pod alone runs."""
        kubectl(
            *("-n", self.namespace, "rollout", "status", f"deployment/{OPERATOR}"),
            f"--timeout={_OPERATOR_SECONDS}s",
        )

    def scale(self, replicas: int) -> None:
        """Let it be gone (0) or there."""
        kubectl(
            *("-n", self.namespace, "scale", f"deployment/{OPERATOR}"), f"--replicas={replicas}"
        )
        if replicas:
            self.wait_ready()
        else:
            wait_until(lambda: not self.pods(), 60, "the operator to be gone")

    def pods(self) -> list[str]:
        """Return the names of its pods."""
        selector = f"app.kubernetes.io/name={OPERATOR}"
        items = get(self.namespace, "pods", "-l", selector).get("items", [])
        return [item["metadata"]["name"] for item in items]

    def restarts(self) -> dict[str, int]:
        """Return how often the container of each of its pods was started again."""
        found = {name: get(self.namespace, "pod", name) for name in self.pods()}
        return {
            name: sum(each["restartCount"] for each in pod["status"]["containerStatuses"])
            for name, pod in found.items()
        }

    def kill(self) -> None:
        """End its pods without a word, as when their node dies; others are made."""
        names = [f"pod/{name}" for name in self.pods()]
        if names:
            kubectl(
                *("-n", self.namespace, "delete", "--grace-period=0", "--force", "--wait=false"),
                "--ignore-not-found",
                *names,
            )

    def logs(self, since_seconds: int = 600) -> str:
        """Return what it said lately."""
        return kubectl(
            *("-n", self.namespace, "logs", f"deployment/{OPERATOR}", f"--since={since_seconds}s"),
            check=False,
        )

    def metrics(self) -> str:
        """Return its metrics, by way of the API server."""
        pod = self.pods()[0]
        return kubectl(
            "get", "--raw", f"/api/v1/namespaces/{self.namespace}/pods/{pod}:8080/proxy/metrics"
        )


class KubeLab:
    """The lab, where the cluster is one: components can be killed, and volumes are made by hand."""

    def __init__(self) -> None:
        self._command = os.environ.get("KUBELAB", "")

    @property
    def is_there(self) -> bool:
        return bool(self._command)

    def run(self, *arguments: str) -> None:
        """Run one of its verbs."""
        done = subprocess.run(
            [self._command, *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"kubelab {' '.join(arguments)}: {done.stderr}")

    def heal(self, node: str) -> None:
        """Bring a lost or cut node back, and wait until it takes pods.

        Its kubelet ends where the container runtime is slow to begin, and is started again.
        """
        for is_last in (False, True):
            self.run("heal", node)
            try:
                wait_until(lambda: _takes_pods(node), _NODE_SECONDS, f"{node} to be back")
            except TimeoutError:
                if is_last:
                    raise
            else:
                return

    def add_volumes(self, count: int) -> None:
        """See to it that so many volumes are free."""
        volumes = json.loads(kubectl("get", "pv", "-o", "json"))["items"]
        free = sum(
            each["status"].get("phase") == "Available"
            and each["spec"].get("storageClassName") == _LAB_CLASS
            for each in volumes
        )
        if free < count:
            self.run("volumes", str(count - free))

    def kill(self, component: str) -> None:
        """End a component of the control plane (apiserver, etcd, …) by SIGKILL."""
        self.run("kill", component)

    def start(self, component: str) -> None:
        """Start it again."""
        self.run("start", component)

    def wait_ready(self) -> None:
        """Wait until the API server answers."""
        wait_until(
            lambda: kubectl("get", "--raw", "/readyz", check=False).strip() == "ok",
            _CONTROL_PLANE_SECONDS,
            "the API server to be ready",
        )


def _takes_pods(node: str) -> bool:
    """Whether a node is ready, and not cordoned."""
    text = kubectl("get", "node", node, "--ignore-not-found", "-o", "json")
    found = json.loads(text or "{}")
    is_open = bool(found) and not {"taints", "unschedulable"} & found["spec"].keys()
    return is_open and condition(found).get("status") == "True"


def collect(namespace: str, test: str) -> Path:
    """Write objects, events and logs of a namespace into a folder of the test, and return it."""
    folder = ROOT / "build/end-to-end" / re.sub(r"[^\w.-]+", "_", test.partition(" (")[0])[-120:]
    directory = folder / namespace
    if directory.exists():
        return folder  # written when it failed; by now things are gone
    directory.mkdir(parents=True)
    kinds = "clusters,topics,consumergroups,sparkapplications,all,configmaps,pvc,pdb"
    wanted = {
        "objects.yaml": ["get", kinds, "-o", "yaml"],
        "pods.txt": ["get", "pods", "-o", "wide"],
        "events.txt": ["get", "events", "--sort-by=.lastTimestamp"],
    }
    for name, arguments in wanted.items():
        text = kubectl("-n", namespace, *arguments, check=False)
        (directory / name).write_text(text, encoding="utf-8")
    names = kubectl("-n", namespace, "get", "pods", "-o", "name", check=False).split()
    for name in names:
        for suffix, more in (("", []), ("-previous", ["--previous"])):
            text = kubectl("-n", namespace, "logs", name, "--tail=2000", *more, check=False)
            if text:
                path = directory / f"{name.partition('/')[2]}{suffix}.log"
                path.write_text(text, encoding="utf-8")
    return folder
