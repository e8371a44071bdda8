"""What somebody overwrites by hand stops no pass: it is read from elsewhere, and written again."""

import asyncio
import datetime as dt
import json
from typing import Any

import msgspec
import pytest

from headrace_operator.kubernetes.api.cache import Store
from headrace_operator.kubernetes.brokers.identity import CLAIM_ANNOTATION, Identities, claim_mark
from headrace_operator.kubernetes.brokers.keeper import includes
from headrace_operator.kubernetes.brokers.observed import Seen, observed_broker
from headrace_operator.kubernetes.spark.seen import number
from headrace_operator.plan import ObservedCluster
from headrace_operator.plan.cordons import DRAINED_BROKERS, drained_brokers
from headrace_operator.render.brokers import render_identity
from headrace_operator.render.identity import Identity, Node
from headrace_operator.render.names import claim_labels, pod_name, stateful_set
from headrace_operator.render.pods import CONFIG_ANNOTATION, INPUTS_ANNOTATION
from headrace_operator.resources import Cluster
from support.operator_resources import cluster

NODE = Node(node_id=1, pool="a", ordinal=0)
IDENTITY = Identity(
    cluster_id="id", image="headrace:1", version="4.2", nodes=(NODE,), formed_with=3
)
NOW = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)
DAMAGED = [None, {}, {"identity.json": ""}, {"identity.json": "{"}, {"identity.json": "[1]"}]


def marked_claim(wanted: Cluster, name: str, text: str) -> dict[str, Any]:
    """Return a claim of pool a that says this of its broker."""
    metadata = {
        "namespace": "n",
        "name": name,
        "uid": name,
        "resourceVersion": "1",
        "labels": claim_labels(wanted, "a"),
        "annotations": {CLAIM_ANNOTATION: text},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata}


class Away:
    """An API server that has nothing besides what was seen already."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, *_: Any) -> None:
        return None

    async def list(self, _: str, kind: str, namespace: str, __: str) -> list[Any]:
        return self._store.list(kind, namespace)


def named(uid: str = "u-1") -> Cluster:
    found = cluster()
    metadata = msgspec.structs.replace(found.metadata, namespace="n", uid=uid)
    return msgspec.structs.replace(found, metadata=metadata)


def seen(wanted: Cluster, **change: Any) -> Store:
    """Return a store that has the identity's ConfigMap, with something changed."""
    store = Store()
    rendered = json.loads(json.dumps(render_identity(wanted, IDENTITY)))
    rendered["metadata"] |= {"uid": "cm", "resourceVersion": "5"}
    store.upsert({**rendered, **change})
    return store


def loaded(identities: Identities, wanted: Cluster) -> tuple[Identity | None, bool]:
    async def both() -> tuple[Identity | None, bool]:
        return await identities.load(wanted), await identities.is_kept(wanted)

    return asyncio.run(both())


@pytest.mark.parametrize("data", DAMAGED)
def test_an_identity_that_is_overwritten_is_known_from_before(data: Any) -> None:
    wanted = named()
    store = seen(wanted)
    identities = Identities(Away(store), store)  # type: ignore[arg-type]  # it is only asked for these
    assert loaded(identities, wanted) == (IDENTITY, True)
    (live,) = store.iterate("ConfigMap")
    store.upsert({**live, "data": data, "metadata": {**live["metadata"], "resourceVersion": "6"}})
    assert loaded(identities, wanted) == (IDENTITY, False), "to be written again"
    # Another Cluster of the same name is another one.
    assert loaded(identities, named("u-2"))[0] is None
    identities.forget(wanted)
    assert loaded(identities, wanted) == (None, False)


def test_a_new_process_knows_it_from_the_claims_that_can_be_read() -> None:
    wanted = named()
    store = seen(wanted, data={"identity.json": "mine"})
    marked = {"cluster": {"clusterId": "id", "formedWith": 3}, "node": {"nodeId": 1, "pool": "a"}}
    marked["node"] |= {"ordinal": 0}  # type: ignore[dict-item]  # JSON
    for name, text in (("data-0-c-a-0", json.dumps(marked)), ("data-0-c-a-1", "mine")):
        store.upsert(marked_claim(wanted, name, text))
    found, is_kept = loaded(Identities(Away(store), store), wanted)  # type: ignore[arg-type]  # as above
    assert found is not None
    assert (found.cluster_id, found.formed_with) == ("id", 3)
    assert [node.node_id for node in found.nodes] == [1]
    assert not is_kept


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_marks_that_differ_the_later_ones_count(order: tuple[int, int]) -> None:
    """Claims are marked one after the other, and an operator may end between two of them."""
    wanted = named()
    store = Store()
    early = msgspec.structs.replace(IDENTITY, is_formed=False)
    late = msgspec.structs.replace(IDENTITY, is_formed=True)
    again = msgspec.structs.replace(NODE, life=2)
    for name, mark in zip(order, (claim_mark(early, NODE), claim_mark(late, again)), strict=True):
        store.upsert(marked_claim(wanted, f"data-{name}-c-a-0", mark))
    found, _ = loaded(Identities(Away(store), store), wanted)  # type: ignore[arg-type]  # as above
    assert found is not None
    # Else another spec would begin anew, beside the data.
    assert found.is_formed
    assert [node.life for node in found.nodes] == [2]
    assert found.lives == {"1": 2}


@pytest.mark.parametrize("text", ["", "mine", "[]", "7", '{"retention'])
def test_what_a_pod_was_made_from_may_be_overwritten(text: str) -> None:
    wanted = named()
    pod = {
        "metadata": {
            "uid": "p",
            "annotations": {CONFIG_ANNOTATION: text, INPUTS_ANNOTATION: text},
        },
        "status": {},
    }
    sets = {stateful_set(wanted, "a"): {"spec": {"replicas": 1}}}
    pods = {pod_name(wanted, NODE): pod}
    found = observed_broker(
        wanted, IDENTITY, NODE, Seen(now=NOW, stateful_sets=sets, pods=pods, services={})
    )
    assert found.config == {}
    assert found.is_running


def test_a_selector_that_somebody_has_added_to_is_another_one() -> None:
    wanted = {"spec": {"selector": {"a": "b"}, "ports": [{"port": 1}]}}
    live = {"spec": {**wanted["spec"], "type": "ClusterIP"}, "status": {}}
    assert includes(live, wanted)
    assert not includes({"spec": {**live["spec"], "selector": {"a": "b", "c": "d"}}}, wanted)
    assert not includes({"spec": {**live["spec"], "selector": {}}}, wanted)


@pytest.mark.parametrize("text", ["mine", "1,x", "-1,1", "1,,", "1.5,1"])
def test_who_is_drained_may_be_overwritten(text: str) -> None:
    assert drained_brokers(ObservedCluster(live_config={DRAINED_BROKERS: text})) <= {1}


@pytest.mark.parametrize(("text", "wanted"), [("", 4), ("mine", 4), ("-1", 4), ("2", 2)])
def test_a_drivers_number_may_be_overwritten(text: str, wanted: int) -> None:
    assert number(text, 4) == wanted
