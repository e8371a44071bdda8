"""Turns a SparkApplication into the objects of one attempt to run it. Pure.

The driver is Headrace's own pod in Spark's client mode; Spark's Kubernetes scheduler, in the
driver, creates the executors. That saves the JVM that submits, and restarts, stops and resizes only
concern the driver's pod. The application owns everything, and the driver's pod owns the executors:
deleting the application deletes all of it, with or without an operator.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace_operator.render.names import MANAGED_BY
from headrace_operator.render.spark_pods import driver_pod_spec, executor_template
from headrace_operator.render.spark_settings import render_properties, spark_settings
from headrace_operator.render.spark_submission import (
    APPLICATION_LABEL,
    ATTEMPT_ANNOTATION,
    EXECUTORS_ANNOTATION,
    FAILURES_ANNOTATION,
    FINGERPRINT_ANNOTATION,
    ROLE_LABEL,
    driver_name,
    fingerprint,
    pages_port,
    service_name,
    wanted_executors,
)
from headrace_operator.resources import SPARK_API_VERSION

if TYPE_CHECKING:
    from headrace_operator.render.spark_submission import Submission

__all__ = ["render_access", "render_submission"]


def render_submission(submission: Submission) -> tuple[dict[str, Any], ...]:
    """Return an attempt's objects, in the order of creation: the driver's pod is last."""
    return (_settings(submission), _service(submission), _driver(submission))


def render_access(submission: Submission) -> tuple[dict[str, Any], ...]:
    """Return the driver's ServiceAccount with only the permissions of Spark's scheduler.

    Several applications share it: each adds itself as an owner (with a separate field manager), and
    the garbage collector deletes it after the last one.
    """
    name = submission.service_account
    verbs = ["create", "get", "list", "watch", "delete", "deletecollection", "patch"]
    rules = [
        # Executors, the ConfigMap with their settings, and (asked for in listings) volume claims.
        {"apiGroups": [""], "resources": ["pods", "configmaps"], "verbs": verbs},
        {
            "apiGroups": [""],
            "resources": ["persistentvolumeclaims"],
            "verbs": ["list", "deletecollection"],
        },
    ]
    subject = {"kind": "ServiceAccount", "name": name, "namespace": submission.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": f"headrace-{name}"}
    rbac = "rbac.authorization.k8s.io/v1"
    binding = {"subjects": [subject], "roleRef": role}
    return (
        _object(submission, "v1", "ServiceAccount", name, is_controlled=False),
        _object(submission, rbac, "Role", role["name"], is_controlled=False) | {"rules": rules},
        _object(submission, rbac, "RoleBinding", role["name"], is_controlled=False) | binding,
    )


def _driver(submission: Submission) -> dict[str, Any]:
    driver = submission.role("driver")
    metadata = (driver.get("template") or {}).get("metadata") or {}
    pod = _object(submission, "v1", "Pod", driver_name(submission.name))
    pod["metadata"]["labels"] = {**(metadata.get("labels") or {}), **submission.labels("driver")}
    pod["metadata"]["annotations"] = {
        **(metadata.get("annotations") or {}),
        **(driver.get("annotations") or {}),
        **_scrape_annotations(submission),
        FINGERPRINT_ANNOTATION: fingerprint(submission.application),
        ATTEMPT_ANNOTATION: str(submission.attempt),
        FAILURES_ANNOTATION: str(submission.failures),
        EXECUTORS_ANNOTATION: str(wanted_executors(submission.application)),
    }
    return pod | {"spec": driver_pod_spec(submission)}


def _scrape_annotations(submission: Submission) -> dict[str, str]:
    if not (submission.spec.get("monitoring") or {}).get("exposeDriverMetrics"):
        return {}
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(submission.metrics_port),
        "prometheus.io/path": "/metrics",
    }


def _service(submission: Submission) -> dict[str, Any]:
    driver, options = submission.role("driver"), submission.spec.get("sparkUIOptions") or {}
    service = _object(submission, "v1", "Service", service_name(submission.name))
    service["metadata"]["labels"] |= driver.get("serviceLabels") or {}
    service["metadata"]["labels"] |= options.get("serviceLabels") or {}
    annotations = {
        **(driver.get("serviceAnnotations") or {}),
        **(options.get("serviceAnnotations") or {}),
    }
    if annotations:
        service["metadata"]["annotations"] = annotations
    ui_port = pages_port(submission.application)
    ui_name = options.get("servicePortName") or "spark-driver-ui-port"
    ports = [
        {"name": ui_name, "port": ui_port, "targetPort": "ui", "protocol": "TCP"},
        {
            "name": "metrics",
            "port": submission.metrics_port,
            "targetPort": "metrics",
            "protocol": "TCP",
        },
    ]
    return service | {
        "spec": {
            "type": options.get("serviceType") or "ClusterIP",
            "selector": {APPLICATION_LABEL: submission.name, ROLE_LABEL: "driver"},
            "ports": ports,
        }
    }


def _settings(submission: Submission) -> dict[str, Any]:
    template = json.dumps(executor_template(submission), indent=1, sort_keys=True)
    return _object(submission, "v1", "ConfigMap", submission.settings_name) | {
        "data": {
            "spark.properties": render_properties(spark_settings(submission)),
            # A subset of YAML: JSON needs no care about quotes.
            "executor.yaml": template + "\n",
        }
    }


def _object(
    submission: Submission, api_version: str, kind: str, name: str, *, is_controlled: bool = True
) -> dict[str, Any]:
    """Return an object that the garbage collector deletes with the application."""
    metadata = submission.application["metadata"]
    owner = {
        "apiVersion": SPARK_API_VERSION,
        "kind": "SparkApplication",
        "name": submission.name,
        "uid": metadata["uid"],
    }
    labels = {"app.kubernetes.io/part-of": "headrace", **MANAGED_BY}
    if is_controlled:
        labels[APPLICATION_LABEL] = submission.name
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": submission.namespace,
            "labels": labels,
            "ownerReferences": [owner | ({"controller": True} if is_controlled else {})],
        },
    }
