"""Every overlay and example renders by kustomize, and what it renders is valid."""

import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.kube_rights import granted, watching

MANIFESTS = Path(__file__).parents[2] / "manifests"
OURS = "headrace.dev/v1beta1"
FOLDERS = sorted(
    path.parent.relative_to(MANIFESTS).as_posix()
    for path in MANIFESTS.glob("**/kustomization.yaml")
    if "components" not in path.parts
)
OVERLAYS = [folder for folder in FOLDERS if folder.startswith("overlays/")]
CLUSTER_WIDE = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "Namespace",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
FOREIGN = {"monitoring.coreos.com", "keda.sh", "argoproj.io", "toolkit.fluxcd.io"}


def render(folder: str) -> list[dict[str, Any]]:
    """Render by kubectl, which has kustomize in it; skips loudly without it."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("NOT TESTED: kubectl is missing, no manifest is rendered")
    ran = subprocess.run(
        [kubectl, "kustomize", MANIFESTS / folder], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return [each for each in yaml.safe_load_all(ran.stdout) if each]


def test_overlays_examples_monitoring_and_gitops_are_looked_at() -> None:
    assert {"overlays/production", "examples/cpu-load", "monitoring", "gitops/argocd"} <= set(
        FOLDERS
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_it_renders_and_names_nothing_twice(folder: str) -> None:
    objects = render(folder)
    keys = [
        (
            each["apiVersion"],
            each["kind"],
            each["metadata"].get("namespace"),
            each["metadata"]["name"],
        )
        for each in objects
    ]
    assert keys
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("folder", [each for each in FOLDERS if each.startswith("examples/")])
def test_our_own_resources_in_it_are_valid(folder: str, tmp_path: Path) -> None:
    from headrace_operator.validation import load_valid_manifests

    ours = [each for each in render(folder) if each["apiVersion"] == OURS]
    assert ours
    path = tmp_path / "rendered.yaml"
    path.write_text(yaml.safe_dump_all(ours))
    assert len(load_valid_manifests(path)) == len(ours)


@pytest.mark.parametrize("folder", FOLDERS)
def test_pods_in_it_satisfy_the_restricted_standard(folder: str) -> None:
    for each in render(folder):
        if each["kind"] not in {"Deployment", "StatefulSet"}:
            continue
        pod = each["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"]
            assert context["capabilities"]["drop"] == ["ALL"]
            assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("folder", ["base", *OVERLAYS])
def test_the_operators_rights_are_bound_to_its_own_service_account(folder: str) -> None:
    objects = render(folder)
    account = next(each["metadata"] for each in objects if each["kind"] == "ServiceAccount")
    roles = {
        (each["kind"], each["metadata"]["name"])
        for each in objects
        if each["kind"] in {"Role", "ClusterRole"}
    }
    bindings = [each for each in objects if each["kind"].endswith("RoleBinding")]
    assert {(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in bindings} == roles
    for binding in bindings:
        [subject] = binding["subjects"]
        # Without a namespace it is that of the binding.
        assert subject["name"] == account["name"]
        assert subject.get("namespace") == account.get("namespace")


def test_the_base_has_nothing_outside_of_its_namespace() -> None:
    objects = render("base")
    assert not {each["kind"] for each in objects} & CLUSTER_WIDE
    assert not [each for each in objects if "namespace" in each["metadata"]]
    assert "--namespace=$(NAMESPACE)" in arguments_of(objects)


def test_an_operator_for_all_namespaces_has_its_rights_in_all() -> None:
    objects = render("overlays/cluster-wide")
    assert not [each for each in arguments_of(objects) if each.startswith("--namespace")]
    roles = [each["metadata"]["name"] for each in objects if each["kind"] == "Role"]
    assert roles == ["headrace-operator-lease"]
    assert granted(objects) > granted(render("base"))


@pytest.mark.parametrize("folder", ["base", "overlays/cluster-wide"])
def test_what_is_watched_may_be_watched(folder: str) -> None:
    assert watching(with_spark=False) <= granted(render(folder))


def arguments_of(objects: list[dict[str, Any]]) -> list[str]:
    """Return the operator's arguments."""
    operator = next(each for each in objects if each["kind"] == "Deployment")
    arguments: list[str] = operator["spec"]["template"]["spec"]["containers"][0]["args"]
    return arguments


def test_two_operators_of_production_run_on_different_nodes() -> None:
    objects = render("overlays/production")
    operator = next(each for each in objects if each["kind"] == "Deployment")
    assert operator["spec"]["replicas"] == 2
    [spread] = operator["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert {"PrometheusRule", "PodMonitor"} <= {each["kind"] for each in objects}


def test_health_checks_of_flux_name_what_the_examples_have() -> None:
    examples = {
        (each["apiVersion"], each["kind"], each["metadata"]["name"])
        for each in [*render("examples/orders"), *render("overlays/production")]
    }
    for each in render("gitops/flux"):
        if each["kind"] != "Kustomization":
            continue
        assert (MANIFESTS.parent / each["spec"]["path"]).is_dir()
        for check in each["spec"].get("healthChecks", ()):
            assert (check["apiVersion"], check["kind"], check["name"]) in examples


@pytest.mark.parametrize("folder", ["base", *OVERLAYS, "examples/orders", "examples/cpu-load"])
def test_a_real_api_server_accepts_it(folder: str) -> None:
    if "KUBECONFIG" not in os.environ:
        pytest.skip("NOT TESTED: no KUBECONFIG, no API server looks at the manifests")
    kubectl = shutil.which("kubectl") or "kubectl"
    for each in render(folder):
        group = each["apiVersion"].partition("/")[0]
        if any(group.endswith(foreign) for foreign in FOREIGN):
            continue
        namespace = each["metadata"].get("namespace")
        if namespace in {"streams", "headrace-system"}:
            # Its namespace may not be there, and a dry run makes none: another one does as well.
            each["metadata"]["namespace"] = "default"
        namespaced = [] if each["kind"] in CLUSTER_WIDE else ["--namespace=default"]
        ran = subprocess.run(
            [
                kubectl,
                "apply",
                "--server-side",
                "--force-conflicts",
                "--dry-run=server",
                *namespaced,
                "--filename=-",
            ],
            input=yaml.safe_dump(each),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{each['kind']} {each['metadata']['name']}: {ran.stderr}"


@pytest.mark.parametrize(
    ("spec", "emptied"),
    [
        ({"config": {"num.partitions": 3}}, {"config": {}}),
        ({"monitoring": {"labels": {"a": "b"}}}, {"monitoring": {"labels": {}}}),
        ({"imagePullSecrets": [{"name": "a"}]}, {"imagePullSecrets": []}),
    ],
)
def test_what_is_applied_can_be_emptied(spec: dict[str, Any], emptied: dict[str, Any]) -> None:
    """Server-side apply leaves null of a map whose last entry goes, which no schema takes."""
    if "KUBECONFIG" not in os.environ:
        pytest.skip("NOT TESTED: no KUBECONFIG, no API server merges anything")
    kubectl = shutil.which("kubectl") or "kubectl"
    crds = str(MANIFESTS.parent / "crds")
    subprocess.run([kubectl, "apply", "--server-side", "--force-conflicts", "-k", crds], check=True)
    name = f"emptied-{uuid.uuid4().hex[:8]}"
    # Paused, so that an operator that is there starts nothing of it.
    body = {"pools": [{"name": "a"}], "paused": True}
    try:
        for each in (spec, emptied):
            document = {
                "apiVersion": "headrace.dev/v1beta1",
                "kind": "Cluster",
                "metadata": {"name": name, "namespace": "default"},
                "spec": body | each,
            }
            ran = subprocess.run(
                [kubectl, "apply", "--server-side", "--filename=-"],
                input=yaml.safe_dump(document),
                capture_output=True,
                text=True,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr
    finally:
        subprocess.run([kubectl, "delete", "-n", "default", "cluster", name], check=True)


def test_argo_cd_compares_nothing_for_a_status_that_moves() -> None:
    settings = next(each for each in render("gitops/argocd") if each["kind"] == "ConfigMap")["data"]
    for kind in ("Cluster", "Topic", "ConsumerGroup"):
        ignored = settings[f"resource.customizations.ignoreResourceUpdates.headrace.dev_{kind}"]
        assert yaml.safe_load(ignored) == {"jsonPointers": ["/status"]}


def test_a_self_healing_application_leaves_what_the_operator_writes() -> None:
    text = (MANIFESTS / "gitops/argocd/applications.yaml").read_text()
    for application in yaml.safe_load_all(text):
        assert "ServerSideApply=true" in application["spec"]["syncPolicy"]["syncOptions"]
    orders = application["spec"]
    assert "RespectIgnoreDifferences=true" in orders["syncPolicy"]["syncOptions"]
    ignored = {each["kind"]: each["jsonPointers"] for each in orders["ignoreDifferences"]}
    assert "/spec/suspend" in ignored["SparkApplication"]
    names = {each["metadata"]["name"] for each in render("examples/orders")}
    assert {each["name"] for each in orders["ignoreDifferences"] if "name" in each} <= names
