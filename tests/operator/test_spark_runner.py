"""Who runs an application, and which answers of the API server end it."""

import pytest

from headrace_operator.kubernetes.cache import trim
from headrace_operator.kubernetes.spark_seen import other_writers
from headrace_operator.kubernetes.transport import KubernetesError
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
