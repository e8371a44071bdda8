"""Nodes that are lost with brokers' volumes: what is said, and when a volume is given up."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from headrace_operator.kubernetes.api.client import KubernetesClient
from headrace_operator.kubernetes.api.connection import Connection
from headrace_operator.kubernetes.brokers.losses import Losses, hostname_of
from headrace_operator.kubernetes.brokers.observed import served_from
from headrace_operator.plan import (
    NodeLoss,
    Observed,
    ObservedCluster,
    ObservedPartition,
    ObservedQuorum,
    Plan,
    ReplaceVolumes,
    plan,
)
from headrace_operator.render.identity import Identity, Node
from support.operator_resources import broker, cluster, desired

GONE = NodeLoss(
    machine="node2", volumes=("data-0-c-a-1",), reason="it does not exist any more", is_gone=True
)
QUORUM = ObservedQuorum(leader_id=1, voters=())


def planned(
    policy: str = "Replace",
    loss: NodeLoss = GONE,
    partitions: dict[tuple[str, int], ObservedPartition] | None = None,
    **rest: Any,
) -> Plan:
    """Plan for three brokers of which the second waits for a node."""
    pools = [{"name": "a", "replicas": 3, "storage": {"lostNodePolicy": policy}}]
    brokers = (
        broker(1),
        broker(2, address="c-a-1", is_registered=False, is_ready=False, loss=loss),
        broker(3),
    )
    whole = {("t", 0): ObservedPartition(replicas=(2, 1, 3), in_sync=(1, 3), leader=1)}
    seen = ObservedCluster(
        brokers=brokers, **{"partitions": partitions or whole, "quorum": QUORUM, **rest}
    )
    return plan(Observed(cluster=seen), desired(cluster=cluster(pools)))


def replaced(found: Plan) -> list[int]:
    return [each.node_id for each in found.actions if isinstance(each, ReplaceVolumes)]


def said(found: Plan) -> str:
    return "\n".join(each.message for each in found.waiting)


def test_by_default_a_lost_volume_waits_for_a_person_who_learns_what_to_do() -> None:
    found = planned("Wait")
    assert not replaced(found)
    assert "broker 2 (pod c-a-1) waits for node node2 with its volume data-0-c-a-1" in said(found)
    assert "delete the claim, then the pod; storage.lostNodePolicy: Replace" in said(found)


def test_all_brokers_of_a_lost_node_are_named_at_once() -> None:
    lost = {"is_registered": False, "is_ready": False, "loss": replace(GONE, is_gone=False)}
    brokers = (broker(1), broker(2, address="c-a-1", **lost), broker(3, address="c-a-2", **lost))
    seen = ObservedCluster(brokers=brokers, is_reachable=False, quorum=None)
    found = plan(Observed(cluster=seen), desired(cluster=cluster([{"name": "a", "replicas": 3}])))
    (waiting,) = found.waiting
    for name in ("broker 2 (pod c-a-1) waits", "broker 3 (pod c-a-2) waits"):
        assert name in waiting.message


def test_where_the_pool_says_so_the_volume_is_given_up() -> None:
    assert replaced(planned()) == [2]


@pytest.mark.parametrize(
    ("partition", "is_replaced"),
    [
        (ObservedPartition(replicas=(2, 1, 3), in_sync=(3,), leader=3), True),
        (ObservedPartition(replicas=(1, 3), in_sync=(), leader=-1), True),
        (ObservedPartition(replicas=(2,), in_sync=(2,), leader=-1), False),
        (ObservedPartition(replicas=(2, 1, 3), in_sync=(2,), leader=-1), False),
        (ObservedPartition(replicas=(2, 1, 3), in_sync=(), leader=-1), False),
        (ObservedPartition(replicas=(2, 1, 3), in_sync=(2, 1), leader=2), False),
    ],
)
def test_never_with_what_may_be_the_last_copy_in_sync(
    partition: ObservedPartition, *, is_replaced: bool
) -> None:
    found = planned(partitions={("t", 0): partition})
    assert bool(replaced(found)) == is_replaced
    assert ("the last copy of t-0" in said(found)) != is_replaced


def test_a_copy_on_a_broker_that_is_away_too_does_not_count() -> None:
    partitions = {("t", 0): ObservedPartition(replicas=(2, 4), in_sync=(4,), leader=4)}
    assert not replaced(planned(partitions=partitions))


def test_never_while_the_quorum_has_no_leader_or_nobody_answers() -> None:
    assert "nobody leads the metadata quorum" in said(planned(quorum=None))
    silent = planned(is_reachable=False)
    assert not replaced(silent)
    assert "the other brokers do not answer" in said(silent)


def test_a_node_that_may_come_back_keeps_its_volume() -> None:
    away = NodeLoss(machine="node2", volumes=("data-0-c-a-1",), reason="it is not ready")
    found = planned(loss=away)
    assert not replaced(found)
    assert "where it is lost for good, delete the Node" in said(found)
    cordoned = NodeLoss(machine="node2", volumes=("v",), reason="cordoned", is_cordoned=True)
    assert "uncordon it" in said(planned(loss=cordoned))


def volume(*hosts: str) -> dict[str, Any]:
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(hosts)}
    terms = [{"matchExpressions": [expression]}]
    return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}


def test_only_a_volume_of_one_node_is_bound_to_it() -> None:
    assert hostname_of(volume("node2")) == "node2"
    assert not hostname_of(volume("node2", "node3"))
    assert not hostname_of({"spec": {}})


class Claims:
    """Who has which claims, as `Identities` says it."""

    def claims_of(self, _: Any, node: Node) -> list[dict[str, Any]]:
        metadata = {"name": f"data-0-c-a-{node.ordinal}", "uid": str(node.ordinal)}
        return [{"metadata": metadata, "spec": {"volumeName": f"pv{node.ordinal}"}}]


def look(machines: list[dict[str, Any]], pod: dict[str, Any], status: int = 200) -> Any:
    """Look at one pod's node, on an API server that has these nodes."""
    nodes = {"kind": "NodeList", "metadata": {}, "items": machines}
    names = {"Node": ("nodes", False), "PersistentVolume": ("persistentvolumes", False)}
    kinds = [
        {"kind": kind, "name": name, "namespaced": namespaced}
        for kind, (name, namespaced) in names.items()
    ]

    async def answer(request: web.Request) -> web.Response:
        tail = request.path.removeprefix("/api/v1")
        body = {"": {"resources": kinds}, "/nodes": nodes}.get(tail, volume("node2"))
        return web.json_response(body, status=status if tail else 200)

    async def scenario() -> Any:
        app = web.Application()
        app.router.add_get("/{any:.*}", answer)
        async with TestServer(app) as server:
            connection = Connection(server=str(server.make_url("")).rstrip("/"))
            async with KubernetesClient(connection) as client:
                losses = Losses(client, Claims())  # type: ignore[arg-type]  # what it asks of them
                node = Node(node_id=2, pool="a", ordinal=1, roles=("broker",))
                identity = Identity(cluster_id="x", formed_with=1, image="i", nodes=(node,))
                return await losses.look(cluster(), identity, {"c-a-1": pod})

    return asyncio.run(scenario())


def machine(ready: str = "True", **spec: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    return {"metadata": {"name": "node2"}, "spec": spec, "status": {"conditions": conditions}}


PENDING: dict[str, Any] = {"metadata": {"name": "c-a-1"}, "spec": {}, "status": {}}


def test_a_node_that_is_not_there_any_more_is_distinguished_from_one_that_is_away() -> None:
    assert look([], PENDING)[2].is_gone
    away = look([machine("Unknown")], PENDING)[2]
    assert not away.is_gone
    assert away.reason == "it is not ready since 2026-01-01T00:00:00Z"
    assert look([machine(unschedulable=True)], PENDING)[2].is_cordoned
    assert not look([machine()], PENDING)


def test_a_pod_that_is_ready_waits_for_nothing() -> None:
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert not look([], {**PENDING, **ready})


def test_without_the_right_to_look_nothing_is_said() -> None:
    assert not look([], PENDING, status=403)


def test_a_claim_that_is_younger_than_a_brokers_container_is_not_what_it_served_from() -> None:
    """Else a volume lost right after its broker was asked would pass for the one that it has."""
    running = {"running": {"startedAt": "2026-01-31T12:00:30Z"}}
    pod = {
        "metadata": {"name": "c-a-0"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"state": running}],
        },
    }

    def claim(at: str) -> dict[str, Any]:
        return {"metadata": {"uid": at, "creationTimestamp": f"2026-01-31T12:{at}Z"}}

    assert served_from(pod, [claim("00:29"), claim("00:30")])
    assert not served_from(pod, [claim("00:29"), claim("00:52")])
    assert not served_from(None, [claim("00:29")])
    assert not served_from({"metadata": {}, "status": {}}, [claim("00:29")])
