"""A Cluster that is corrected before it ever started begins with what its spec says by then."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from headrace_operator.kubernetes.brokers.forming import begins_anew, with_runs
from headrace_operator.kubernetes.brokers.observed import Seen, observed_broker
from headrace_operator.plan import Observed, ObservedCluster, ReconfigureBroker, plan
from headrace_operator.render.identity import Identity, Node
from headrace_operator.render.pods import INPUTS_ANNOTATION, render_pool
from support.operator_resources import cluster, desired

THREE = Identity(
    cluster_id="id",
    formed_with=3,
    image="headrace:1",
    version="4.2",
    nodes=tuple(Node(node_id=number, pool="a", ordinal=number - 1) for number in (1, 2, 3)),
)
ONE = cluster([{"name": "a", "replicas": 1}])


def pod(**container: Any) -> dict[str, Any]:
    return {"metadata": {}, "status": {"containerStatuses": [container]}}


WAITS = pod(state={"waiting": {"reason": "ImagePullBackOff"}}, restartCount=0)
RUNS = pod(state={"running": {"startedAt": "2026-01-01T00:00:00Z"}}, restartCount=0)
ENDED = pod(
    state={"waiting": {"reason": "CrashLoopBackOff"}},
    lastState={"terminated": {"exitCode": 1}},
    restartCount=3,
)
UNSCHEDULABLE = {"metadata": {}, "status": {"phase": "Pending"}}


def pods(*found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"c-a-{ordinal}": each for ordinal, each in enumerate(found)}


@pytest.mark.parametrize(
    "found",
    [
        {},
        pods(WAITS, WAITS, WAITS),
        pods(RUNS, UNSCHEDULABLE, UNSCHEDULABLE),
        pods(ENDED, WAITS, UNSCHEDULABLE),
    ],
)
def test_who_cannot_have_elected_anybody_starts_over(found: dict[str, Any]) -> None:
    assert begins_anew(ONE, THREE, found)
    assert begins_anew(cluster([{"name": "b", "replicas": 3}]), THREE, found)
    assert not begins_anew(cluster([{"name": "a", "replicas": 3}]), THREE, found)


@pytest.mark.parametrize("found", [pods(RUNS, RUNS, WAITS), pods(ENDED, WAITS, ENDED)])
def test_a_majority_that_ran_may_have_formed_the_cluster(found: dict[str, Any]) -> None:
    assert not begins_anew(ONE, THREE, found)
    # What was once seen to run is known after its pod was made again.
    noted = with_runs(ONE, THREE, found)
    assert not begins_anew(ONE, noted, pods(WAITS, WAITS, WAITS))


def test_a_cluster_that_served_is_never_begun_again() -> None:
    formed = msgspec.structs.replace(THREE, is_formed=True)
    assert not begins_anew(ONE, formed, {})
    # Nor is anything noted for it any more: it would be written for nothing.
    assert with_runs(ONE, formed, pods(RUNS, RUNS, RUNS)) == formed


def test_a_pod_of_the_former_description_is_made_again_though_nobody_answers() -> None:
    (former,) = [node for node in THREE.nodes if node.node_id == 1]
    anew = msgspec.structs.replace(THREE, nodes=(former,), formed_with=1, redescribed=1)
    (pool,) = ONE.spec.pools
    template = render_pool(ONE, msgspec.structs.replace(anew, redescribed=0), pool)["spec"]
    waits = {**RUNS, "metadata": template["template"]["metadata"] | {"uid": "1"}}
    assert "forming" not in waits["metadata"]["annotations"][INPUTS_ANNOTATION]
    seen = Seen(stateful_sets={}, pods={"c-a-0": waits}, services={}, now=None)  # type: ignore[arg-type]  # nothing fails here
    broker = replace(observed_broker(ONE, anew, former, seen), is_running=True)
    silent = ObservedCluster(brokers=(broker,), is_reachable=False, is_formed=False)
    (action,) = plan(Observed(cluster=silent), desired(cluster=ONE)).actions
    assert isinstance(action, ReconfigureBroker)
    # One that has served is not taken away while nobody says what that would cost.
    silent = replace(silent, is_formed=True)
    assert not plan(Observed(cluster=silent), desired(cluster=ONE)).actions
