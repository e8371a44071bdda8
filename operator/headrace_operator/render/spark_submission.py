"""One attempt to run a SparkApplication: its names, labels, and values from the spec. Pure.

Pods carry the labels of the published API (`sparkoperator.k8s.io/app-name`, `spark-role`) but not
`launched-by-spark-operator`, by which the Kubeflow operator would adopt them.
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_operator.render.names import CLUSTER_LABEL, MANAGED_BY, fitted
from headrace_operator.resources.spark_generation import (
    generation_annotations,
    generation_arguments,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "APPLICATION_LABEL",
    "ATTEMPT_ANNOTATION",
    "EXECUTORS_ANNOTATION",
    "FAILURES_ANNOTATION",
    "FINGERPRINT_ANNOTATION",
    "OUR_CODE",
    "ROLE_LABEL",
    "SETTINGS_DIRECTORY",
    "SUBMISSION_LABEL",
    "UI_PORT",
    "Submission",
    "driver_name",
    "fingerprint",
    "has_pages",
    "is_ours",
    "is_resizable",
    "pages_port",
    "refusal_of",
    "service_name",
    "wanted_executors",
]

APPLICATION_LABEL = "sparkoperator.k8s.io/app-name"
SUBMISSION_LABEL = "sparkoperator.k8s.io/submission-id"
ROLE_LABEL = "spark-role"
#: State on the driver's pod, so that the operator needs no memory of its own.
FINGERPRINT_ANNOTATION = "headrace.dev/fingerprint"
ATTEMPT_ANNOTATION = "headrace.dev/attempt"
FAILURES_ANNOTATION = "headrace.dev/failures"
#: The wanted number of executors; the driver reads it through a downward API volume.
EXECUTORS_ANNOTATION = "headrace.dev/executors"

OUR_CODE = "local:///opt/headrace/"
METRICS_PORT = 8090
UI_PORT = 4040
SETTINGS_DIRECTORY = "/etc/headrace/spark"
#: Fields whose changes need no new driver.
_LIVE_FIELDS = ("suspend", "timeToLiveSeconds", "restartPolicy", "failureRetries", "retryInterval")


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One attempt to run an application. `failures`: short runs that failed in a row."""

    application: Mapping[str, Any]
    submission_id: str
    attempt: int
    failures: int = 0

    @property
    def spec(self) -> Mapping[str, Any]:
        """The application's spec."""
        spec: Mapping[str, Any] = self.application["spec"]
        return spec

    @property
    def name(self) -> str:
        """The application's name."""
        return str(self.application["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """The application's namespace."""
        return str(self.application["metadata"]["namespace"])

    @property
    def is_ours(self) -> bool:
        """Whether it is one of Headrace's own jobs."""
        return is_ours(self.application)

    @property
    def settings_name(self) -> str:
        """Name of the ConfigMap with Spark's settings."""
        return fitted(f"{self.name}-spark-settings")

    @property
    def service_account(self) -> str:
        """Name of the driver's ServiceAccount."""
        return str(self.role("driver").get("serviceAccount") or "spark")

    @property
    def spark_application_id(self) -> str:
        """Spark's own id of the attempt (`spark.app.id`)."""
        return f"spark-{self.submission_id.replace('-', '')}"

    @property
    def metrics_port(self) -> int:
        """Port of the driver's /metrics."""
        prometheus = (self.spec.get("monitoring") or {}).get("prometheus") or {}
        return int(prometheus.get("port") or METRICS_PORT)

    def role(self, name: str) -> Mapping[str, Any]:
        """Return `spec.driver` or `spec.executor`."""
        return self.spec.get(name) or {}

    def image(self, role: str) -> str:
        """Return the image of a role. The API refuses a pod without one, with a clear message."""
        return str(self.role(role).get("image") or self.spec.get("image") or "")

    def labels(self, role: str) -> dict[str, str]:
        """Return a pod's labels."""
        own = self.application["metadata"].get("labels") or {}
        cluster = {CLUSTER_LABEL: own[CLUSTER_LABEL]} if CLUSTER_LABEL in own else {}
        return {
            **(self.role(role).get("labels") or {}),
            "app.kubernetes.io/name": fitted(self.name),
            "app.kubernetes.io/part-of": "headrace",
            **MANAGED_BY,
            **cluster,
            APPLICATION_LABEL: self.name,
            SUBMISSION_LABEL: self.submission_id,
            ROLE_LABEL: role,
            "spark-app-selector": self.spark_application_id,
        }

    def driver_arguments(self) -> list[str]:
        """Return the arguments of the image's entrypoint.

        Headrace's own jobs run as Python with the JVM as its child: SIGTERM reaches the code that
        can stop between batches, and the exit status is the job's. Other applications are started
        by spark-submit, through the entrypoint of Spark's own images.
        """
        main = str(self.spec.get("mainApplicationFile") or "")
        arguments = [str(each) for each in self.spec.get("arguments") or []]
        arguments += generation_arguments(self.application)
        if self.is_ours:
            # -P: do not put the job's own folder first in the module path.
            return ["python", "-P", main.removeprefix("local://"), *arguments]
        main_class = ["--class", self.spec["mainClass"]] if self.spec.get("mainClass") else []
        return [
            "driver",
            *("--properties-file", f"{SETTINGS_DIRECTORY}/spark.properties"),
            *("--conf", "spark.driver.host=$(HEADRACE_POD_IP)"),
            *main_class,
            main,
            *arguments,
        ]


def is_ours(application: Mapping[str, Any]) -> bool:
    """Whether the application is one of Headrace's own jobs, which can be resized at runtime."""
    spec = application["spec"]
    main = str(spec.get("mainApplicationFile") or "")
    return spec.get("type") == "Python" and main.startswith(OUR_CODE)


def is_resizable(application: Mapping[str, Any]) -> bool:
    """Whether a running driver follows `executor.instances`; not if Spark itself decides."""
    dynamic = application["spec"].get("dynamicAllocation") or {}
    return is_ours(application) and not dynamic.get("enabled")


def driver_name(name: str) -> str:
    """Return the name of the driver's pod, as the Kubeflow operator does."""
    return fitted(f"{name}-driver")


def service_name(name: str) -> str:
    """Return the name of the driver's Service, as the Kubeflow operator does."""
    return fitted(f"{name}-ui-svc")


def has_pages(application: Mapping[str, Any]) -> bool:
    """Whether Spark's own pages are on, as they are unless the spec turns them off."""
    settings = application["spec"].get("sparkConf") or {}
    return str(settings.get("spark.ui.enabled", "true")).lower() != "false"


def pages_port(application: Mapping[str, Any]) -> int:
    """Return the Service's port of Spark's own pages."""
    options = application["spec"].get("sparkUIOptions") or {}
    return int(options.get("servicePort") or UI_PORT)


def wanted_executors(application: Mapping[str, Any]) -> int:
    """Return the number of executors in the spec."""
    executor = application["spec"].get("executor") or {}
    instances = executor.get("instances")
    return 1 if instances is None else int(instances)


def fingerprint(application: Mapping[str, Any]) -> str:
    """Return a fingerprint of all fields whose changes need a new driver."""
    spec = copy.deepcopy(dict(application["spec"]))
    for field in _LIVE_FIELDS:
        spec.pop(field, None)
    if is_ours(application):
        spec.get("executor", {}).pop("instances", None)
    spec |= generation_annotations(application)
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]


def refusal_of(application: Mapping[str, Any]) -> str:
    """Return the field that this runner cannot honour, and why; '' if there is none.

    To ignore such a field would change the application's meaning: data that cannot be read,
    progress that is lost, a driver where no user expects it.
    """
    spec = application["spec"]
    if spec.get("kerberos"):
        return (
            "spec.kerberos: nobody logs in to Kerberos here; mount the keytab (driver.secrets)"
            " and say it in sparkConf (spark.kerberos.keytab, spark.kerberos.principal)"
        )
    if spec.get("proxyUser"):
        return (
            f"spec.proxyUser: {spec['proxyUser']} is not impersonated here; without the field the"
            " job runs as its image's user, and reads and writes as that one"
        )
    if (spec.get("restartPolicy") or {}).get("recovery"):
        return (
            "spec.restartPolicy.recovery: there is no recovery agent here; a job resumes from its"
            " checkpoint"
        )
    if spec.get("mode", "cluster") != "cluster":
        return f"spec.mode: {spec['mode']} is not run, only cluster"
    try:
        generation_arguments(application)
    except ValueError as error:
        return str(error)
    return ""
