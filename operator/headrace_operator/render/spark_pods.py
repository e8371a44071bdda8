"""The pod of a driver, and Spark's template for executors. Pure.

Both are made from the same fields (`SparkPodSpec` of the published API). A pod is restricted by
default (Pod Security `restricted`); the application's security fields override that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_operator.render.overlay import laid_over
from headrace_operator.render.spark_submission import SETTINGS_DIRECTORY, UI_PORT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_operator.render.spark_submission import Submission

__all__ = [
    "driver_pod_spec",
    "executor_template",
    "memory_mebibytes",
    "overhead_factor",
]

DRIVER_CONTAINER = "spark-kubernetes-driver"
EXECUTOR_CONTAINER = "spark-kubernetes-executor"
POD_DIRECTORY = "/etc/headrace/pod"
#: The user in Spark's own images, and in Headrace's.
GROUP_ID = 185
#: The time for a running batch (the jobs' --stop-timeout is 20 s) and for the session to stop.
GRACE_SECONDS = 45
DRIVER_PORT, BLOCK_MANAGER_PORT = 7078, 7079

#: How long a node may be lost before Kubernetes gives up drivers and executors on it.
LOST_NODE_TOLERATED_SECONDS = 30
_LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")

# Executors connect to the address that the driver is bound to, which Spark announces. So they need
# not resolve a name that did not exist a moment ago.
ADDRESS_SETTINGS = (
    "--conf spark.driver.host=$(HEADRACE_POD_IP) --conf spark.driver.bindAddress=$(HEADRACE_POD_IP)"
)
_MEBIBYTES = {"k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0**2}
_OVERHEAD_MEBIBYTES_MIN = 384
#: Fields of a PodSpec that have the same name and form in the application.
_SAME_FIELDS = (
    "affinity",
    "dnsConfig",
    "hostAliases",
    "hostNetwork",
    "initContainers",
    "nodeSelector",
    "priorityClassName",
    "schedulerName",
    "shareProcessNamespace",
    "tolerations",
)


def driver_pod_spec(submission: Submission) -> dict[str, Any]:
    """Return the PodSpec of the driver. The pod is never restarted: each attempt is a new pod."""
    spec, driver = submission.spec, submission.role("driver")
    container = {
        "name": DRIVER_CONTAINER,
        "image": submission.image("driver"),
        "args": submission.driver_arguments(),
        "env": [*_driver_environment(submission), *_environment(driver)],
        "resources": _driver_resources(spec, driver),
        "ports": [
            _port("driver-rpc", DRIVER_PORT),
            _port("blockmanager", BLOCK_MANAGER_PORT),
            _port("ui", UI_PORT),
            _port("metrics", submission.metrics_port),
        ],
        # The last output of a failed driver becomes the application's error message.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    pod = _pod(submission, "driver", container)
    pod |= {
        "restartPolicy": "Never",
        "serviceAccountName": submission.service_account,
        "terminationGracePeriodSeconds": driver.get("terminationGracePeriodSeconds", GRACE_SECONDS),
    }
    pod["volumes"] += [
        {"name": "headrace-settings", "configMap": {"name": submission.settings_name}},
        {
            "name": "headrace-pod",
            "downwardAPI": {
                "items": [
                    {
                        "path": "executors",
                        "fieldRef": {"fieldPath": "metadata.annotations['headrace.dev/executors']"},
                    }
                ]
            },
        },
    ]
    pod["containers"][0]["volumeMounts"] += [
        {"name": "headrace-settings", "mountPath": SETTINGS_DIRECTORY, "readOnly": True},
        {"name": "headrace-pod", "mountPath": POD_DIRECTORY, "readOnly": True},
    ]
    complete: dict[str, Any] = laid_over(pod, _template(driver, DRIVER_CONTAINER))
    policy = (spec.get("restartPolicy") or {}).get("type", "Never")
    # One that nobody would start again had better wait for its node to be back.
    return complete if policy == "Never" else _leaving_lost_nodes(complete)


def executor_template(submission: Submission) -> dict[str, Any]:
    """Return the pod that Spark completes for each executor (image, command, resources, names)."""
    executor = submission.role("executor")
    container: dict[str, Any] = {"name": EXECUTOR_CONTAINER, "env": _environment(executor)}
    if executor.get("gpu"):
        # Spark adds cores and memory to these.
        container["resources"] = {"limits": _gpu(executor)}
    pod = _pod(submission, "executor", container)
    # Executors talk to their driver and to brokers, never to the Kubernetes API.
    pod["automountServiceAccountToken"] = False
    if executor.get("serviceAccount"):
        pod["serviceAccountName"] = executor["serviceAccount"]
    if "terminationGracePeriodSeconds" in executor:
        pod["terminationGracePeriodSeconds"] = executor["terminationGracePeriodSeconds"]
    template = executor.get("template") or {}
    labels = {**(template.get("metadata", {}).get("labels") or {}), **submission.labels("executor")}
    annotations = {
        **(template.get("metadata", {}).get("annotations") or {}),
        **(executor.get("annotations") or {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": _leaving_lost_nodes(laid_over(pod, _template(executor, EXECUTOR_CONTAINER))),
    }


def _leaving_lost_nodes(pod: dict[str, Any]) -> dict[str, Any]:
    """Let Kubernetes give a pod up soon after its node is lost, unless the application says when.

    What Kubernetes adds to pods that say nothing is 300 s.
    """
    given = pod.get("tolerations") or []
    missing = [key for key in _LOST_NODE_TAINTS if not any(_covers(each, key) for each in given)]
    ours = [
        {
            "key": key,
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": LOST_NODE_TOLERATED_SECONDS,
        }
        for key in missing
    ]
    return pod | {"tolerations": [*given, *ours]} if ours else pod


def _covers(toleration: Mapping[str, Any], key: str) -> bool:
    """Whether it says how long a pod stays on a node that is evicted from by the taint."""
    is_for_all = not toleration.get("key") and toleration.get("operator") == "Exists"
    is_evicting = toleration.get("effect") in (None, "", "NoExecute")
    return is_evicting and (is_for_all or toleration.get("key") == key)


def memory_mebibytes(text: str) -> int:
    """Parse an amount of memory in the JVM's format: `512m`, `1g`, and MiB without a unit."""
    unit = text.lower().removesuffix("ib").removesuffix("b").lstrip("0123456789.")
    number = float(text[: len(text) - len(text.lstrip("0123456789."))])
    return int(number * _MEBIBYTES.get(unit or "m", 1.0))


def overhead_factor(spec: Mapping[str, Any]) -> float:
    """Return the share of memory outside of the JVM's heap: more if Python runs beside it."""
    given = spec.get("memoryOverheadFactor")
    if given is not None:
        return float(given)
    return 0.4 if spec.get("type") in ("Python", "R") else 0.1


def _pod(submission: Submission, role_name: str, container: dict[str, Any]) -> dict[str, Any]:
    spec, role = submission.spec, submission.role(role_name)
    security: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    if submission.is_ours:
        security["readOnlyRootFilesystem"] = True
    volumes, mounts = _files(spec, role)
    container |= {
        "imagePullPolicy": spec.get("imagePullPolicy", "IfNotPresent"),
        "securityContext": laid_over(security, role.get("securityContext") or {}),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *mounts],  # noqa: S108 - the pod's own
    }
    for field in ("envFrom", "lifecycle"):
        if role.get(field):
            container[field] = role[field]
    if role.get("ports"):
        container["ports"] = [*container.get("ports", []), *role["ports"]]
    restricted = {
        "runAsNonRoot": True,
        "fsGroup": GROUP_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    pod: dict[str, Any] = {
        "enableServiceLinks": False,
        "securityContext": laid_over(restricted, role.get("podSecurityContext") or {}),
        "containers": [container, *(role.get("sidecars") or [])],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *volumes],
    }
    if spec.get("nodeSelector"):
        pod["nodeSelector"] = spec["nodeSelector"]
    if spec.get("imagePullSecrets"):
        pod["imagePullSecrets"] = [{"name": name} for name in spec["imagePullSecrets"]]
    return pod | {field: role[field] for field in _SAME_FIELDS if role.get(field)}


def _template(role: Mapping[str, Any], container: str) -> dict[str, Any]:
    """Return the user's template; its first container is Spark's if none has Spark's name."""
    pod = dict((role.get("template") or {}).get("spec") or {})
    containers = [dict(each) for each in pod.get("containers") or []]
    if containers and container not in {each.get("name") for each in containers}:
        containers[0]["name"] = container
    return pod | ({"containers": containers} if containers else {})


def _files(
    spec: Mapping[str, Any], role: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return volumes and mounts: those of the application, ConfigMaps and Secrets by name."""
    volumes = list(spec.get("volumes") or [])
    mounts = list(role.get("volumeMounts") or [])
    used = {each["name"] for each in mounts}
    for name, path in (
        (spec.get("sparkConfigMap"), "/etc/spark/conf"),
        (spec.get("hadoopConfigMap"), "/etc/hadoop/conf"),
        *((each["name"], each["path"]) for each in role.get("configMaps") or []),
    ):
        if name:
            volumes.append({"name": f"{name}-vol", "configMap": {"name": name}})
            mounts.append({"name": f"{name}-vol", "mountPath": path})
            used.add(f"{name}-vol")
    for each in role.get("secrets") or []:
        name = f"{each['name']}-vol"
        volumes.append({"name": name, "secret": {"secretName": each["name"]}})
        mounts.append({"name": name, "mountPath": each["path"]})
        used.add(name)
    for each in [*(role.get("initContainers") or []), *(role.get("sidecars") or [])]:
        used |= {mount["name"] for mount in each.get("volumeMounts") or []}
    return [volume for volume in volumes if volume["name"] in used], mounts


def _environment(role: Mapping[str, Any]) -> list[dict[str, Any]]:
    secrets = role.get("envSecretKeyRefs") or {}
    return [
        *(role.get("env") or []),
        *({"name": name, "value": value} for name, value in (role.get("envVars") or {}).items()),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": ref["name"], "key": ref["key"]}}}
            for name, ref in secrets.items()
        ),
    ]


def _driver_environment(submission: Submission) -> list[dict[str, Any]]:
    values = {
        "SPARK_DRIVER_BIND_ADDRESS": "$(HEADRACE_POD_IP)",
        "PYSPARK_SUBMIT_ARGS": (
            f"--properties-file {SETTINGS_DIRECTORY}/spark.properties"
            f" {ADDRESS_SETTINGS} pyspark-shell"
        ),
        "SPARK_LOCAL_DIRS": "/tmp/spark",  # noqa: S108 - the pod's own
        "SPARK_APPLICATION_ID": submission.spark_application_id,
        "HEADRACE_JOB_NAME": submission.name,
        "HEADRACE_METRICS_ADDRESS": "0.0.0.0",  # noqa: S104 - Prometheus comes from other pods
        "HEADRACE_METRICS_PORT": str(submission.metrics_port),
        "HEADRACE_EXECUTORS_FILE": f"{POD_DIRECTORY}/executors",
    }
    if submission.spec.get("sparkConfigMap"):
        values["SPARK_CONF_DIR"] = "/etc/spark/conf"
    if submission.spec.get("hadoopConfigMap"):
        values["HADOOP_CONF_DIR"] = "/etc/hadoop/conf"
    address = {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}
    return [
        # Other objects refer to it, so it comes first.
        {"name": "HEADRACE_POD_IP", "valueFrom": address},
        *({"name": name, "value": value} for name, value in values.items()),
    ]


def _driver_resources(spec: Mapping[str, Any], driver: Mapping[str, Any]) -> dict[str, Any]:
    heap = memory_mebibytes(str(driver.get("memory") or "1g"))
    overhead = driver.get("memoryOverhead")
    beside = (
        memory_mebibytes(str(overhead))
        if overhead
        else max(_OVERHEAD_MEBIBYTES_MIN, int(heap * overhead_factor(spec)))
    )
    memory = f"{heap + beside}Mi"
    limits: dict[str, Any] = {"memory": memory}
    if driver.get("coreLimit"):
        limits["cpu"] = str(driver["coreLimit"])
    limits |= _gpu(driver)
    cpu = str(driver.get("coreRequest") or driver.get("cores") or 1)
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": limits}


def _gpu(role: Mapping[str, Any]) -> dict[str, Any]:
    gpu = role.get("gpu")
    return {gpu["name"]: gpu["quantity"]} if gpu else {}


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "containerPort": number, "protocol": "TCP"}
