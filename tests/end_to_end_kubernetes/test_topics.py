"""Topics on a real API server: the operator is a process, its one broker another."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.kube import ROOT, apply, condition, get, kubectl, resource
from support.kube_process import Served, others_stopped
from support.processes import wait_until


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with others_stopped(), Served(tmp_path_factory.mktemp("served")) as found:
        yield found


def test_a_topic_is_made_and_says_so(served: Served) -> None:
    apply(served.topic("orders", partitions=3, config={"retention.ms": 60000}))
    served.wait_ready("Topic", "orders")
    found = served.get("Topic", "orders")
    assert found["status"]["partitions"] == 3
    assert found["status"]["topicId"]
    assert condition(found, "Reconciling")["status"] == "False"
    assert condition(found, "Stalled")["status"] == "False"
    assert "orders" in served.topics()


def delete(served: Served, kind: str, name: str, namespace: str = "") -> None:
    """Delete it, and insist that it is gone at once."""
    where = namespace or served.namespace
    kubectl("-n", where, "delete", kind.lower(), name, "--timeout=10s")


def test_what_a_deleted_topic_leaves_is_as_its_policy_says(served: Served) -> None:
    apply(served.topic("kept"), served.topic("removed", deletionPolicy="Delete"))
    served.wait_ready("Topic", "kept")
    served.wait_ready("Topic", "removed")
    delete(served, "Topic", "removed")
    delete(served, "Topic", "kept")
    wait_until(lambda: "removed" not in served.topics(), 20, "the topic to be deleted")
    assert "kept" in served.topics()


@contextmanager
def relaxed_crd() -> Iterator[None]:
    """Let anything in as partitions or deletionPolicy, as a CRD of another version might."""
    where = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/"
    anything = {"x-kubernetes-preserve-unknown-fields": True}
    names = ("partitions", "deletionPolicy")
    changes = [{"op": "replace", "path": where + name, "value": anything} for name in names]
    patch = json.dumps(changes)
    path = str(ROOT / "crds/topics.headrace.dev.yaml")
    try:
        kubectl("patch", "crd", "topics.headrace.dev", "--type=json", "-p", patch)
        yield
    finally:
        kubectl("apply", "--server-side", "--force-conflicts", "-f", path)


def test_what_another_crd_let_in_and_nobody_can_read_is_told(served: Served) -> None:
    topics = (served.topic("old", deletionPolicy="Maybe"), served.topic("older", partitions="many"))
    served.operator.stop()

    def is_let_in() -> bool:
        try:
            apply(*topics)
        except RuntimeError:
            return False
        return True

    with relaxed_crd():
        wait_until(is_let_in, 30, "the relaxed CRD to be in force")
    # The CRD forbids the spec by now, as after an upgrade.
    served.operator.start()
    wait_until(lambda: served.reason("Topic", "old") == "InvalidSpec", 20, "the refusal")
    found = served.get("Topic", "old")
    assert condition(found, "Stalled")["status"] == "True"
    assert "`$.spec.deletionPolicy`" in condition(found, "Ready")["message"]
    assert not {"old", "older"} & served.topics()

    def has_event(name: str) -> bool:
        of = f"--field-selector=involvedObject.name={name}"
        found = kubectl("-n", served.namespace, "get", "events", of, "-o", "json")
        return "this version cannot read it" in found

    # Of what its own rules cannot compare, the API server takes no status either.
    for name in ("old", "older"):
        wait_until(lambda name=name: has_event(name), 20, "the Event")  # type: ignore[misc]  # the loop's
    kubectl("-n", served.namespace, "delete", "topic", "older")
    found["spec"]["deletionPolicy"] = "Delete"
    kubectl("replace", "-f", "-", stdin=json.dumps(found))
    served.wait_ready("Topic", "old")
    assert condition(served.get("Topic", "old"), "Stalled")["status"] == "False"


@pytest.fixture(scope="module")
def protection() -> None:
    """The policy of manifests/cluster-setup; it stays: the operator's installation has it."""
    path = ROOT / "manifests/cluster-setup/protection.yaml"
    kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))


def refuses(served: Served, kind: str, name: str) -> bool:
    """Whether a deletion is refused with a word on what to do (a dry run)."""
    try:
        kubectl("-n", served.namespace, "delete", kind, name, "--dry-run=server")
    except RuntimeError as error:
        return "deletionPolicy: Protect" in str(error)
    return False


@pytest.mark.usefixtures("protection")
def test_what_is_protected_is_not_deleted_by_accident(served: Served) -> None:
    apply(served.topic("guarded", deletionPolicy="Protect"))
    served.wait_ready("Topic", "guarded")
    wait_until(lambda: refuses(served, "topic", "guarded"), 20, "the policy to be in force")
    # Saying so first is enough.
    apply(served.topic("guarded", deletionPolicy="Delete"))
    served.wait_ready("Topic", "guarded")
    delete(served, "Topic", "guarded")
    wait_until(lambda: "guarded" not in served.topics(), 20, "the topic to be deleted")


@pytest.mark.usefixtures("protection")
def test_a_topic_whose_cluster_is_not_there_can_be_deleted_whatever_its_policy(
    served: Served,
) -> None:
    names = ("retain", "delete", "protect")
    for name in names:
        reference = {"name": "nowhere"}
        spec = {"clusterRef": reference, "deletionPolicy": name.capitalize()}
        apply(resource("Topic", served.namespace, name, **spec))
    for name in names:
        wait_until(
            lambda name=name: served.reason("Topic", name) == "ClusterNotFound",  # type: ignore[misc]  # the loop's
            20,
            "the missing Cluster to be named",
        )
        delete(served, "Topic", name)


def test_a_topic_that_another_resource_describes_outlives_the_one_that_is_deleted(
    served: Served,
) -> None:
    apply(served.topic("older", topicName="shared", deletionPolicy="Delete"))
    served.wait_ready("Topic", "older")
    # Kubernetes keeps whole seconds, and of two in one second the names decide.
    time.sleep(1.1)
    apply(served.topic("younger", served.other_namespace, topicName="shared"))
    wait_until(
        lambda: served.reason("Topic", "younger", served.other_namespace) == "NamespaceNotAllowed",
        20,
        "the other namespace to be refused",
    )
    served.apply_cluster(allowedTopics={"namespaces": {"from": "All"}})
    wait_until(
        lambda: served.reason("Topic", "younger", served.other_namespace) == "DuplicateTopic",
        20,
        "the younger one to be refused",
    )
    assert served.ready("Topic", "older") == "True"
    delete(served, "Topic", "older")
    wait_until(
        lambda: served.ready("Topic", "younger", served.other_namespace) == "True",
        20,
        "the younger one to take over",
    )
    assert "shared" in served.topics()


@pytest.mark.slow
def test_namespaces_are_allowed_by_their_labels(served: Served) -> None:
    selector = {"matchLabels": {"team": "blue"}}
    served.apply_cluster(allowedTopics={"namespaces": {"from": "Selector", "selector": selector}})
    apply(served.topic("chosen", served.other_namespace))
    wait_until(
        lambda: served.reason("Topic", "chosen", served.other_namespace) == "NamespaceNotAllowed",
        20,
        "a namespace without the label to be refused",
    )
    kubectl("label", "namespace", served.other_namespace, "team=blue")
    wait_until(
        lambda: served.ready("Topic", "chosen", served.other_namespace) == "True",
        60,
        "the label to be seen",
    )


def test_what_is_not_ready_is_counted_and_reported_once(served: Served) -> None:
    reference = {"name": "nowhere"}
    apply(served.topic("found"), resource("Topic", served.namespace, "lost", clusterRef=reference))
    served.wait_ready("Topic", "found")
    wait_until(lambda: served.reason("Topic", "lost") == "ClusterNotFound", 20, "the reason")
    labels = ('kind="Topic"', 'reason="ClusterNotFound"')
    assert served.operator.metric("headrace_operator_resources_not_ready", *labels) == 1
    assert served.operator.metric("headrace_operator_resources", 'kind="Topic"') > 1

    def told() -> list[str]:
        fields = "involvedObject.kind=Topic,involvedObject.name=lost"
        items = get(served.namespace, "events", "--field-selector", fields)["items"]
        return [f"{each['type']} {each['reason']}" for each in items]

    wait_until(told, 20, "an Event")
    # A change that leaves the verdict as it was is no transition.
    apply(resource("Topic", served.namespace, "lost", clusterRef=reference, partitions=2))
    wait_until(
        lambda: served.get("Topic", "lost")["status"].get("observedGeneration") == 2, 20, "a look"
    )
    assert told() == ["Warning ClusterNotFound"]
    delete(served, "Topic", "lost")
    wait_until(
        lambda: served.operator.metric("headrace_operator_resources_not_ready", *labels) == 0, 20
    )


def test_a_topic_that_waited_for_brokers_is_made_when_they_answer(served: Served) -> None:
    served.broker.stop()
    apply(served.topic("patient"), served.group("patient", topics=["patient"]))
    for kind in ("Topic", "ConsumerGroup"):
        wait_until(
            lambda kind=kind: served.reason(kind, "patient") == "WaitingForCluster",  # type: ignore[misc]  # the loop's
            60,
            f"the {kind} to say what it waits for",
        )
    waiting = condition(served.get("Topic", "patient"), "Reconciling")
    assert waiting["status"] == "True"
    assert "do not answer" in waiting["message"]
    served.broker.start()
    served.wait_ready("Topic", "patient", 40)
    served.wait_ready("ConsumerGroup", "patient", 20)
    # The same pass writes it, after them.
    wait_until(lambda: served.ready("Cluster", "c") == "True", 20, "the Cluster to be ready")


def orphans(served: Served) -> list[str]:
    """Return the topics that the Cluster's status lists as nobody's."""
    found: dict[str, list[str]] = served.get("Cluster", "c")["status"].get("orphanTopics", {})
    return found.get("names", [])


def test_nothing_waits_for_an_operator_that_is_gone(served: Served) -> None:
    served.apply_cluster(allowedTopics={"namespaces": {"from": "All"}})
    apply(served.topic("left-behind", deletionPolicy="Delete"))
    apply(served.topic("in-ending", served.other_namespace, deletionPolicy="Delete"))
    apply(served.topic("guarded-in-ending", served.other_namespace, deletionPolicy="Protect"))
    served.wait_ready("Topic", "left-behind")
    for name in ("in-ending", "guarded-in-ending"):
        wait_until(
            lambda name=name: served.ready("Topic", name, served.other_namespace) == "True",  # type: ignore[misc]  # the loop's
            20,
            f"{name} to be ready",
        )
    served.operator.stop()
    delete(served, "Topic", "left-behind")
    kubectl("delete", "namespace", served.other_namespace, "--timeout=60s")
    assert get("default", "namespace", served.other_namespace) == {}
    served.operator.start()
    # Nobody saw the deletion: the topic is kept, and said to be nobody's.
    wait_until(lambda: "left-behind" in orphans(served), 60, "what is left to be listed")
    assert {"left-behind", "in-ending", "guarded-in-ending"} <= served.topics()
