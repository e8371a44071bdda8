"""What the Kubeflow operator's published examples ask for: rendered, or refused by field.

The manifests are our own. Each asks for what one of the examples (`examples/*.yaml` there) does.
"""

import asyncio
from typing import Any

import pytest

from headrace_operator.kubernetes.api.cache import Store
from headrace_operator.kubernetes.spark.applications import SparkRunner
from headrace_operator.render.spark import render_submission
from headrace_operator.render.spark_fields import ignored_fields
from headrace_operator.render.spark_submission import refusal_of
from support.spark_world import application, submission

SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 185,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
PI: dict[str, Any] = {
    "type": "Scala",
    "image": "docker.io/apache/spark:4.0.4",
    "mainClass": "org.apache.spark.examples.SparkPi",
    "mainApplicationFile": "local:///opt/spark/examples/jars/spark-examples.jar",
    "driver": {"cores": 1, "memory": "512m", "securityContext": SECURITY},
    "executor": {"instances": 1, "cores": 1, "memory": "512m", "securityContext": SECURITY},
}
VOLUME = {"name": "scratch", "mountPath": "/scratch"}
TEMPLATE = {
    "metadata": {"labels": {"team": "a"}},
    "spec": {
        "containers": [
            {
                "name": "spark-kubernetes-driver",
                "env": [{"name": "A", "value": "b"}],
                "envFrom": [{"configMapRef": {"name": "settings"}}],
            }
        ],
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
    },
}
RUN: dict[str, dict[str, Any]] = {
    "pi": {"arguments": ["5000"], "nodeSelector": {"kubernetes.io/os": "linux"}},
    "python": {
        "type": "Python",
        "pythonVersion": "3",
        "mainApplicationFile": "local:///opt/spark/examples/src/main/python/pi.py",
        "mainClass": None,
    },
    "python files": {
        "type": "Python",
        "mainApplicationFile": "local:///opt/spark/examples/main.py",
        "deps": {"pyFiles": ["local:///opt/spark/examples/py_container.py"]},
    },
    "config map": {"driver": {**PI["driver"], "configMaps": [{"name": "settings", "path": "/s"}]}},
    "empty directory": {
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}],
        "driver": {**PI["driver"], "volumeMounts": [VOLUME]},
    },
    "a directory of the node": {
        "volumes": [{"name": "scratch", "hostPath": {"path": "/scratch", "type": "Directory"}}],
        "executor": {**PI["executor"], "volumeMounts": [VOLUME]},
    },
    "dynamic allocation": {
        "dynamicAllocation": {
            "enabled": True,
            "initialExecutors": 2,
            "minExecutors": 1,
            "maxExecutors": 5,
        }
    },
    "another scheduler of pods": {"driver": {**PI["driver"], "schedulerName": "my-scheduler"}},
    "pod template": {
        "driver": {"cores": 1, "coreLimit": "1", "memory": "512m", "template": TEMPLATE}
    },
    "prometheus servlet": {
        "sparkConf": {
            "spark.ui.prometheus.enabled": "true",
            "spark.executor.processTreeMetrics.enabled": "true",
        }
    },
    "time to live": {"timeToLiveSeconds": 30},
    "restarts": {
        "restartPolicy": {
            "type": "OnFailure",
            "onFailureRetries": 3,
            "onFailureRetryInterval": 10,
            "onSubmissionFailureRetries": 5,
            "onSubmissionFailureRetryInterval": 20,
        }
    },
}
IGNORED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "volcano": ({"batchScheduler": "volcano"}, ["spec.batchScheduler"]),
    "yunikorn": (
        {"batchScheduler": "yunikorn", "batchSchedulerOptions": {"queue": "root.default"}},
        ["spec.batchScheduler", "spec.batchSchedulerOptions"],
    ),
    "workloads": (
        {"batchScheduler": "workload", "batchSchedulerOptions": {"minMember": 2}},
        ["spec.batchScheduler", "spec.batchSchedulerOptions"],
    ),
    "prometheus by JMX": (
        {
            "monitoring": {
                "exposeDriverMetrics": True,
                "prometheus": {"jmxExporterJar": "/prometheus/agent.jar", "port": 8090},
            }
        },
        ["spec.monitoring.prometheus.jmxExporterJar"],
    ),
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "kerberos": (
        {"kerberos": {"principal": "a@EXAMPLE.COM", "keytabSecret": "keytab"}},
        "spec.kerberos: ",
    ),
    "fenced restart": (
        {"restartPolicy": {"type": "OnFailure", "recovery": {"storeProfile": "default"}}},
        "spec.restartPolicy.recovery: ",
    ),
    "another user": ({"proxyUser": "alice"}, "spec.proxyUser: alice "),
    "client mode": ({"mode": "client"}, "spec.mode: client"),
}


@pytest.mark.parametrize("name", RUN)
def test_it_is_rendered_unchanged(name: str) -> None:
    asked = application(**{**PI, **RUN[name]})
    assert not refusal_of(asked)
    assert not ignored_fields(asked)
    *_, driver = render_submission(submission(asked))
    assert driver["kind"] == "Pod"
    assert driver["spec"]["containers"][0]["image"] == PI["image"]


@pytest.mark.parametrize("name", IGNORED)
def test_it_is_rendered_and_an_event_names_what_is_not_done(name: str) -> None:
    asked, fields = IGNORED[name]
    found = application(**{**PI, **asked})
    assert not refusal_of(found)
    assert ignored_fields(found) == fields
    assert render_submission(submission(found))


class Recorded:
    """What the runner asks of a client, for an application that gets no further."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []
        self.events: list[str] = []

    async def get(self, _version: str, kind: str, *_: Any) -> dict[str, Any]:
        labels = {"app.kubernetes.io/managed-by": "headrace"}
        return {"kind": kind, "metadata": {"labels": labels}}

    async def list(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        return []

    async def apply_status(self, body: dict[str, Any]) -> dict[str, Any]:
        self.written.append(body)
        return {**body, "metadata": {**body["metadata"], "resourceVersion": "2"}}

    async def event(self, *_: Any, message: str, **__: Any) -> None:
        self.events.append(message)


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_field_and_reason_and_no_pod_is_made(name: str) -> None:
    asked, reason = REFUSED[name]
    client = Recorded()
    runner = SparkRunner(client, Store())  # type: ignore[arg-type]  # it has what is asked of it
    manifest = application(**{**PI, **asked})
    asyncio.run(runner.reconcile("data", "job", manifest))
    [written] = client.written
    state = written["status"]["applicationState"]
    assert state["state"] == "FAILED"
    assert state["errorMessage"].startswith(reason)
