"""Other projects' resources that Headrace runs: typed as far as needed, whole in `document`.

`SparkApplication` is the Kubeflow Spark operator's (`sparkoperator.k8s.io/v1beta2`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace_operator.resources.common import Object, Spec

SPARK_API_VERSION = "sparkoperator.k8s.io/v1beta2"


class EnvironmentVariable(Spec, frozen=True, kw_only=True):
    """core/v1 EnvVar; `valueFrom` stays in the document."""

    name: str
    value: str = ""


class SparkPod(Spec, frozen=True, kw_only=True):
    """Driver or executor."""

    cores: int | None = None
    core_limit: str | None = None
    memory: str | None = None
    memory_overhead: str | None = None
    instances: int | None = None
    service_account: str | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    env: tuple[EnvironmentVariable, ...] = ()


class SparkDependencies(Spec, frozen=True, kw_only=True):
    """What spark-submit adds to the class path and the Python path."""

    jars: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    py_files: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


class RestartPolicy(Spec, frozen=True, kw_only=True):
    """When the application is restarted. Intervals are seconds."""

    type: str = "Never"
    on_failure_retries: int | None = None
    on_failure_retry_interval: int | None = None
    on_submission_failure_retries: int | None = None
    on_submission_failure_retry_interval: int | None = None


class SparkApplicationSpec(Spec, frozen=True, kw_only=True):
    """The spec of an application run by spark-submit."""

    type: str
    spark_version: str = ""
    python_version: str = "3"
    mode: str = "cluster"
    image: str | None = None
    main_class: str | None = None
    main_application_file: str | None = None
    arguments: tuple[str, ...] = ()
    spark_conf: dict[str, str] = msgspec.field(default_factory=dict)
    hadoop_conf: dict[str, str] = msgspec.field(default_factory=dict)
    deps: SparkDependencies = SparkDependencies()
    restart_policy: RestartPolicy = RestartPolicy()
    driver: SparkPod = SparkPod()
    executor: SparkPod = SparkPod()
    suspend: bool = False


class SparkApplication(Object, frozen=True, kw_only=True):
    """A Spark application."""

    spec: SparkApplicationSpec
    status: dict[str, Any] = msgspec.field(default_factory=dict)


class ContainerPort(Spec, frozen=True, kw_only=True):
    """A port that a container listens on."""

    container_port: int
    name: str = ""


class Container(Spec, frozen=True, kw_only=True):
    """One container of a pod."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[EnvironmentVariable, ...] = ()
    ports: tuple[ContainerPort, ...] = ()


class PodSpec(Spec, frozen=True, kw_only=True):
    """The fields of a PodSpec that a local process needs."""

    containers: tuple[Container, ...] = ()


class PodTemplateSpec(Spec, frozen=True, kw_only=True):
    """A Deployment's pod."""

    spec: PodSpec = PodSpec()


class DeploymentSpec(Spec, frozen=True, kw_only=True):
    """The pod template and the number of replicas."""

    template: PodTemplateSpec
    replicas: int = 1


class Deployment(Object, frozen=True, kw_only=True):
    """apps/v1 Deployment."""

    spec: DeploymentSpec
