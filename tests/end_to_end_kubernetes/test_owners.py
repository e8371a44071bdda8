"""What is the operator's is kept, what is others' is left alone, what is refused is said.

The operator is a process beside the cluster; the pods of the Clusters here need not run.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support.kube import apply, condition, get, kubectl, resource
from support.kube_process import Served, others_stopped
from support.processes import wait_until

pytestmark = pytest.mark.timeout(300)

POOLS = [{"name": "a", "replicas": 1, "storage": {"type": "Ephemeral"}}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with others_stopped(), Served(tmp_path_factory.mktemp("served")) as found:
        yield found


def made(served: Served, name: str, **spec: Any) -> None:
    """Apply a Cluster of one broker."""
    apply(resource("Cluster", served.namespace, name, **{"pools": POOLS, **spec}))


def uid(served: Served, kind: str, name: str) -> str:
    return str(get(served.namespace, kind, name).get("metadata", {}).get("uid", ""))


def stalled(served: Served, name: str, kind: str = "Cluster") -> str:
    """Return why it is Stalled: reason and message; '' while it is not."""
    found = condition(served.get(kind, name), "Stalled")
    is_true = found.get("status") == "True"
    return f"{found['reason']}: {found['message']}" if is_true else ""


@pytest.fixture(scope="module")
def kept(served: Served) -> Served:
    made(served, "kept")
    wait_until(lambda: uid(served, "statefulset", "kept-a"), 60, "the pool's set")
    return served


@pytest.mark.parametrize("kind", ["pdb", "networkpolicy", "serviceaccount", "service", "cm"])
def test_what_is_deleted_is_made_again(kept: Served, kind: str) -> None:
    name = "kept-identity" if kind == "cm" else "kept-brokers"
    former = uid(kept, kind, name)
    kubectl("-n", kept.namespace, "delete", kind, name, "--wait=false")
    wait_until(lambda: uid(kept, kind, name) not in ("", former), 20, f"another {kind}")


def test_what_is_edited_is_put_right(kept: Served) -> None:
    def edit(kind: str, spec: dict[str, Any]) -> None:
        patch = json.dumps({"spec": spec})
        kubectl("-n", kept.namespace, "patch", kind, "kept-brokers", "--type=merge", "-p", patch)

    def spec(kind: str) -> Any:
        return get(kept.namespace, kind, "kept-brokers")["spec"]

    before = spec("networkpolicy")
    edit("pdb", {"maxUnavailable": "100%", "unhealthyPodEvictionPolicy": "AlwaysAllow"})
    edit("networkpolicy", {"ingress": [{}]})
    wait_until(lambda: spec("pdb")["maxUnavailable"] == 1, 20, "the budget")
    assert spec("pdb")["unhealthyPodEvictionPolicy"] == "IfHealthyBudget"
    wait_until(lambda: spec("networkpolicy") == before, 20, "the policy")


@pytest.mark.parametrize("kind", ["pdb", "networkpolicy", "serviceaccount"])
def test_what_is_not_wanted_any_more_goes(kept: Served, kind: str) -> None:
    left = get(kept.namespace, kind, "kept-brokers")
    left.pop("status", None)
    metadata = left["metadata"]
    left["metadata"] = {
        "name": "kept-former",
        "namespace": kept.namespace,
        "labels": metadata["labels"],
        "ownerReferences": metadata["ownerReferences"],
    }
    apply(left)
    wait_until(lambda: not uid(kept, kind, "kept-former"), 20, "it to go")


@contextmanager
def quota(served: Served, name: str, what: str) -> Iterator[None]:
    """Let a quota refuse each new object of a kind meanwhile; what is there stays."""
    apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": name, "namespace": served.namespace},
            "spec": {"hard": {what: "0"}},
        }
    )
    wait_until(
        lambda: get(served.namespace, "resourcequota", name).get("status", {}).get("used"), 30
    )
    try:
        yield
    finally:
        kubectl("-n", served.namespace, "delete", "resourcequota", name)


def test_a_refused_child_is_named_in_the_api_servers_words_and_all_else_goes_on(
    served: Served,
) -> None:
    with quota(served, "none", "count/networkpolicies.networking.k8s.io"):
        made(served, "refused")
        apply(resource("Topic", served.namespace, "late", clusterRef={"name": "refused"}))
        wait_until(lambda: "exceeded quota: none" in stalled(served, "refused"), 60, "the words")
        assert stalled(served, "refused").startswith("ApplyFailed: NetworkPolicy refused-brokers: ")
        assert condition(served.get("Cluster", "refused"), "Reconciling")["status"] == "False"
        assert uid(served, "statefulset", "refused-a")
        wait_until(lambda: served.reason("Topic", "late") == "WaitingForCluster", 30, "the Topic")
        events = get(served.namespace, "events")["items"]
        mine = [each for each in events if each["involvedObject"]["name"] == "refused"]
        assert any(
            "exceeded quota" in each["message"] and each["type"] == "Warning" for each in mine
        )
    kubectl("-n", served.namespace, "annotate", "cluster", "refused", "again=now")
    wait_until(lambda: uid(served, "networkpolicy", "refused-brokers"), 60, "the policy")
    wait_until(lambda: not stalled(served, "refused"), 30, "nothing to be refused")


def test_an_object_of_somebody_else_is_neither_changed_nor_deleted(served: Served) -> None:
    users = {"name": "taken-identity", "namespace": served.namespace}
    data = {"identity.json": "mine"}
    apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": users, "data": data})
    ports = [{"port": 80}]
    service = {"name": "shared-bootstrap", "namespace": served.namespace}
    apply({"apiVersion": "v1", "kind": "Service", "metadata": service, "spec": {"ports": ports}})
    before = uid(served, "cm", "taken-identity"), uid(served, "service", "shared-bootstrap")
    made(served, "taken")
    made(served, "shared")
    wait_until(lambda: "ConfigMap taken-identity" in stalled(served, "taken"), 60, "its name")
    wait_until(lambda: "Service shared-bootstrap" in stalled(served, "shared"), 60, "its name")
    time.sleep(3)
    assert (
        uid(served, "cm", "taken-identity"),
        uid(served, "service", "shared-bootstrap"),
    ) == before
    assert get(served.namespace, "cm", "taken-identity")["data"] == data
    found = get(served.namespace, "service", "shared-bootstrap")
    assert "ownerReferences" not in found["metadata"]
    assert [each["port"] for each in found["spec"]["ports"]] == [80]
    # Brokers that cannot be written down are not started; those of the other one are.
    assert not uid(served, "statefulset", "taken-a")
    assert uid(served, "statefulset", "shared-a")


def test_clusters_whose_names_run_together_do_not_share_a_set(served: Served) -> None:
    made(served, "x", pools=[{**POOLS[0], "name": "y-a"}])
    wait_until(lambda: uid(served, "statefulset", "x-y-a"), 60, "the first one's set")
    before = uid(served, "statefulset", "x-y-a")
    made(served, "x-y")
    wait_until(lambda: "belongs to Cluster x:" in stalled(served, "x-y"), 60, "whose it is")
    owners = get(served.namespace, "statefulset", "x-y-a")["metadata"]["ownerReferences"]
    assert [each["name"] for each in owners] == ["x"]
    assert uid(served, "statefulset", "x-y-a") == before
    assert not stalled(served, "x")


@pytest.mark.slow
def test_a_cluster_that_cannot_start_says_why(served: Served) -> None:
    template = {"spec": {"nodeSelector": {"nobody": "has-this"}}}
    made(served, "nowhere", pools=[{**POOLS[0], "podTemplate": template}])
    wait_until(lambda: "Unschedulable" in served_message(served, "nowhere"), 60, "the reason")
    assert condition(served.get("Cluster", "nowhere"), "Reconciling")["status"] == "True"
    wait_until(lambda: "BrokersFailing" in stalled(served, "nowhere"), 180, "a minute of it")
    assert "Unschedulable" in stalled(served, "nowhere")


def test_a_pod_that_a_quota_refuses_is_said_in_the_api_servers_words(served: Served) -> None:
    with quota(served, "full", "pods"):
        made(served, "roomless")
        wait_until(lambda: "exceeded quota: full" in served_message(served, "roomless"), 60, "it")
        assert "FailedCreate" in served_message(served, "roomless")
        assert condition(served.get("Cluster", "roomless"), "Reconciling")["status"] == "True"
        assert not uid(served, "pod", "roomless-a-0")
    wait_until(lambda: uid(served, "pod", "roomless-a-0"), 60, "the pod")
    wait_until(
        lambda: "exceeded quota" not in served_message(served, "roomless"), 60, "other words"
    )


@pytest.mark.slow
def test_a_pod_that_is_refused_for_a_minute_needs_a_person(served: Served) -> None:
    with quota(served, "full", "pods"):
        made(served, "waiting")
        wait_until(lambda: "BrokersFailing" in stalled(served, "waiting"), 150, "a minute of it")
        assert "exceeded quota: full" in stalled(served, "waiting")
    wait_until(lambda: not stalled(served, "waiting"), 60, "nothing to be refused")


def published(served: Served, service: str) -> list[str]:
    of = f"--selector=kubernetes.io/service-name={service}"
    slices = get(served.namespace, "endpointslices", of).get("items", [])
    return [ip for each in slices for one in each["endpoints"] or [] for ip in one["addresses"]]


@pytest.mark.slow
def test_addresses_are_published_soon_after_kubernetes_could_not_for_a_while(
    served: Served,
) -> None:
    with quota(served, "nameless", "count/endpointslices.discovery.k8s.io"):
        made(served, "nameless")
        lag = "Service nameless-brokers lacks the addresses of nameless-a-0"
        wait_until(lambda: lag in served_message(served, "nameless"), 90, "it to be said")
        # Each time that it fails, Kubernetes' controller waits twice as long.
        time.sleep(90)
        assert not published(served, "nameless-brokers")
    wait_until(lambda: published(served, "nameless-brokers"), 45, "the address")
    wait_until(lambda: lag not in served_message(served, "nameless"), 45, "other words")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pod_that_waits_for_a_missing_secret_says_so(served: Served) -> None:
    # The kubelet mounts only what a container asks for.
    mount = {"name": "keys", "mountPath": "/keys"}
    template = {
        "spec": {
            "containers": [{"name": "broker", "volumeMounts": [mount]}],
            "volumes": [{"name": "keys", "secret": {"secretName": "keys"}}],
        }
    }
    made(served, "keyless", pools=[{**POOLS[0], "podTemplate": template}])
    wait_until(lambda: "BrokersFailing" in stalled(served, "keyless"), 240, "two minutes of it")
    assert "FailedMount" in stalled(served, "keyless")
    assert 'secret "keys" not found' in stalled(served, "keyless")
    secret = {"name": "keys", "namespace": served.namespace}
    apply({"apiVersion": "v1", "kind": "Secret", "metadata": secret, "stringData": {"a": "b"}})
    # The kubelet tries again after two minutes at the latest.
    wait_until(lambda: not stalled(served, "keyless"), 240, "its pod to start")


def served_message(served: Served, name: str) -> str:
    return str(condition(served.get("Cluster", name)).get("message", ""))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"listeners": [{"name": "plain", "port": 9091}]}, "are the brokers' own"),
        (
            {"pools": [{**POOLS[0], "resources": {"limits": {"memory": "640gb"}}}]},
            "resources.limits.memory",
        ),
    ],
)
def test_what_could_not_be_rendered_is_refused_at_once(
    served: Served, spec: dict[str, Any], words: str
) -> None:
    with pytest.raises(RuntimeError, match=words):
        made(served, "wrong", **spec)


def test_a_typo_in_the_pod_template_is_said_in_the_api_servers_words(served: Served) -> None:
    template = {"spec": {"nodeSelectr": {"a": "b"}}}
    made(served, "typo", pools=[{**POOLS[0], "podTemplate": template}])
    wait_until(lambda: "nodeSelectr" in stalled(served, "typo"), 60, "the words")
    assert stalled(served, "typo").startswith("ApplyFailed: StatefulSet typo-a: ")


def deployment(served: Served, annotations: dict[str, str]) -> dict[str, Any]:
    labels = {"app": "readers"}
    container = {"name": "c", "image": "headrace/headrace:0.1.0", "imagePullPolicy": "Never"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "readers",
            "namespace": served.namespace,
            "annotations": annotations,
        },
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def test_a_group_scales_what_allows_it_and_never_brokers(kept: Served) -> None:
    policy = {"target": {"maxLagRecords": 1}, "maxReplicas": 1}
    brokers = {"kind": "StatefulSet", "name": "kept-a"}
    apply(kept.group("thief", targetRef=brokers, lagPolicy={**policy, "minReplicas": 0}))
    wait_until(lambda: "TargetNotAllowed" in stalled(kept, "thief", "ConsumerGroup"), 30)
    assert "belongs to Cluster kept" in stalled(kept, "thief", "ConsumerGroup")
    # Nor when its owner says so: brokers are the Cluster's to count.
    allowing = "headrace.dev/scaled-by=thief"
    kubectl("-n", kept.namespace, "annotate", "statefulset", "kept-a", allowing)
    apply(deployment(kept, {}))
    readers = {"kind": "Deployment", "name": "readers"}
    apply(kept.group("reading", targetRef=readers, lagPolicy=policy))
    wait_until(lambda: "scaled-by: reading" in stalled(kept, "reading", "ConsumerGroup"), 30)
    assert get(kept.namespace, "deployment", "readers")["spec"]["replicas"] == 0
    apply(deployment(kept, {"headrace.dev/scaled-by": "reading"}))
    wait_until(lambda: not stalled(kept, "reading", "ConsumerGroup"), 30, "it to be allowed")
    assert "belongs to Cluster kept" in stalled(kept, "thief", "ConsumerGroup")
    assert get(kept.namespace, "statefulset", "kept-a")["spec"]["replicas"] == 1


def test_a_set_that_selects_by_what_it_did_formerly_is_recreated(kept: Served) -> None:
    """What a former release made: claims get what a set selects by, and Argo CD prunes by that."""
    instance = "app.kubernetes.io/instance"

    def selector() -> dict[str, str]:
        found = get(kept.namespace, "statefulset", "kept-a")
        return dict(found.get("spec", {}).get("selector", {}).get("matchLabels", {}))

    former = get(kept.namespace, "statefulset", "kept-a")
    for key in ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"):
        former["metadata"].pop(key, None)
    former.pop("status", None)
    former["spec"]["selector"]["matchLabels"][instance] = "kept"
    made(kept, "kept", paused=True)
    wait_until(lambda: condition(kept.get("Cluster", "kept")).get("reason") == "Paused", 30, "it")
    pod = uid(kept, "pod", "kept-a-0")
    kubectl("-n", kept.namespace, "delete", "statefulset", "kept-a", "--cascade=orphan")
    kubectl("create", "-f", "-", stdin=json.dumps(former))
    assert instance in selector()
    made(kept, "kept")
    wait_until(lambda: selector() and instance not in selector(), 60, "the recreated set")
    assert uid(kept, "pod", "kept-a-0") == pod
