"""Every object that a Cluster owns: deleted, edited, stripped of labels, taken by somebody else.

Which ones there are is asked of the API server, so that a new kind is not forgotten.
"""

import difflib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace_operator.kubernetes.brokers.keeper import RENDERED_ANNOTATION
from support.kube import apply, condition, get, kubectl, resource
from support.kube_process import MONITOR, Served, others_stopped, podmonitor_definition
from support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

POOLS = [{"name": "a", "replicas": 2, "storage": {"type": "Ephemeral"}}]
LISTENERS = [{"name": "plain"}, {"name": "out", "port": 9094, "type": "NodePort"}]
KINDS = ("statefulset", "service", "configmap", "serviceaccount", "pdb", "networkpolicy")
#: What somebody changes in one of each kind.
EDITS: dict[str, dict[str, Any]] = {
    "StatefulSet": {
        "spec": {"replicas": 7, "template": {"spec": {"terminationGracePeriodSeconds": 1}}}
    },
    "Service": {"spec": {"selector": {"app": "mine"}}},
    "ConfigMap": {"data": None},
    "ServiceAccount": {"automountServiceAccountToken": True},
    "PodDisruptionBudget": {"spec": {"maxUnavailable": "100%"}},
    "NetworkPolicy": {"spec": {"ingress": [{}]}},
    "PodMonitor": {"spec": {"podMetricsEndpoints": []}},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    ours = not kubectl("get", "crd", MONITOR, "--ignore-not-found", "-o", "name")
    if ours:
        apply(podmonitor_definition())
        kubectl("wait", "--for=condition=Established", "--timeout=60s", f"crd/{MONITOR}")
    try:
        with others_stopped(), Served(tmp_path_factory.mktemp("owned")) as found:
            yield found
    finally:
        if ours:
            kubectl("delete", "crd", MONITOR, "--wait=false")


def make(served: Served, name: str) -> None:
    spec = {"pools": POOLS, "listeners": LISTENERS}
    apply(resource("Cluster", served.namespace, name, **spec))


def owned(served: Served, cluster: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what a Cluster owns, by kind and name."""
    found = {}
    for kind in (*KINDS, MONITOR):
        for each in get(served.namespace, kind).get("items", []):
            owners = each["metadata"].get("ownerReferences") or []
            if any((one["kind"], one["name"]) == ("Cluster", cluster) for one in owners):
                found[each["kind"], each["metadata"]["name"]] = each
    return found


def read(served: Served, kind: str, name: str) -> dict[str, Any]:
    """Return an object as it is; {} where there is none."""
    what = MONITOR if kind == "PodMonitor" else kind
    return get(served.namespace, what, name)  # type: ignore[no-any-return]  # JSON


def meant(obj: dict[str, Any]) -> Any:
    """Return what an object says, without what the API server and controllers write."""
    kept = json.loads(json.dumps(obj))
    kept.pop("status", None)
    for key in ("resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"):
        kept["metadata"].pop(key, None)
    annotations = kept["metadata"].get("annotations", {})
    if RENDERED_ANNOTATION in annotations:
        # It changes once, when the API server has chosen a port.
        annotations[RENDERED_ANNOTATION] = ""
    if kept["kind"] == "Service":
        for key in ("clusterIP", "clusterIPs"):
            if kept["spec"].get(key) != "None" and kept["spec"].get(key) != ["None"]:
                kept["spec"].pop(key, None)
    return kept


@pytest.fixture(scope="module")
def kept(served: Served) -> dict[tuple[str, str], dict[str, Any]]:
    """What a Cluster at rest owns."""
    make(served, "kept")
    wait_until(lambda: ("StatefulSet", "kept-a") in owned(served, "kept"), 60, "its set")

    def have_run() -> bool:
        text = read(served, "ConfigMap", "kept-identity")["data"]["identity.json"]
        return bool(text.count('"hasRun": true') == text.count('"nodeId"'))

    # On a busy machine that is noted later than five seconds after all else.
    wait_until(have_run, 120, "its brokers' first runs to be noted")
    found = owned(served, "kept")
    while True:
        time.sleep(5)
        before, found = found, owned(served, "kept")
        if list(map(meant, before.values())) == list(map(meant, found.values())):
            break
    assert {kind for kind, _ in found} == set(EDITS), sorted(found)
    return found


def wait_mended(served: Served, before: dict[str, Any], during: str) -> dict[str, Any]:
    """Wait until an object says again what it said; return it."""
    kind, name = before["kind"], before["metadata"]["name"]

    def is_mended() -> bool:
        now = read(served, kind, name)
        return (
            bool(now) and "deletionTimestamp" not in now["metadata"] and meant(now) == meant(before)
        )

    try:
        wait_until(is_mended, 60)
    except TimeoutError:
        now = meant(read(served, kind, name) or before)
        lines = (json.dumps(each, indent=1).splitlines() for each in (meant(before), now))
        changed = "\n".join(difflib.unified_diff(*lines, "before", "now", n=1, lineterm=""))
        raise AssertionError(f"{kind} {name} {during}, and is not as it was:\n{changed}") from None
    return read(served, kind, name)


def test_each_that_is_deleted_is_made_again(
    served: Served, kept: dict[tuple[str, str], dict[str, Any]]
) -> None:
    identity = ("ConfigMap", "kept-identity")
    for together in (kept.keys() - {identity}, {identity}):
        before = [read(served, *each) for each in sorted(together)]
        for kind, name in together:
            delete = ("delete", kind, name, "--wait=false", "--cascade=orphan")
            kubectl("-n", served.namespace, *delete)
        for each in before:
            now = wait_mended(served, each, "was deleted")
            assert now["metadata"]["uid"] != each["metadata"]["uid"]


def patch_all(
    served: Served, kept: dict[tuple[str, str], dict[str, Any]], patches: dict[str, Any], how: str
) -> None:
    """Change all at once, by kind, and wait until each is as it was."""
    before = [read(served, kind, name) for kind, name in sorted(kept)]
    for each in before:
        kind, name = each["kind"], each["metadata"]["name"]
        patch = json.dumps(patches[kind])
        kubectl("-n", served.namespace, "patch", kind, name, "--type=merge", "-p", patch)
    for each in before:
        wait_mended(served, each, how)


def test_each_that_is_edited_is_put_right(
    served: Served, kept: dict[tuple[str, str], dict[str, Any]]
) -> None:
    patch_all(served, kept, EDITS, "was edited")


@pytest.mark.parametrize("part", ["labels", "ownerReferences", "annotations"])
def test_what_is_taken_from_its_metadata_comes_back(
    served: Served, kept: dict[tuple[str, str], dict[str, Any]], part: str
) -> None:
    """Without its labels no watch delivers it; without its owner it outlives the Cluster."""
    patches = {key: {"metadata": {part: None}} for key in EDITS}
    patch_all(served, kept, patches, f"lost its {part}")


def stalled(served: Served, cluster: str) -> str:
    """Return why a Cluster is Stalled; '' while it is not."""
    found = condition(served.get("Cluster", cluster), "Stalled")
    return str(found.get("message", "")) if found.get("status") == "True" else ""


def test_each_name_that_is_taken_is_refused_by_name_and_left_alone(
    served: Served, kept: dict[tuple[str, str], dict[str, Any]]
) -> None:
    taken = {}
    for number, (kind, name) in enumerate(sorted(kept)):
        cluster = f"taken{number}"
        foreign = meant(read(served, kind, name))
        metadata = {"name": name.replace("kept", cluster, 1), "namespace": served.namespace}
        foreign["metadata"] = {**metadata, "labels": {"team": "others"}}
        if kind == "Service":
            for port in foreign["spec"]["ports"]:
                port.pop("nodePort", None)
        apply(foreign)
        taken[cluster] = read(served, kind, metadata["name"])
        make(served, cluster)
    for cluster, before in taken.items():
        wanted = f"{before['kind']} {before['metadata']['name']}"
        wait_until(lambda: wanted in stalled(served, cluster), 60, f"{wanted} to be named")  # noqa: B023 - at once
    kubectl("-n", served.namespace, "delete", "cluster", *taken)
    # Longer than the garbage collector takes for what is owned.
    time.sleep(5)
    for before in taken.values():
        after = read(served, before["kind"], before["metadata"]["name"])
        assert meant(after) == meant(before)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]


@pytest.fixture
def policy(served: Served) -> Iterator[str]:
    """Refuse of each Cluster called `denied-KIND` the objects of that kind; return the words."""
    name, words = f"{served.namespace}-denied", "the auditors do not want it"
    rules = [
        {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["*"]}
    ]
    expression = (
        "!has(object.metadata.labels) || !('headrace.dev/cluster' in object.metadata.labels) ||"
        " object.metadata.labels['headrace.dev/cluster'] != 'denied-' + object.kind.lowerAscii()"
    )
    api = "admissionregistration.k8s.io/v1"
    selected = {"matchLabels": {"kubernetes.io/metadata.name": served.namespace}}
    policy_spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules, "namespaceSelector": selected},
        "validations": [{"expression": expression, "message": words}],
    }
    binding_spec = {"policyName": name, "validationActions": ["Deny"]}
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    for kind, spec in zip(kinds, (policy_spec, binding_spec), strict=True):
        apply({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec})
    account = {"name": "denied", "namespace": served.namespace}
    account["labels"] = {"headrace.dev/cluster": "denied-serviceaccount"}  # type: ignore[assignment]  # JSON

    def holds() -> bool:
        try:
            apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        except RuntimeError:
            return True
        kubectl("-n", served.namespace, "delete", "serviceaccount", "denied")
        return False

    wait_until(holds, 60, "the policy to hold")
    yield words
    for kind in kinds:
        kubectl("delete", kind, name, "--wait=false")


def warned(served: Served, cluster: str, words: str) -> bool:
    """Whether a warning about a Cluster has these words."""
    return any(
        each["involvedObject"]["name"] == cluster
        and each["type"] == "Warning"
        and words in each["message"]
        for each in get(served.namespace, "events")["items"]
    )


def test_each_kind_that_is_refused_is_said_in_the_policys_words_and_others_go_on(
    served: Served, kept: dict[tuple[str, str], dict[str, Any]], policy: str
) -> None:
    kinds = sorted({kind for kind, _ in kept})
    for kind in kinds:
        make(served, f"denied-{kind.lower()}")
    for kind in kinds:
        cluster = f"denied-{kind.lower()}"
        wait_until(lambda: policy in stalled(served, cluster), 60, f"words about {kind}")  # noqa: B023 - at once
        assert f"{kind} denied-" in stalled(served, cluster)
        wait_until(lambda: warned(served, cluster, policy), 30, f"an Event about {kind}")  # noqa: B023 - at once
        others = {each for each, _ in owned(served, cluster)}
        # Who brokers are is in a ConfigMap, and nothing begins before that is written down.
        if kind != "ConfigMap":
            missing = set(kinds) - others - {kind}
            assert not missing - ({"StatefulSet"} if kind == "Service" else set()), (kind, missing)
    # It has nothing to do with any of them.
    assert served.ready("Cluster", "c") == "True"
