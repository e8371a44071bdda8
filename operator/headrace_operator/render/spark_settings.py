"""Spark's own settings for one attempt, as the file that spark-submit reads. Pure.

The application's settings override the runner's defaults, but not the settings that identify this
driver: its master, its namespace, its pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_operator.render.names import fitted
from headrace_operator.render.spark_pods import (
    BLOCK_MANAGER_PORT,
    DRIVER_PORT,
    EXECUTOR_CONTAINER,
    overhead_factor,
)
from headrace_operator.render.spark_submission import (
    OUR_CODE,
    SETTINGS_DIRECTORY,
    driver_name,
    wanted_executors,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_operator.render.spark_submission import Submission

__all__ = ["render_properties", "spark_settings"]

LOG4J = "file:///opt/headrace/headrace_jobs/log4j2.properties"
#: Made by images/share_classes.py. An archive that does not match, or is missing, is ignored.
CLASS_PATH = "/opt/headrace/classpath.jar"
CLASS_ARCHIVE = "/opt/headrace/classes.jsa"
KUBERNETES_MASTER = "https://kubernetes.default.svc"
#: Spark appends `-exec-<number>`, and a pod's host name has 63 characters.
_EXECUTOR_PREFIX_MAX = 47


def render_properties(settings: Mapping[str, str]) -> str:
    """Write a Java properties file (java.util.Properties.load)."""
    return "".join(
        f"{_escaped(key, ' :=#!')} {_escaped(value, '')}\n"
        for key, value in sorted(settings.items())
    )


def _escaped(text: str, special: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    for character in special:
        escaped = escaped.replace(character, f"\\{character}")
    # A leading space, '=' or ':' in a value would be taken for the separator.
    return f"\\{escaped}" if not special and escaped[:1] in (" ", "=", ":") else escaped


def spark_settings(submission: Submission) -> dict[str, str]:
    """Return all settings of an attempt except the driver's address, which only its pod knows."""
    spec, driver = submission.spec, submission.role("driver")
    executor = submission.role("executor")
    given = {str(key): str(value) for key, value in (spec.get("sparkConf") or {}).items()}
    given |= {f"spark.hadoop.{key}": str(v) for key, v in (spec.get("hadoopConf") or {}).items()}
    settings = {
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": driver.get("memory"),
        "spark.executor.cores": executor.get("cores"),
        "spark.executor.memory": executor.get("memory"),
        "spark.executor.memoryOverhead": executor.get("memoryOverhead"),
        "spark.executor.memoryOverheadFactor": overhead_factor(spec),
        "spark.executor.instances": wanted_executors(submission.application),
        "spark.kubernetes.executor.request.cores": executor.get("coreRequest"),
        "spark.kubernetes.executor.limit.cores": executor.get("coreLimit"),
        "spark.kubernetes.executor.deleteOnTermination": executor.get("deleteOnTermination", True),
        "spark.kubernetes.container.image.pullPolicy": spec.get("imagePullPolicy", "IfNotPresent"),
        "spark.kubernetes.container.image.pullSecrets": ",".join(
            spec.get("imagePullSecrets") or []
        ),
        # Spark watches its executors, and polls this often where the watch fails. An executor that
        # registers and goes between two polls counts for ever as one that starts: no life is as
        # short as that. One that did not register is waited for, by default ten minutes.
        "spark.kubernetes.executor.apiPollingInterval": "3s",
        "spark.kubernetes.allocation.executor.timeout": "60s",
        # A stream is planned while its executors start, not after that.
        "spark.scheduler.minRegisteredResourcesRatio": "0",
        **_dependencies(spec),
        **_dynamic_allocation(spec),
        **given,
        **_java_options(submission, given),
        **_class_paths(submission, given),
        **_identity(submission),
    }
    return {key: _text(value) for key, value in settings.items() if value not in (None, "")}


def _identity(submission: Submission) -> dict[str, Any]:
    """Return the settings that identify this driver; the application cannot override them."""
    master = submission.role("driver").get("kubernetesMaster") or KUBERNETES_MASTER
    prefix = fitted(f"{submission.name}-{submission.submission_id[:8]}", _EXECUTOR_PREFIX_MAX)
    return {
        "spark.master": f"k8s://{master}",
        "spark.submit.deployMode": "client",
        "spark.app.name": submission.name,
        "spark.app.id": submission.spark_application_id,
        "spark.driver.port": DRIVER_PORT,
        "spark.driver.blockManager.port": BLOCK_MANAGER_PORT,
        "spark.kubernetes.namespace": submission.namespace,
        # The driver's pod owns its executors: none of them outlives it.
        "spark.kubernetes.driver.pod.name": driver_name(submission.name),
        "spark.kubernetes.executor.podNamePrefix": prefix,
        "spark.kubernetes.executor.container.image": submission.image("executor"),
        "spark.kubernetes.executor.podTemplateFile": f"{SETTINGS_DIRECTORY}/executor.yaml",
        "spark.kubernetes.executor.podTemplateContainerName": EXECUTOR_CONTAINER,
        # Spark must not delete it: the application owns it, also for the next attempt.
        "spark.kubernetes.driver.service.deleteOnTermination": False,
    }


def _dependencies(spec: Mapping[str, Any]) -> dict[str, str]:
    deps = spec.get("deps") or {}
    # Headrace's jars are on the class path of the image.
    jars = [jar for jar in deps.get("jars") or [] if not jar.startswith(f"{OUR_CODE}jars/")]
    named = {
        "spark.jars": jars,
        "spark.files": deps.get("files"),
        "spark.archives": deps.get("archives"),
        "spark.submit.pyFiles": deps.get("pyFiles"),
        "spark.jars.packages": deps.get("packages"),
        "spark.jars.excludes": deps.get("excludePackages"),
        "spark.jars.repositories": deps.get("repositories"),
    }
    return {key: ",".join(values) for key, values in named.items() if values}


def _dynamic_allocation(spec: Mapping[str, Any]) -> dict[str, Any]:
    dynamic = spec.get("dynamicAllocation") or {}
    if not dynamic.get("enabled"):
        return {}
    timeout = dynamic.get("shuffleTrackingTimeout")
    prefix = "spark.dynamicAllocation"
    return {
        f"{prefix}.enabled": True,
        f"{prefix}.shuffleTracking.enabled": True,
        f"{prefix}.initialExecutors": dynamic.get("initialExecutors"),
        f"{prefix}.minExecutors": dynamic.get("minExecutors"),
        f"{prefix}.maxExecutors": dynamic.get("maxExecutors"),
        f"{prefix}.shuffleTracking.timeout": None if timeout is None else f"{timeout}ms",
    }


def _java_options(submission: Submission, given: Mapping[str, str]) -> dict[str, str]:
    """Join options: the image's logging, then those of sparkConf, then of the role."""
    joined = {}
    for role in ("driver", "executor"):
        key = f"spark.{role}.extraJavaOptions"
        ours = f"-Dlog4j2.configurationFile={LOG4J} -XX:SharedArchiveFile={CLASS_ARCHIVE}"
        parts = (
            ours if submission.is_ours else "",
            given.get(key, ""),
            submission.role(role).get("javaOptions") or "",
        )
        joined[key] = " ".join(part for part in parts if part)
    return joined


def _class_paths(submission: Submission, given: Mapping[str, str]) -> dict[str, str]:
    """Put the jar for shared classes first; jars from sparkConf come after it."""
    keys = [f"spark.{role}.extraClassPath" for role in ("driver", "executor")]
    if not submission.is_ours:
        return {}
    return {key: ":".join(filter(None, (CLASS_PATH, given.get(key)))) for key in keys}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
