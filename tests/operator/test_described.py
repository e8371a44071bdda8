"""Brokers' objects are kept by what they were last described by while a spec is held back."""

from typing import Any

import msgspec
import pytest

from headrace_operator.kubernetes.brokers.described import (
    as_described,
    former_pools,
    with_description,
)
from headrace_operator.render.brokers import render_brokers, render_surroundings
from headrace_operator.render.identity import Identity, Node
from support.operator_resources import CONFIG, cluster

IDENTITY = Identity(
    cluster_id="id",
    image="headrace:1",
    version="4.2",
    nodes=(Node(node_id=1, pool="a", ordinal=0), Node(node_id=2, pool="b", ordinal=0)),
)
POOLS = [
    {
        "name": "a",
        "racks": ["r"],
        "storage": {"volumes": 2, "storageClassName": "fast"},
        "resources": {"limits": {"memory": "1Gi"}},
        "podTemplate": {"metadata": {"labels": {"x": "y"}}, "spec": {"priorityClassName": "p"}},
    },
    {"name": "b", "storage": {"type": "Ephemeral"}},
]
BEFORE = cluster(POOLS, imagePullSecrets=[{"name": "s"}], listeners=[{"name": "plain"}])


def stored(identity: Identity) -> Identity:
    """Return an identity as it is read again."""
    return msgspec.json.decode(msgspec.json.encode(identity), type=Identity)


KNOWN = stored(with_description(BEFORE, IDENTITY))


@pytest.mark.parametrize(
    "spec",
    [
        {"pools": [{"name": "a", "storage": {"volumes": 4}}, {"name": "b", "replicas": 3}]},
        {"pools": [{"name": "c"}]},
        {"listeners": [{"name": "other", "port": 9999}], "image": "headrace:2"},
        {"config": {**CONFIG, "num.partitions": 9}, "imagePullSecrets": []},
    ],
)
def test_what_is_rendered_is_what_was_rendered(spec: dict[str, Any]) -> None:
    before: dict[str, Any] = {"imagePullSecrets": [{"name": "s"}]}
    changed = cluster(**({"pools": POOLS} | before | spec))
    kept = as_described(changed, KNOWN)
    assert kept is not None
    assert render_brokers(kept, KNOWN, {}) == render_brokers(BEFORE, IDENTITY, {})
    assert list(render_surroundings(kept, KNOWN)) == list(render_surroundings(BEFORE, IDENTITY))
    # What does not concern them is as the spec says.
    assert kept.spec.update_policy == changed.spec.update_policy


def test_at_rest_the_same_is_described_again_and_so_nothing_is_written() -> None:
    assert with_description(BEFORE, KNOWN) == KNOWN


@pytest.mark.parametrize("described", [{}, {"pools": 7}, {"config": {}, "pools": [{}]}, {"x": 1}])
def test_what_is_not_known_or_was_overwritten_describes_nobody(described: dict[str, Any]) -> None:
    identity = msgspec.structs.replace(KNOWN, described=described)
    assert as_described(BEFORE, identity) is None
    assert as_described(BEFORE, None) is None
    assert former_pools(cluster([{"name": "c"}]), identity) == ()
    assert with_description(BEFORE, identity) == KNOWN


def test_a_pool_is_described_until_its_last_broker_left() -> None:
    changed = cluster([POOLS[0]])
    leaving = with_description(changed, KNOWN)
    assert [pool.name for pool in former_pools(changed, stored(leaving))] == ["b"]
    gone = msgspec.structs.replace(leaving, nodes=IDENTITY.nodes[:1])
    assert former_pools(changed, gone) == ()
    assert [each["name"] for each in with_description(changed, gone).described["pools"]] == ["a"]
