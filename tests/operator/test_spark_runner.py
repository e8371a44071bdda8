"""Who runs an application, and which answers of the API server end it."""

import asyncio
import copy
from typing import Any

import pytest

from headrace_operator.kubernetes.api.cache import Store, trim
from headrace_operator.kubernetes.api.transport import KubernetesError
from headrace_operator.kubernetes.spark.applications import RUNNER_LABEL, SparkRunner
from headrace_operator.kubernetes.spark.seen import other_writers
from support.spark_world import application


def written_by(*managers, subresource="status"):
    manifest = application()
    manifest["metadata"]["managedFields"] = [
        {"manager": each, "subresource": subresource, "fieldsV1": {"f:state": {}}}
        for each in managers
    ]
    return manifest


@pytest.mark.parametrize(
    ("manifest", "others"),
    [
        (application(), []),
        (written_by("headrace-status"), []),
        (written_by("headrace-status", "spark-operator"), ["spark-operator"]),
        # A person who corrects a status takes no application away from its runner.
        (written_by("kubectl-edit"), []),
        # Whoever writes specs (Argo CD, Flux) runs nothing.
        (written_by("argocd-controller", subresource=""), []),
    ],
)
def test_an_application_is_anothers_when_its_status_is(manifest, others):
    assert other_writers(manifest) == others
    # The same is seen in what the store keeps.
    assert other_writers(trim(manifest)) == others


def test_the_store_keeps_no_fields_of_managers():
    manifest = trim(written_by("headrace-status", "spark-operator"))
    assert all("fieldsV1" not in each for each in manifest["metadata"]["managedFields"])
    pod = {"kind": "Pod", "metadata": {"managedFields": [{"subresource": "status"}]}}
    assert "managedFields" not in trim(pod)["metadata"]


OURS = {"executors", "failures", "fingerprint", "observedGeneration"}


class ForeignKind:
    """An API server whose CRD is the Kubeflow operator's: it keeps the published fields alone.

    In a cluster there is one CRD of a name, so this one cannot be tried where ours is installed.
    """

    def __init__(self, manifest: dict[str, Any]) -> None:
        self.manifest = manifest | {"metadata": {**manifest["metadata"], "resourceVersion": "1"}}
        self.writes = 0

    async def get(self, api_version: str, kind: str, *_: str | None) -> dict[str, Any] | None:
        assert api_version
        return copy.deepcopy(self.manifest) if kind == "SparkApplication" else None

    async def apply_status(self, obj: dict[str, Any]) -> dict[str, Any]:
        self.writes += 1
        kept = {key: value for key, value in obj["status"].items() if key not in OURS}
        if kept != self.manifest.get("status"):
            version = str(int(self.manifest["metadata"]["resourceVersion"]) + 1)
            metadata = {**self.manifest["metadata"], "resourceVersion": version}
            self.manifest = {**self.manifest, "metadata": metadata, "status": kept}
        return copy.deepcopy(self.manifest)

    async def event(self, *_: Any, **__: Any) -> None:
        """Nobody reads Events here."""


def test_a_status_of_which_another_crd_drops_fields_is_written_once():
    manifest = application(suspend=True)
    manifest["metadata"]["labels"] = {RUNNER_LABEL: "headrace"}
    server, store = ForeignKind(manifest), Store()
    store.upsert(copy.deepcopy(server.manifest))
    runner = SparkRunner(server, store)  # type: ignore[arg-type]  # what the runner uses of a client

    async def resync(times: int) -> None:
        for _ in range(times):
            await runner.reconcile("data", "job", store.get("SparkApplication", "data", "job"))

    asyncio.run(resync(5))
    assert server.manifest["status"]["applicationState"] == {"state": "SUSPENDED"}
    assert server.writes == 1
    # A newer spec is reported, and again once.
    server.manifest["spec"]["timeToLiveSeconds"] = 5
    server.manifest["metadata"] |= {"generation": 2, "resourceVersion": "9"}
    store.upsert(copy.deepcopy(server.manifest))
    asyncio.run(resync(5))
    assert server.writes == 2


@pytest.mark.parametrize(
    ("status", "is_refusal"),
    [
        (400, True),
        (403, True),
        (404, True),
        (422, True),
        # The outcome is unknown, or the server has too much to do: the same is asked again.
        *((code, False) for code in (0, 401, 408, 429, 500, 502, 503, 504)),
    ],
)
def test_only_a_no_is_a_failed_submission(status, is_refusal):
    assert KubernetesError(status, "reason", "message").is_refusal is is_refusal
