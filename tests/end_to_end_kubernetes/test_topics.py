"""Topics on a real API server: the operator is a process, its one broker another."""

from collections.abc import Iterator

import pytest

from support.kube import apply, condition, kubectl
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


def test_a_topic_that_another_resource_describes_outlives_the_one_that_is_deleted(
    served: Served,
) -> None:
    apply(served.topic("older", topicName="shared", deletionPolicy="Delete"))
    served.wait_ready("Topic", "older")
    kubectl("-n", served.namespace, "wait", "--for=create", "topic/older", "--timeout=5s")
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
