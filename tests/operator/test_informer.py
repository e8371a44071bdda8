import asyncio
import random
from typing import Any

import pytest

from headrace_operator.kubernetes.api.cache import Store
from headrace_operator.kubernetes.informer import Informer
from headrace_operator.kubernetes.queue import QueueKey, WorkQueue
from headrace_operator.kubernetes.reconcile import desired_of
from headrace_operator.kubernetes.register import Register
from headrace_operator.plan import DeleteTopic, ObservedTopic, plan
from headrace_operator.render.names import pool_labels
from headrace_operator.resources import API_VERSION, ConsumerGroup
from support.operator_resources import cluster, make, observed

CLUSTER = ("default", "c")


class Marks:
    """Takes the marks that a reconciler would."""

    def __init__(self) -> None:
        self.keys: list[Any] = []

    def mark(self, key: Any, resource: Any = None, *, health: bool = False) -> None:
        self.keys.append((key, resource, health))


def group_document(uid: str = "uid-g", version: int = 1, **status: Any) -> dict[str, Any]:
    found = document("g", version)
    found["metadata"]["uid"] = uid
    reference = {"kind": "Deployment", "name": "readers"}
    spec = {"clusterRef": {"name": "c"}, "targetRef": reference}
    return {**found, "kind": "ConsumerGroup", "spec": spec, "status": status}


def document(
    name: str = "t", version: int = 1, created: str = "2026-01-01T00:00:00Z", **spec: Any
) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "Topic",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "generation": 1,
            "creationTimestamp": created,
        },
        "spec": {"clusterRef": {"name": "c"}, "topicName": "t", **spec},
        "status": {"topicId": "id-1"},
    }


def cluster_document(uid: str = "uid-c", version: int = 1) -> dict[str, Any]:
    metadata = {"name": "c", "namespace": "default", "uid": uid, "resourceVersion": str(version)}
    return {"apiVersion": API_VERSION, "kind": "Cluster", "metadata": metadata, "spec": {}}


class Seen:
    """An informer and what it feeds. There is the Cluster."""

    def __init__(self) -> None:
        self.register, self.marks = Register(), Marks()
        self.now = 0.0
        self.queue = WorkQueue(lambda: self.now, random.Random(7))
        self.informer = Informer(Store(), self.register, self.queue, self.marks)  # type: ignore[arg-type]  # it only marks
        self.see((cluster_document(), False))

    def see(self, *events: tuple[dict[str, Any], bool]) -> "Seen":
        for obj, is_gone in events:
            self.informer.see(obj, is_gone=is_gone)
        return self

    def due(self) -> set[QueueKey]:
        """Take all keys that are due."""

        async def taken() -> set[QueueKey]:
            return {await self.queue.take() for _ in range(self.queue.depth)}

        found = asyncio.run(taken())
        for key in found:
            self.queue.done(key)
        return found

    def departed(self, cluster_uid: str = "uid-c") -> list[str]:
        return [each.metadata.name for each in self.register.departed(CLUSTER, cluster_uid)]

    def planned(self, topic_id: str = "id-1", cluster_uid: str = "uid-c") -> list[str]:
        """Return the topics that would be deleted."""
        topics = {"t": ObservedTopic(partitions=1, replicas=1, topic_id=topic_id)}
        departed = self.register.departed(CLUSTER, cluster_uid)
        resources = [*self.register.of_cluster(CLUSTER), *departed]
        planned = plan(observed(topics=topics), desired_of(cluster(), resources))
        return [each.topic for each in planned.actions if isinstance(each, DeleteTopic)]


def gone(**spec: Any) -> tuple[dict[str, Any], bool]:
    return document(version=2, **spec), True


def test_only_what_was_seen_to_go_with_policy_delete_is_deleted():
    there = (document(deletionPolicy="Delete"), False)
    assert Seen().see(there, gone(deletionPolicy="Delete")).planned() == ["t"]
    # The last state counts: the policy may have been changed before.
    for policy in ("Retain", "Protect"):
        assert Seen().see(there, gone(deletionPolicy=policy)).planned() == []


def test_a_deletion_that_no_watch_delivered_deletes_nothing():
    seen = Seen().see((document(deletionPolicy="Delete"), False))
    seen.informer.take_for_gone("Topic", ("default", "t"))
    assert seen.register.get(("Topic", "default", "t")) is None
    assert seen.planned() == []
    assert (CLUSTER, ("Topic", "default", "t"), False) in seen.marks.keys


def test_a_topic_made_later_by_the_same_name_is_not_deleted():
    seen = Seen().see((document(), False), gone(deletionPolicy="Delete"))
    assert seen.planned(topic_id="id-2") == []


def test_a_resource_that_was_made_again_takes_the_topic_over():
    seen = Seen().see((document(), False), gone(deletionPolicy="Delete"))
    again = document(version=3, deletionPolicy="Delete")
    assert seen.see((again, False)).planned() == []
    assert seen.departed() == []


def test_another_resource_for_the_same_topic_keeps_it_and_is_looked_at():
    younger = document("younger", created="2026-02-01T00:00:00Z")
    seen = Seen().see((document(), False), (younger, False), gone(deletionPolicy="Delete"))
    assert seen.planned() == []
    assert (CLUSTER, ("Topic", "default", "younger"), False) in seen.marks.keys[-2:]


def test_who_becomes_leader_leaves_old_deletions_to_whoever_led_then():
    seen = Seen().see((document(), False), gone(deletionPolicy="Delete"))
    seen.register.settle_old(60)
    assert seen.departed() == ["t"]
    seen.register.settle_old(-1)
    assert seen.departed() == []


def test_a_later_cluster_with_the_same_name_keeps_what_was_deleted_in_the_former_one():
    seen = Seen().see((document(), False), gone(deletionPolicy="Delete"))
    again = cluster_document("uid-d", version=9)
    seen.see((cluster_document(version=8), True), (again, False))
    # With retained volumes it is the same topic, with the same id.
    assert seen.planned(cluster_uid="uid-d") == []
    seen.register.settle_former(CLUSTER, "uid-d")
    assert seen.departed() == []


def test_a_topic_that_is_deleted_without_its_cluster_leaves_nothing_to_delete():
    seen = Seen().see((document(), False), (cluster_document(version=8), True))
    seen.see(gone(deletionPolicy="Delete"))
    assert seen.departed("") == []
    seen.see((cluster_document("uid-d", version=9), False))
    assert seen.planned(cluster_uid="uid-d") == []


def test_a_group_whose_readers_are_stopped_is_kept_whatever_became_of_its_cluster():
    stopped = group_document(version=2, pausedReplicas=3)
    seen = Seen().see((stopped, False), (stopped, True))
    assert [seen.departed(uid) for uid in ("uid-c", "uid-d", "")] == [["g"]] * 3
    seen.register.settle_former(CLUSTER, "uid-d")
    assert seen.departed() == ["g"]


def test_a_group_whose_deletion_no_watch_delivered_has_its_readers_started():
    seen = Seen().see((group_document(version=2, pausedReplicas=3), False))
    seen.informer.take_for_gone("ConsumerGroup", ("default", "g"))
    assert seen.departed() == ["g"]


def test_a_group_that_is_made_again_starts_the_readers_that_its_namesake_stopped():
    stopped = group_document(version=2, pausedReplicas=3)
    again = group_document("uid-g2", version=4)
    for events in (((stopped, True), (again, False)), ((again, False),)):
        seen = Seen().see((stopped, False), *events)
        found = seen.register.get(("ConsumerGroup", "default", "g"))
        assert isinstance(found, ConsumerGroup)
        assert (found.metadata.uid, found.status.paused_replicas) == ("uid-g2", 3)
        assert found.present_target is not None
        assert found.present_target.name == "readers"


def test_an_older_state_than_the_known_one_is_ignored():
    seen = Seen().see((document(version=5), False), gone(deletionPolicy="Delete"))
    assert seen.register.get(("Topic", "default", "t")) is not None


@pytest.mark.parametrize("kind", ["Topic", "ConsumerGroup", "Cluster"])
def test_it_is_due_while_it_cannot_be_read_and_there(kind: str) -> None:
    whole = {
        "Topic": document(),
        "ConsumerGroup": group_document(),
        "Cluster": {**cluster_document(), "spec": {"pools": [{"name": "a", "replicas": 1}]}},
    }[kind]
    key = (kind, "default", whole["metadata"]["name"])
    field = {"Topic": "partitions", "ConsumerGroup": "targetRef", "Cluster": "pools"}[kind]

    def at(version: int, **spec: Any) -> dict[str, Any]:
        metadata = {**whole["metadata"], "resourceVersion": str(version)}
        return {**whole, "metadata": metadata, "spec": {**whole["spec"], **spec}}

    seen = Seen()
    seen.see((at(2, **{field: 7.5}), False))
    assert seen.informer.find_unreadable(key) is not None
    assert key in seen.due()
    seen.see((at(3), False))
    assert seen.informer.find_unreadable(key) is None
    seen.see((at(4, **{field: 7.5}), False), (at(5, **{field: 7.5}), True))
    assert seen.informer.find_unreadable(key) is None


def test_a_new_leader_looks_at_it_again() -> None:
    seen = Seen().see((document(partitions="many"), False))
    seen.due()
    seen.informer.mark_all()
    assert ("Topic", "default", "t") in seen.due()


@pytest.mark.parametrize("name", ["other", "x" * 64, f"{'long-name.' * 12}z"])
@pytest.mark.parametrize("is_gone", [False, True])
def test_what_becomes_of_a_pod_is_looked_at_at_once_however_long_its_clusters_name(
    name: str, *, is_gone: bool
) -> None:
    wanted = cluster_document(uid="uid-long")
    wanted["metadata"]["name"] = name
    elsewhere = cluster_document(uid="uid-elsewhere")
    elsewhere["metadata"] |= {"name": name, "namespace": "elsewhere"}
    pod = cluster_document(uid="uid-pod") | {"apiVersion": "v1", "kind": "Pod"}
    found = make("Cluster", name, {"pools": [{"name": "a"}]})
    pod["metadata"] |= {"name": "pod", "labels": pool_labels(found, "a")}
    seen = Seen().see((elsewhere, False), (wanted, False), (pod, False))
    seen.due()
    seen.marks.keys.clear()
    later = pod | {"metadata": pod["metadata"] | {"resourceVersion": "9"}}
    seen.see((later, is_gone))
    assert seen.marks.keys == [(("default", name), None, True)]
    seen.now = 1.0
    assert asyncio.run(seen.queue.take()) == ("Cluster", "default", name)
