"""The operator's process with an API server of the test's own: namesakes, refusals, leftovers.

One broker is reached beside it. There is no kubelet and no controller: sets make no pods, and what
has owners stays until a test deletes it.
"""

import datetime as dt
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer

from support.control_plane import own_api_server
from support.kube import apply, condition, get, kubectl, resource
from support.kube_process import Served
from support.processes import wait_until
from support.spark_world import application

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with own_api_server(folder), Served(folder, "--spark-runner") as found:
        yield found


def delete(served: Served, kind: str, name: str) -> None:
    kubectl("-n", served.namespace, "delete", kind, name, "--wait=false")
    wait_until(lambda: not served.get(kind, name), 30, f"{kind} {name} to go")


def test_a_cluster_that_is_made_again_keeps_the_topics_of_its_former_topics(served: Served) -> None:
    for name in ("before", "between"):
        apply(served.topic(name, deletionPolicy="Delete"))
        served.wait_ready("Topic", name)
    served.broker.stop()
    delete(served, "Topic", "before")
    delete(served, "Cluster", "c")
    delete(served, "Topic", "between")
    # With retained volumes it is the same topics, by the same ids.
    served.broker.start()
    served.apply_cluster()
    wait_until(lambda: served.ready("Cluster", "c") == "True", 60, "the new Cluster")
    apply(served.topic("after"))
    served.wait_ready("Topic", "after")
    assert served.topics() >= {"before", "between", "after"}


def make(served: Served, name: str, **spec: Any) -> None:
    """Make a Cluster of one broker that never runs: only its objects are looked at."""
    body = {"pools": [{"name": "a", "replicas": 1}], **spec}
    apply(resource("Cluster", served.namespace, name, **body))


def identity_of(served: Served, name: str) -> dict[str, Any]:
    """Return the identity of a Cluster as it is stored; {} if it is not."""
    found = get(served.namespace, "configmap", f"{name}-identity")
    uid = served.get("Cluster", name)["metadata"]["uid"]
    is_its = any(
        each["uid"] == uid for each in found.get("metadata", {}).get("ownerReferences", ())
    )
    return json.loads(found["data"]["identity.json"]) if is_its else {}


def make_claim(served: Served, name: str, owner: dict[str, Any] | None = None) -> None:
    """Make the claim of a Cluster's set, as its controller does, and wait for its broker's mark."""
    (template,) = get(served.namespace, "statefulset", f"{name}-a")["spec"]["volumeClaimTemplates"]
    metadata = {
        "name": f"data-0-{name}-a-0",
        "namespace": served.namespace,
        "labels": template["metadata"]["labels"],
        "ownerReferences": [owner] if owner else [],
    }
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata}
    apply(claim | {"spec": template["spec"]})
    wait_until(
        lambda: "annotations" in get(served.namespace, "pvc", metadata["name"])["metadata"],
        30,
        "the claim to be marked",
    )


def waits_for(served: Served, name: str, text: str) -> bool:
    """Whether a Cluster says that it waits for this of a former one."""
    found = condition(served.get("Cluster", name), "Reconciling")
    return found.get("reason") == "WaitingForFormer" and text in found["message"]


def test_a_cluster_takes_no_identity_from_claims_that_are_being_deleted(served: Served) -> None:
    make(served, "claims")
    wait_until(lambda: get(served.namespace, "statefulset", "claims-a"), 60, "its set")
    make_claim(served, "claims")
    former = identity_of(served, "claims")["clusterId"]
    claim = "data-0-claims-a-0"
    assert get(served.namespace, "pvc", claim)["metadata"]["finalizers"]  # a pod may use it
    delete(served, "Cluster", "claims")
    for kind, name in (("statefulset", "claims-a"), ("pvc", claim)):
        kubectl("-n", served.namespace, "delete", kind, name, "--wait=false")
    make(served, "claims")
    wait_until(lambda: waits_for(served, "claims", claim), 30, "the Cluster to wait")
    assert identity_of(served, "claims") == {}
    patch = json.dumps({"metadata": {"finalizers": None}})
    kubectl("-n", served.namespace, "patch", "pvc", claim, "--type=merge", "-p", patch)
    wait_until(lambda: identity_of(served, "claims"), 30, "its own identity")
    assert identity_of(served, "claims")["clusterId"] != former


def test_a_set_whose_claims_go_with_it_is_not_adopted(served: Served) -> None:
    make(served, "sets", deletionPolicy="Delete")
    wait_until(lambda: get(served.namespace, "statefulset", "sets-a"), 60, "its set")
    former = get(served.namespace, "statefulset", "sets-a")["metadata"]["uid"]
    delete(served, "Cluster", "sets")
    make(served, "sets", deletionPolicy="Delete")
    wait_until(lambda: waits_for(served, "sets", "StatefulSet sets-a"), 30, "the Cluster to wait")
    assert len(get(served.namespace, "statefulset", "sets-a")["metadata"]["ownerReferences"]) == 1
    delete(served, "statefulset", "sets-a")

    def is_new() -> bool:
        found = get(served.namespace, "statefulset", "sets-a")
        return bool(found) and found["metadata"]["uid"] != former

    wait_until(is_new, 30, "a set of its own")


def replicas_of(served: Served, name: str) -> int:
    return int(get(served.namespace, "deployment", name)["spec"]["replicas"])


def make_target(served: Served, name: str, replicas: int) -> None:
    labels = {"app": name}
    container = {"name": "c", "image": "registry.example/reader"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    annotations = {"headrace.dev/scaled-by": "resetting"}
    metadata = {"name": name, "namespace": served.namespace, "annotations": annotations}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})


def test_a_stopped_target_is_started_by_another_operator_and_for_another_target(
    served: Served,
) -> None:
    apply(served.topic("resets"))
    served.wait_ready("Topic", "resets")
    reset = {"requestId": "r", "to": {"position": "Earliest"}, "whenActive": "ScaleDown"}

    def ask(target: str) -> None:
        reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}
        apply(served.group("resetting", topics=["resets"], targetRef=reference, reset=reset))

    def stopped() -> Any:
        status = served.get("ConsumerGroup", "resetting").get("status", {})
        return status.get("pausedTarget", {}).get("name"), status.get("pausedReplicas")

    for name, replicas in (("first", 2), ("second", 4)):
        make_target(served, name, replicas)
    # A member that goes on, as there is no controller that would stop it.
    member = Consumer({"bootstrap.servers": served.broker.bootstrap, "group.id": "resetting"})
    member.subscribe(["resets"])
    wait_until(lambda: member.poll(1.0) is not None or member.assignment(), 30, "an assignment")
    ask("first")
    wait_until(lambda: stopped() == ("first", 2), 30, "the record of the first target")
    wait_until(lambda: replicas_of(served, "first") == 0, 30, "the first target to stop")
    served.operator.stop()
    ask("second")
    served.operator.start()
    wait_until(lambda: replicas_of(served, "first") == 2, 30, "the first target's replicas")
    wait_until(lambda: replicas_of(served, "second") == 0, 30, "the second target to stop")
    wait_until(lambda: stopped() == ("second", 4), 30, "the record of the second target")
    delete(served, "Cluster", "c")
    delete(served, "ConsumerGroup", "resetting")
    wait_until(lambda: replicas_of(served, "second") == 4, 30, "the second target's replicas")
    member.close()
    served.apply_cluster()


def give_address(served: Served, service: str, address: str) -> None:
    """Do what a cloud's controller does when its load balancer is there."""
    status = json.dumps({"status": {"loadBalancer": {"ingress": [{"ip": address}]}}})
    patch = ("--subresource=status", "--type=merge", "-p", status)
    kubectl("-n", served.namespace, "patch", "service", service, *patch)


def test_a_listener_without_an_address_holds_up_nothing_else(served: Served) -> None:
    balanced = {"name": "balanced", "port": 9095, "type": "LoadBalancer"}

    def ask(replicas: int, partitions_wanted: int, *listeners: dict[str, Any]) -> None:
        pools = [{"name": "a", "replicas": replicas}]
        config = {"num.partitions": str(partitions_wanted)}
        make(served, "lb", pools=pools, config=config, listeners=[{"name": "plain"}, *listeners])

    def found() -> Any:
        return get(served.namespace, "statefulset", "lb-a")

    def serves(text: str) -> bool:
        return text in json.dumps(found().get("spec", {}).get("template", {}))

    def partitions(number: int) -> str:
        return json.dumps(json.dumps({"num.partitions": str(number)})[1:-1])[1:-1]

    def lacks(number: int) -> bool:
        message = condition(served.get("Cluster", "lb")).get("message", "")
        return f"Service lb-a-{number}-balanced has no address yet" in message

    ask(1, 4)
    wait_until(lambda: identity_of(served, "lb") and found(), 60, "its set")
    # As when its broker, which nobody starts here, had served.
    identity = json.dumps({**identity_of(served, "lb"), "isFormed": True})
    patch = json.dumps({"data": {"identity.json": identity}})
    kubectl("-n", served.namespace, "patch", "cm", "lb-identity", "--type=merge", "-p", patch)
    wait_until(lambda: identity_of(served, "lb").get("isFormed"), 30, "the note")
    ask(1, 4, balanced)
    wait_until(lambda: lacks(0), 60, "the listener to wait")
    # Settings, and a set that somebody deletes.
    ask(1, 5, balanced)
    wait_until(lambda: serves(partitions(5)), 60, "the settings")
    assert not serves("9095")
    former = found()["metadata"]["uid"]
    kubectl("-n", served.namespace, "delete", "statefulset", "lb-a", "--wait=false")
    wait_until(lambda: found() and found()["metadata"]["uid"] != former, 60, "another set")
    assert lacks(0)
    give_address(served, "lb-a-0-balanced", "198.51.100.11")
    wait_until(lambda: serves("9095"), 60, "the listener")
    # Another broker, whose load balancer takes its time.
    ask(2, 5, balanced)
    wait_until(lambda: lacks(1), 60, "the broker to wait")
    ask(2, 6, balanced)
    wait_until(lambda: serves(partitions(6)), 60, "the other settings")
    assert found()["spec"]["replicas"] == 1
    give_address(served, "lb-a-1-balanced", "198.51.100.12")
    wait_until(lambda: found()["spec"]["replicas"] == 2, 60, "the other broker")
    delete(served, "Cluster", "lb")


def test_a_pod_that_admission_refuses_is_said_in_the_api_servers_words(served: Served) -> None:
    template = {"spec": {"priorityClassName": "gold"}}
    make(served, "refused-pods", pools=[{"name": "a", "podTemplate": template}])

    def said(kind: str) -> str:
        return str(condition(served.get("Cluster", "refused-pods"), kind).get("message", ""))

    words = "no PriorityClass with name gold was found"
    wait_until(lambda: words in said("Ready"), 90, "the words")
    wait_until(lambda: words in said("Stalled"), 120, "a minute of it")
    delete(served, "Cluster", "refused-pods")


def test_a_pod_that_does_not_start_has_the_words_of_its_latest_event(served: Served) -> None:
    make(served, "hanging")
    wait_until(lambda: get(served.namespace, "statefulset", "hanging-a"), 60, "its set")
    live = get(served.namespace, "statefulset", "hanging-a")
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "controller": True}
    owner |= {key: live["metadata"][key] for key in ("name", "uid")}
    place = {"name": "hanging-a-0", "namespace": served.namespace, "ownerReferences": [owner]}
    template = live["spec"]["template"]
    spec = {**template["spec"], "nodeName": "node1"}
    volume = {"name": "data-0", "emptyDir": {}}
    spec["volumes"] = [*spec["volumes"], volume]
    metadata = {**template["metadata"], **place}
    apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    now = dt.datetime.now(dt.UTC)
    began = f"{now - dt.timedelta(minutes=3):%Y-%m-%dT%H:%M:%SZ}"
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": began}
    status = json.dumps({"status": {"phase": "Pending", "conditions": [placed]}})
    patch = ("--subresource=status", "--type=merge", "-p", status)
    kubectl("-n", served.namespace, "patch", "pod", "hanging-a-0", *patch)
    regarding = {"apiVersion": "v1", "kind": "Pod", "namespace": served.namespace}
    regarding |= {"name": "hanging-a-0"}
    regarding["uid"] = get(served.namespace, "pod", "hanging-a-0")["metadata"]["uid"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "hanging.1", "namespace": served.namespace},
        "involvedObject": regarding,
        "reason": "FailedMount",
        "type": "Warning",
        "message": 'secret "keys" not found',
        "lastTimestamp": f"{now:%Y-%m-%dT%H:%M:%SZ}",
    }
    apply(event)

    def stalled() -> str:
        return str(condition(served.get("Cluster", "hanging"), "Stalled").get("message", ""))

    wait_until(lambda: 'FailedMount: secret "keys" not found' in stalled(), 60, "its words")
    delete(served, "Cluster", "hanging")


def test_what_is_around_brokers_is_kept_while_the_spec_is_held_back(served: Served) -> None:
    make(served, "held", listeners=[{"name": "plain"}])
    names = {"service": "held-brokers", "networkpolicy": "held-brokers", "pdb": "held-brokers"}

    def are_there() -> bool:
        return all(get(served.namespace, *each) for each in names.items())

    wait_until(are_there, 60, "what is around its brokers")
    owners = get(served.namespace, "pdb", "held-brokers")["metadata"]["ownerReferences"]
    labels = get(served.namespace, "service", "held-brokers")["metadata"]["labels"]
    held_back = [{"config": {"num.partitionz": "1"}}, {"updatePolicy": "Plan", "version": "4.2.1"}]
    for number, spec in enumerate(held_back):
        make(served, "held", listeners=[{"name": "plain"}], **spec)
        for each in names.items():
            kubectl("-n", served.namespace, "delete", *each)
        stray = {"name": f"held-stray-{number}", "namespace": served.namespace, "labels": labels}
        service = {"clusterIP": "None", "ports": [{"port": 1}]}
        document = {"apiVersion": "v1", "kind": "Service", "spec": service}
        apply(document | {"metadata": stray | {"ownerReferences": owners}})
        wait_until(are_there, 60, "what is around its brokers to come back")
        gone = lambda name=stray["name"]: not get(served.namespace, "service", name)  # noqa: E731
        wait_until(gone, 60, "the stray Service to go")


def meant_of(served: Served, kind: str, name: str) -> Any:
    """Return what an object of brokers says; {} where it is gone or going."""
    found = get(served.namespace, kind, name)
    if not found or found["metadata"].get("deletionTimestamp"):
        return {}
    kept = {key: found["metadata"][key] for key in ("labels", "annotations", "ownerReferences")}
    return kept | {key: found.get(key) for key in ("spec", "data")}


def settled(served: Served, kind: str, name: str) -> Any:
    """Return what an object says once that changes no more."""
    before, found = None, meant_of(served, kind, name)
    while not found or before != found:
        time.sleep(3)
        before, found = found, meant_of(served, kind, name)
    return found


def edited(served: Served, kind: str, name: str, change: dict[str, Any]) -> None:
    """Change an object as anybody may."""
    place = ("-n", served.namespace, "patch", kind, name)
    kubectl(*place, "--type=merge", "-p", json.dumps(change))


def pools_of(number: int, replicas: int = 2, **rest: Any) -> list[dict[str, Any]]:
    storage = {"size": "1Gi", "volumes": number}
    return [{"name": "a", "replicas": replicas, "storage": storage, **rest}]


HELD_BACK: list[dict[str, Any]] = [
    # Not approved: more brokers, volumes and memory, another image.
    {
        "updatePolicy": "Plan",
        "image": "headrace:another",
        "pools": pools_of(2, 3, resources={"requests": {"memory": "1Gi"}}),
    },
    {
        "updatePolicy": "Plan",
        "pools": [{"name": "b"}],
        "listeners": [{"name": "other", "port": 9093}],
    },
    {"config": {"num.partitionz": "1"}, "pools": pools_of(2)},
]


@pytest.mark.parametrize("number", range(len(HELD_BACK)))
def test_what_brokers_are_made_of_is_kept_as_it_was_while_the_spec_is_held_back(
    served: Served, number: int
) -> None:
    name = f"as-it-was-{number}"
    objects = [("statefulset", f"{name}-a"), ("configmap", f"{name}-a")]
    before = {"pools": pools_of(1), "config": {"num.partitions": 3}}
    make(served, name, **before)
    wait_until(lambda: all(meant_of(served, *each) for each in objects), 60, "its objects")
    meant = {each: meant_of(served, *each) for each in objects}
    make(served, name, **(before | HELD_BACK[number]))
    for each in objects:
        kubectl("-n", served.namespace, "delete", *each)
        wait_until(lambda o=each: meant_of(served, *o) == meant[o], 60, f"{each} as it was")  # type: ignore[misc]  # bound to this round
    # Another process knows no more than what is stored.
    served.operator.stop()
    for each in objects:
        kubectl("-n", served.namespace, "delete", *each)
    served.operator.start()
    for each in objects:
        wait_until(lambda o=each: meant_of(served, *o) == meant[o], 60, f"{each} as it was")  # type: ignore[misc]  # bound to this round
    edited(served, "statefulset", f"{name}-a", {"spec": {"replicas": 0}})
    edited(served, "configmap", f"{name}-a", {"data": None})
    # Nor is it lost with where it is stored.
    kubectl("-n", served.namespace, "delete", "configmap", f"{name}-identity")
    for each in objects:
        wait_until(lambda o=each: meant_of(served, *o) == meant[o], 60, f"{each} as it was")  # type: ignore[misc]  # bound to this round
    wait_until(lambda: identity_of(served, name), 60, "its identity")
    assert not get(served.namespace, "statefulset", f"{name}-b")


def test_a_pool_that_is_leaving_is_kept_until_its_brokers_left(served: Served) -> None:
    make(served, "leaving", pools=pools_of(1))
    wait_until(lambda: meant_of(served, "statefulset", "leaving-a"), 60, "its set")
    identity = identity_of(served, "leaving") | {"isFormed": True}
    edited(
        served, "configmap", "leaving-identity", {"data": {"identity.json": json.dumps(identity)}}
    )
    make(served, "leaving", pools=[{"name": "b"}])
    wait_until(lambda: meant_of(served, "statefulset", "leaving-b"), 60, "the other set")
    for kind in ("configmap", "statefulset"):
        before = settled(served, kind, "leaving-a")
        kubectl("-n", served.namespace, "delete", kind, "leaving-a")
        wait_until(
            lambda k=kind, was=before: meant_of(served, k, "leaving-a") == was,  # type: ignore[misc]  # bound to this round
            60,
            f"the {kind} of the pool that leaves",
        )


def test_a_volume_that_may_not_grow_stalls_its_cluster(served: Served) -> None:
    pools = [{"name": "a", "replicas": 1, "storage": {"size": "1Gi"}}]
    make(served, "grows", pools=pools)
    wait_until(lambda: get(served.namespace, "statefulset", "grows-a"), 60, "its set")
    make_claim(served, "grows")
    # Nobody has provided it, and until then the API server lets no claim change.
    pools[0]["storage"] = {"size": "2Gi"}
    make(served, "grows", pools=pools)
    claim = "PersistentVolumeClaim data-0-grows-a-0: "

    def says() -> str:
        found = condition(served.get("Cluster", "grows"), "Stalled")
        return str(found["message"]) if found.get("status") == "True" else ""

    wait_until(lambda: says().startswith(claim), 30, "the Cluster to be stalled")
    assert "it cannot grow from 1Gi to 2Gi: " in says()
    # Its set is made again for new brokers' claims: until the old one is gone, that waits.
    assert get(served.namespace, "statefulset", "grows-a")["metadata"]["deletionTimestamp"]
    going = "StatefulSet grows-a: Conflict: it is being deleted"

    def waits() -> bool:
        return going in condition(served.get("Cluster", "grows"), "Reconciling")["message"]

    wait_until(waits, 30, "the Cluster to wait for the old set")


def events_of(served: Served, name: str) -> str:
    """Return what Warnings say of an object."""
    listed = json.loads(kubectl("-n", served.namespace, "get", "events", "-o", "json"))
    return "; ".join(
        each["message"]
        for each in listed["items"]
        if each["involvedObject"]["name"] == name and each["type"] == "Warning"
    )


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"restartPolicy": {"type": "Never", "recovery": {"a": 1}}}, "restartPolicy.recovery"),
    ({"driver": {"configMaps": [{"name": "no-path"}]}}, "'path'"),
    ({"driver": {"labels": {"a": "no label!"}}}, "Pod"),
    ({"driver": {"serviceLabels": {"a": "no label!"}}}, "Service"),
    ({"sparkUIOptions": {"servicePort": 99999}}, "Service"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_a_refused_application_says_why_and_goes_on_once_corrected(
    served: Served, number: int
) -> None:
    spec, words = REFUSED[number]
    name = f"refused-{number}"
    document = application(**spec)
    document["metadata"] = {"name": name, "namespace": served.namespace}
    apply(document)

    def said() -> str:
        state = get(served.namespace, "sparkapplication", name).get("status", {})
        return str(state.get("applicationState", {}).get("errorMessage", ""))

    wait_until(lambda: words in said(), 30, "the reason in the status")
    wait_until(lambda: words in events_of(served, name), 30, "the reason in an Event")
    corrected = application()
    corrected["metadata"] = document["metadata"]
    apply(corrected)
    wait_until(lambda: get(served.namespace, "pod", f"{name}-driver"), 30, "the driver")
    wait_until(lambda: not said(), 30, "the reason to go")


def said(served: Served, name: str) -> tuple[str, str]:
    """Return an application's state, and what its status says of it."""
    found = get(served.namespace, "sparkapplication", name).get("status", {})
    state = found.get("applicationState", {})
    return str(state.get("state", "")), str(state.get("errorMessage", ""))


def test_an_application_takes_over_nothing_of_others(served: Served) -> None:
    rbac = "rbac.authorization.k8s.io"
    role = {"apiGroup": rbac, "kind": "Role", "name": "another"}
    service = {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 1}]}}
    others: list[tuple[str, dict[str, Any]]] = [
        ("taken-spark-settings", {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}),
        ("taken-ui-svc", service),
        ("headrace-taker", {"apiVersion": f"{rbac}/v1", "kind": "Role", "rules": []}),
        ("headrace-taker", {"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", "roleRef": role}),
    ]

    def make_other(name: str, document: dict[str, Any]) -> str:
        apply(document | {"metadata": {"name": name, "namespace": served.namespace}})
        found: dict[str, Any] = get(served.namespace, document["kind"].lower(), name)
        return str(found["metadata"]["resourceVersion"])

    versions = [make_other(*each) for each in others]
    manifest = application(driver={"serviceAccount": "taker"})
    manifest["metadata"] = {"name": "taken", "namespace": served.namespace}
    apply(manifest)

    def waits_for(kind: str, name: str) -> bool:
        text = f"{kind} {name}: there is one of this name already"
        return text in said(served, "taken")[1] and text in events_of(served, "taken")

    for (name, document), version in zip(others, versions, strict=True):
        kind = document["kind"]
        wait_until(lambda k=kind, n=name: waits_for(k, n), 30, f"{kind} {name} to be named")  # type: ignore[misc]  # bound to this round
        found = get(served.namespace, kind.lower(), name)["metadata"]
        assert (found["resourceVersion"], found.get("ownerReferences")) == (version, None)
        assert not get(served.namespace, "pod", "taken-driver")
        delete(served, kind, name)
    wait_until(lambda: get(served.namespace, "pod", "taken-driver"), 30, "the driver")
    wait_until(lambda: said(served, "taken") == ("SUBMITTED", ""), 30, "the reasons to go")
    # The same while its driver is there.
    service["spec"] = {"ports": [{"port": 2}]}
    served.operator.stop()
    delete(served, "service", "taken-ui-svc")
    version = make_other("taken-ui-svc", service)
    seen = len(events_of(served, "taken"))
    served.operator.start()
    wait_until(lambda: waits_for("Service", "taken-ui-svc"), 30, "the Service to be named")
    wait_until(lambda: len(events_of(served, "taken")) > seen, 30, "a second Event")
    assert (
        get(served.namespace, "service", "taken-ui-svc")["metadata"]["resourceVersion"] == version
    )
    delete(served, "service", "taken-ui-svc")

    def has_its_own() -> bool:
        found = get(served.namespace, "service", "taken-ui-svc").get("metadata", {})
        return bool(found.get("ownerReferences")) and not said(served, "taken")[1]

    wait_until(has_its_own, 30, "its own Service")


def test_an_application_grants_nothing_to_the_account_of_a_cluster(served: Served) -> None:
    make(served, "accounts")
    account = "accounts-brokers"
    wait_until(lambda: get(served.namespace, "serviceaccount", account), 60, "its account")
    before = get(served.namespace, "serviceaccount", account)["metadata"]
    manifest = application(driver={"serviceAccount": account})
    manifest["metadata"] = {"name": "borrows", "namespace": served.namespace}
    apply(manifest)
    wait_until(lambda: get(served.namespace, "pod", "borrows-driver"), 30, "the driver")
    after = get(served.namespace, "serviceaccount", account)["metadata"]
    assert after["ownerReferences"] == before["ownerReferences"]
    assert not get(served.namespace, "role", f"headrace-{account}")


#: What is around the driver of `kept`, and what somebody changes in it.
AROUND: list[tuple[str, str, dict[str, Any]]] = [
    ("rolebinding", "headrace-keeper", {"subjects": None}),
    ("role", "headrace-keeper", {"rules": [], "metadata": {"ownerReferences": None}}),
    ("serviceaccount", "keeper", {"metadata": {"labels": None}}),
    ("service", "kept-job-ui-svc", {"spec": {"selector": {"app": "mine"}}}),
    ("configmap", "kept-job-spark-settings", {}),
]


def make_job(served: Served, name: str) -> None:
    manifest = application(driver={"serviceAccount": "keeper"})
    apply(manifest | {"metadata": {"name": name, "namespace": served.namespace}})
    wait_until(lambda: get(served.namespace, "pod", f"{name}-driver"), 30, "the driver")


def around(served: Served, kind: str, name: str) -> dict[str, Any]:
    """Return what an object says, without what each write changes."""
    found = get(served.namespace, kind, name)
    if not found:
        return {}
    owners = found["metadata"].get("ownerReferences") or []
    spec = {key: value for key, value in found.get("spec", {}).items() if "lusterIP" not in key}
    return {
        "owners": sorted(each["name"] for each in owners),
        "labels": found["metadata"].get("labels"),
        "spec": spec,
        **{key: found.get(key) for key in ("rules", "subjects", "roleRef", "data")},
    }


def test_what_is_around_a_driver_is_put_right_while_it_runs(served: Served) -> None:
    for job in ("kept-job", "kept-beside"):
        make_job(served, job)
    settled = ("SUBMITTED", "")
    wait_until(lambda: said(served, "kept-beside") == settled, 30, "both to be submitted")
    before = {(kind, name): around(served, kind, name) for kind, name, _ in AROUND}
    assert before["role", "headrace-keeper"]["owners"] == ["kept-beside", "kept-job"]

    def is_mended(kind: str, name: str) -> bool:
        return around(served, kind, name) == before[kind, name]

    for kind, name, edit in AROUND:
        kubectl("-n", served.namespace, "delete", kind, name)
        wait_until(lambda k=kind, n=name: is_mended(k, n), 30, f"the {kind} that was deleted")  # type: ignore[misc]  # bound to this round
        if edit:
            patch = ("--type=merge", "-p", json.dumps(edit))
            kubectl("-n", served.namespace, "patch", kind, name, *patch)
            wait_until(lambda k=kind, n=name: is_mended(k, n), 30, f"the {kind} that was edited")  # type: ignore[misc]  # bound to this round
    assert said(served, "kept-job") == settled
    # What others add is theirs, and nobody fights over what is shared.
    port = {"spec": {"ports": [{"name": "mine", "port": 7000, "protocol": "TCP"}]}}
    patch = ("--type=strategic", "-p", json.dumps(port))
    kubectl("-n", served.namespace, "patch", "service", "kept-job-ui-svc", *patch)

    def writes() -> list[float]:
        # Clusters of the tests before have kinds of their own, and no Roles.
        name = "headrace_operator_kubernetes_writes_total"
        kinds = ("Role", "RoleBinding", "Service")
        return [served.operator.metric(name, f'kind="{kind}"') for kind in kinds]

    time.sleep(3)
    before_it = writes()
    label = ("kept-job-driver", "touched=yes", "--overwrite")
    kubectl("-n", served.namespace, "label", "pod", *label)
    time.sleep(3)
    assert writes() == before_it
    ports = get(served.namespace, "service", "kept-job-ui-svc")["spec"]["ports"]
    assert {each["name"] for each in ports} == {"spark-driver-ui-port", "metrics", "mine"}


@pytest.mark.parametrize("number", [0, 1])
def test_a_spec_that_is_refused_beside_a_driver_leaves_it_running(
    served: Served, number: int
) -> None:
    spec, words = REFUSED[number]
    name = f"running-{number}"
    place = {"name": name, "namespace": served.namespace}

    def uid() -> str:
        found = get(served.namespace, "pod", f"{name}-driver").get("metadata", {})
        return str(found.get("uid", ""))

    apply(application() | {"metadata": place})
    wait_until(uid, 30, "the driver")
    first = uid()
    status = json.dumps({"status": {"phase": "Running"}})
    pod = ("pod", f"{name}-driver", "--subresource=status", "--type=merge", "-p", status)
    kubectl("-n", served.namespace, "patch", *pod)
    wait_until(lambda: said(served, name) == ("RUNNING", ""), 30, "the driver to run")
    for arguments in ({}, {"arguments": ["--other"]}):
        apply(application(**spec) | {"metadata": place})
        wait_until(lambda: words in said(served, name)[1], 30, "the reason in the status")
        assert said(served, name)[0] == "RUNNING"
        wait_until(lambda: words in events_of(served, name), 30, "the reason in an Event")
        assert uid() == first
        apply(application(**arguments) | {"metadata": place})
        wait_until(lambda: not said(served, name)[1], 30, "the reason to go")
        # A corrected spec that is the accepted one needs no other driver.
        wait_until(lambda a=arguments: (uid() not in ("", first)) is bool(a), 30, "its driver")  # type: ignore[misc]  # bound to this round
