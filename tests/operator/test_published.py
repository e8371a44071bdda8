"""Addresses that Kubernetes' EndpointSlices lack: said, and their controller made to look again."""

import asyncio
import datetime as dt
from typing import Any

from aiohttp import web

from headrace_operator.kubernetes.api.client import KubernetesClient
from headrace_operator.kubernetes.brokers.observed import Seen
from headrace_operator.kubernetes.brokers.published import Published
from headrace_operator.kubernetes.brokers.waking import WOKEN
from headrace_operator.render.identity import Identity, Node
from headrace_operator.render.names import BROKER_LABEL, NAME, selector
from headrace_operator.render.services import render_services
from support.answering import answering
from support.operator_resources import cluster

NOW = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
WANTED = cluster([{"name": "a", "replicas": 3}])
NODES = tuple(Node(node_id=number + 1, pool="a", ordinal=number) for number in range(3))
IDENTITY = Identity(cluster_id="id", formed_with=3, image="i", nodes=NODES)
HEADLESS, CLIENTS = "c-brokers", "c-bootstrap"
GROUPS = {
    "/api/v1": {"kind": "Service", "name": "services"},
    "/apis/discovery.k8s.io/v1": {"kind": "EndpointSlice", "name": "endpointslices"},
}


def at(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


def text(seconds: float) -> str:
    return f"{at(seconds):%Y-%m-%dT%H:%M:%SZ}"


def pod(ordinal: int, *, ready: bool = True, ip: str = "", uid: str = "") -> dict[str, Any]:
    name = f"c-a-{ordinal}"
    labels = {**selector(WANTED), **NAME, BROKER_LABEL: "true"}
    return {
        "metadata": {"name": name, "uid": uid or f"uid-{ordinal}", "labels": labels},
        "status": {
            "phase": "Running",
            "podIPs": [{"ip": ip or f"10.0.0.{ordinal}"}],
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def seen(seconds: float, *pods: dict[str, Any]) -> Seen:
    services = {}
    for each in render_services(WANTED, IDENTITY):
        name = each["metadata"]["name"]
        metadata = {**each["metadata"], "uid": f"of-{name}", "namespace": "default"}
        services[name] = {**each, "metadata": metadata}
    assert {HEADLESS, CLIENTS} == services.keys()
    named = {each["metadata"]["name"]: each for each in pods}
    return Seen(now=at(seconds), stateful_sets={}, pods=named, services=services)


def endpoints(service: str, *pods: dict[str, Any], ready: bool = True) -> dict[str, Any]:
    return {
        "metadata": {"labels": {"kubernetes.io/service-name": service}},
        "endpoints": [
            {
                "addresses": [each["ip"] for each in one["status"]["podIPs"]],
                "conditions": {"ready": ready},
                "targetRef": {"uid": one["metadata"]["uid"]},
            }
            for one in pods
        ]
        or None,
    }


def both(*pods: dict[str, Any]) -> list[dict[str, Any]]:
    return [endpoints(HEADLESS, *pods), endpoints(CLIENTS, *pods)]


class Answers:
    """An API server that has EndpointSlices, and counts who asks for them."""

    def __init__(self, *slices: dict[str, Any]) -> None:
        self.slices = list(slices)
        self.may_list = True
        self.lists = 0
        self.woken: list[tuple[str, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        if kind := GROUPS.get(request.path):
            return web.json_response({"resources": [{**kind, "namespaced": True}]})
        if request.method == "PATCH":
            name = request.path.rpartition("/services/")[2]
            patch = await request.json()
            assert patch.keys() == {"metadata"}
            self.woken.append((name, patch["metadata"]["annotations"][WOKEN]))
            return web.json_response({"metadata": {"name": name}})
        assert request.path.endswith("/namespaces/default/endpointslices")
        chosen = f"kubernetes.io/service-name in ({CLIENTS}, {HEADLESS})"
        assert request.query["labelSelector"] == chosen
        self.lists += 1
        if not self.may_list:
            return web.json_response({"reason": "Forbidden", "message": "no"}, status=403)
        return web.json_response({"metadata": {}, "items": self.slices})


def looked(answers: Answers, *views: Seen) -> list[tuple[str, ...]]:
    """Look once for each of these; return what was said each time."""

    async def scenario() -> list[tuple[str, ...]]:
        async with answering(answers.answer) as connection, KubernetesClient(connection) as client:
            published = Published(client)
            said = []
            for each in views:
                said.append(await published.look(WANTED, each))
                await published.wake(WANTED)
            return said

    return asyncio.run(scenario())


def test_addresses_that_are_there_are_asked_for_once() -> None:
    pods = [pod(0), pod(1)]
    answers = Answers(*both(*pods))
    assert not any(looked(answers, seen(0), *(seen(each, *pods) for each in range(1, 90))))
    assert (answers.lists, answers.woken) == (1, [])


def test_missing_addresses_are_said_after_ten_seconds_and_the_controller_is_woken() -> None:
    pods = [pod(0), pod(1)]
    answers = Answers(endpoints(HEADLESS, pods[1]), endpoints(CLIENTS, *pods))
    early, late, *later = looked(
        answers, seen(0, *pods), seen(10, *pods), *(seen(each, *pods) for each in range(11, 91))
    )
    assert early == ()
    since = f"Service {HEADLESS} lacks the addresses of c-a-0 since {text(0)}"
    assert late == (f"{since}: Kubernetes' EndpointSlices lag behind",)
    assert set(later) == {late}
    assert answers.woken == [(HEADLESS, text(each)) for each in (10, 20, 40, 70)]
    assert answers.lists < 90 / 3 + 2


def test_all_services_that_lack_addresses_are_in_one_message() -> None:
    (said,) = looked(Answers(), seen(0, pod(0), pod(1)), seen(10, pod(0), pod(1)))[1]
    for name in (HEADLESS, CLIENTS):
        assert f"Service {name} lacks the addresses of c-a-0, c-a-1 since" in said


def test_once_the_addresses_are_there_nothing_is_said_and_the_next_time_begins_anew() -> None:
    first, second = pod(0), pod(0, uid="new", ip="10.0.0.9")
    answers = Answers(*both(first))
    said = looked(answers, seen(0, first), seen(4, second), seen(13, second))
    # Its predecessor's address is nothing to it.
    assert [bool(each) for each in said] == [False, False, False]
    said = looked(answers, seen(0, second), seen(10, second), seen(15, first), seen(20, second))
    assert [bool(each) for each in said] == [False, True, False, False]


def test_clients_are_led_to_ready_pods_alone() -> None:
    starting = pod(0, ready=False)
    answers = Answers(endpoints(HEADLESS, starting), endpoints(CLIENTS))
    assert not any(looked(answers, seen(0, starting), seen(30, starting)))
    ready = pod(0)
    answers.slices.append(endpoints(CLIENTS, ready, ready=False))
    said = looked(answers, seen(30, starting), seen(40, ready), seen(50, ready))
    assert [bool(each) for each in said] == [False, False, True]
    assert answers.woken == [(CLIENTS, text(50))]


def test_a_pod_that_was_not_ready_is_looked_for_again() -> None:
    answers = Answers(*both(pod(0)))
    looked(answers, seen(0, pod(0)), seen(10, pod(0, ready=False)), seen(20, pod(0)))
    assert answers.lists == 2


def test_what_goes_or_has_ended_and_what_has_no_address_is_not_waited_for() -> None:
    going, ended, placed = pod(0), pod(1), pod(2)
    going["metadata"]["deletionTimestamp"] = text(0)
    ended["status"]["phase"] = "Failed"
    del placed["status"]["podIPs"]
    answers = Answers()
    assert not any(looked(answers, *(seen(each, going, ended, placed) for each in (0, 30))))
    assert answers.lists == 0


def test_without_the_right_to_list_slices_nothing_is_said() -> None:
    answers = Answers()
    answers.may_list = False
    assert not any(looked(answers, *(seen(each, pod(0)) for each in range(60))))
    assert (answers.lists, answers.woken) == (1, [])


def test_a_service_that_is_made_again_is_a_new_one() -> None:
    answers = Answers(*both(pod(0)))
    before, after = seen(0, pod(0)), seen(10, pod(0))
    after.services[HEADLESS]["metadata"]["uid"] = "another"
    looked(answers, before, after)
    assert answers.lists == 2
