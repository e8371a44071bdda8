"""Listeners and brokers that wait for an address hold up nothing else."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headrace_operator.kubernetes.api.cache import Store
from headrace_operator.kubernetes.brokers.described import (
    with_described_listeners,
    with_description,
)
from headrace_operator.kubernetes.brokers.passes import BrokersPass
from headrace_operator.plan import (
    Observed,
    ObservedCluster,
    ObservedQuorum,
    ReconfigureBroker,
    plan,
)
from headrace_operator.plan.brokers import target_of
from headrace_operator.render.identity import Identity, Node
from headrace_operator.render.names import broker_service
from headrace_operator.render.pods import render_pool, render_settings
from headrace_operator.resources import Cluster
from support.operator_resources import CONFIG, broker, cluster, desired

PLAIN = {"name": "plain"}
BALANCED = {"name": "balanced", "port": 9095, "type": "LoadBalancer"}
BY_NODE = {"name": "by-node", "port": 9094, "type": "NodePort"}


def made(replicas: int, *listeners: dict[str, Any], **spec: Any) -> Cluster:
    return cluster([{"name": "a", "replicas": replicas}], listeners=list(listeners), **spec)


def brokers_of(count: int, *, addressed: int = 0) -> Identity:
    """Return an identity whose first brokers have their load balancer's address."""
    nodes = tuple(
        Node(
            node_id=number + 1,
            pool="a",
            ordinal=number,
            addresses={"balanced": f"198.51.100.{number}"} if number < addressed else {},
        )
        for number in range(count)
    )
    return Identity(cluster_id="id", formed_with=count, is_formed=True, image="i", nodes=nodes)


def served(found: Cluster, former: Cluster, identity: Identity, *addresses: str) -> list[str]:
    """Return the names of the listeners that brokers are made with."""
    described = with_description(former, identity)
    read = msgspec.json.decode(msgspec.json.encode(described), type=Identity)
    services = {
        broker_service(found, node, "balanced"): {
            "metadata": {},
            "spec": {"ports": [{}]},
            "status": {"loadBalancer": {"ingress": [{"ip": address}]}},
        }
        for node, address in zip(identity.nodes, addresses, strict=False)
    }
    now = with_described_listeners(found, read, services)
    assert now.spec.pools == found.spec.pools
    assert now.spec.config == found.spec.config
    return [each.name for each in now.spec.listeners]


def test_a_new_listener_waits_for_all_its_addresses_and_the_rest_of_the_spec_does_not() -> None:
    former, two = made(2, PLAIN), brokers_of(2)
    config = {**CONFIG, "num.partitions": 3}
    found = made(3, PLAIN, BALANCED, config=config)
    assert served(found, former, two) == ["plain"]
    assert served(found, former, two, "198.51.100.1") == ["plain"]
    assert served(found, former, two, "198.51.100.1", "198.51.100.2") == ["plain", "balanced"]
    assert served(made(2, PLAIN, BY_NODE), former, two) == ["plain"]
    # One that has another name goes when the new one can be served.
    renamed = made(2, PLAIN, BY_NODE)
    assert served(renamed, made(2, PLAIN, BALANCED), two) == ["plain", "balanced"]


def test_a_listener_that_is_served_is_not_taken_back_for_a_broker_that_joins() -> None:
    found = made(3, PLAIN, BALANCED)
    assert served(found, found, brokers_of(3, addressed=2)) == ["plain", "balanced"]


def test_before_a_cluster_is_formed_its_listeners_are_those_of_the_spec() -> None:
    new = msgspec.structs.replace(brokers_of(1), is_formed=False)
    assert served(made(1, PLAIN, BALANCED), made(1, PLAIN), new) == ["plain", "balanced"]


def test_what_waits_for_an_address_counts_as_approved() -> None:
    found = made(1, PLAIN, BALANCED, updatePolicy="Plan")
    identity = with_description(made(1, PLAIN), brokers_of(1))
    now = with_described_listeners(found, identity, {})
    assert now.spec.approved_plan == target_of(now)


def addressed(
    identity: Identity, *, live: int | None = None, pods: int = 0
) -> tuple[list[int] | None, list[str]]:
    """Return who of a pool may start, and what is waited for.

    `live`: the replicas of the set that is there. `pods`: how many are.
    """
    found = made(len(identity.nodes), PLAIN, BALANCED)
    store = Store()
    if live is not None:
        rendered = render_pool(found, identity, found.spec.pools[0])
        metadata = {**rendered["metadata"], "uid": "s", "resourceVersion": "1"}
        spec = {**rendered["spec"], "replicas": live}
        store.upsert({**rendered, "metadata": metadata, "spec": spec})
    names = {f"c-a-{number}": {} for number in range(pods)}
    tools: Any = SimpleNamespace(store=store)
    one = BrokersPass(tools, found, identity, "i", pods=names)
    nodes = one._addressed(identity, found.spec.pools[0])
    return None if nodes is None else [each.node_id for each in nodes], one.pending


def test_who_has_its_addresses_starts_and_who_joins_waits_for_its_own() -> None:
    waits = ["Service c-a-3-balanced has no address yet"]
    assert addressed(brokers_of(4, addressed=3), live=3, pods=3) == ([1, 2, 3], waits)
    # The set was deleted, with or without its pods.
    assert addressed(brokers_of(4, addressed=3), pods=3) == ([1, 2, 3], waits)
    assert addressed(brokers_of(4, addressed=3)) == ([1, 2, 3], waits)
    assert addressed(brokers_of(3, addressed=3), live=3, pods=3) == ([1, 2, 3], [])
    assert addressed(brokers_of(2))[0] is None


@pytest.mark.parametrize("there", [{"live": 3}, {"pods": 3}, {"live": 2, "pods": 3}])
def test_no_set_is_made_smaller_for_want_of_an_address(there: dict[str, int]) -> None:
    assert addressed(brokers_of(4, addressed=2), **there)[0] is None


def test_settings_and_set_are_of_those_that_may_start() -> None:
    identity = brokers_of(4, addressed=3)
    found = made(4, PLAIN, BALANCED)
    (pool,) = found.spec.pools
    nodes = identity.nodes[:3]
    assert render_pool(found, identity, pool, nodes)["spec"]["replicas"] == 3
    files = render_settings(found, identity, pool, {}, nodes)["data"]
    assert len(files) == 3
    # They know of all: who votes does not depend on who has an address.
    assert (
        files.items()
        <= render_settings(found, brokers_of(4, addressed=4), pool, {})["data"].items()
    )


def rolled(**joining: Any) -> list[int]:
    """Return who is restarted for a setting, while broker 4 is as this says."""
    brokers = (
        *(broker(each, ordinal=each - 1) for each in (1, 2, 3)),
        broker(4, **{"ordinal": 3, "is_registered": False, "is_ready": False, **joining}),
    )
    config = {**CONFIG, "num.partitions": 3}
    wanted = cluster([{"name": "a", "replicas": 4}], config=config)
    seen = ObservedCluster(brokers=brokers, quorum=ObservedQuorum(leader_id=1, voters=()))
    found = plan(Observed(cluster=seen), desired(cluster=wanted))
    return [each.node_id for each in found.actions if isinstance(each, ReconfigureBroker)]


def test_others_are_rolled_while_a_broker_that_joins_waits_for_its_address() -> None:
    current = {"config": {**CONFIG, "num.partitions": "3"}}
    assert rolled(is_running=False, **current) == [2]
    assert not rolled(is_running=False, replicas=1, **current)
    assert not rolled(**current)
