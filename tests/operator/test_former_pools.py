"""Sets of pools that are gone are shrunk and deleted, and no others, whatever their labels say."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_operator.kubernetes.api.cache import Store
from headrace_operator.kubernetes.brokers.passes import BrokersPass
from headrace_operator.render.identity import Identity, Node
from headrace_operator.render.names import POOL_LABEL
from headrace_operator.render.pods import render_pool
from support.operator_resources import cluster

CLUSTER = cluster([{"name": "a"}])
IDENTITY = Identity(
    cluster_id="id",
    is_formed=True,
    nodes=(Node(node_id=1, pool="a", ordinal=0), Node(node_id=2, pool="b", ordinal=0)),
)


class Client:
    """Notes what is written."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    async def patch(self, obj: Any, patch: Any) -> None:
        self.notes.append((obj["metadata"]["name"], patch["spec"]["replicas"]))

    async def delete(self, obj: Any, **_: Any) -> None:
        self.notes.append((obj["metadata"]["name"], "deleted"))


def written(pool: str, label: str | None, replicas: int) -> list[Any]:
    """Return what is written where a pool's set has this label, and so many replicas."""
    whole = cluster([{"name": pool}])
    (rendered,) = (render_pool(whole, IDENTITY, each) for each in whole.spec.pools)
    labels = dict(rendered["metadata"]["labels"])
    labels.pop(POOL_LABEL)
    labels |= {POOL_LABEL: label} if label else {}
    metadata = rendered["metadata"] | {"labels": labels, "uid": "s", "resourceVersion": "1"}
    store, client = Store(), Client()
    store.upsert({**rendered, "metadata": metadata, "spec": {"replicas": replicas}, "status": {}})
    tools: Any = SimpleNamespace(store=store, client=client, keeper=SimpleNamespace(forget=print))
    one = BrokersPass(tools, CLUSTER, IDENTITY, "image", pods={})
    asyncio.run(one._keep_former_pools(IDENTITY, {"a"}))
    return client.notes


@pytest.mark.parametrize("label", ["a", "b", "mine", None])
def test_a_set_that_is_wanted_is_never_shrunk_for_its_label(label: str | None) -> None:
    assert written("a", label, 1) == []


@pytest.mark.parametrize("label", ["b", "mine", None])
def test_a_set_of_a_former_pool_has_as_many_pods_as_it_has_brokers(label: str | None) -> None:
    assert written("b", label, 3) == [("c-b", 1)]
    assert written("b", label, 1) == []


@pytest.mark.parametrize("label", ["gone", "a", None])
def test_a_set_of_a_pool_without_brokers_goes(label: str | None) -> None:
    assert written("gone", label, 2) == [("c-gone", 0)]
    assert written("gone", label, 0) == [("c-gone", "deleted")]
