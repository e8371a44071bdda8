"""Pods that are refused, and pods that hang before they start: what is said, and from when on."""

import asyncio
import datetime as dt
from typing import Any

import pytest
from aiohttp import web

from headrace_operator.kubernetes.api.client import KubernetesClient
from headrace_operator.kubernetes.brokers.observed import Seen, observed_broker
from headrace_operator.kubernetes.brokers.unstarted import (
    FAILED_CREATE,
    Hindrance,
    Unstarted,
    newest_event,
    unready_since,
    with_hindrance,
)
from headrace_operator.kubernetes.brokers.waking import WOKEN
from headrace_operator.plan import Observed, ObservedCluster, plan
from headrace_operator.plan.report import report
from headrace_operator.render.identity import Identity, Node
from headrace_operator.render.pods import render_pool
from support.answering import answering
from support.operator_resources import broker, cluster, desired

NOW = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
WANTED = cluster([{"name": "a", "replicas": 3}])
NODES = tuple(Node(node_id=number + 1, pool="a", ordinal=number) for number in range(3))
IDENTITY = Identity(cluster_id="id", formed_with=3, image="i", nodes=NODES)
ALONE = Identity(cluster_id="id", formed_with=1, image="i", nodes=NODES[:1])
QUOTA = 'pods "c-a-0" is forbidden: exceeded quota: q, requested: pods=1, used: pods=0, limited: '
EMPTY = QUOTA + "pods=0"


def at(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


def text(seconds: float) -> str:
    return f"{at(seconds):%Y-%m-%dT%H:%M:%SZ}"


def owner() -> dict[str, Any]:
    metadata = {"uid": "set", "namespace": "default"}
    rendered = render_pool(WANTED, IDENTITY, WANTED.spec.pools[0])
    return {**rendered, "metadata": {**rendered["metadata"], **metadata}}


def seen(seconds: float, *pods: dict[str, Any]) -> Seen:
    return Seen(
        now=at(seconds),
        stateful_sets={"c-a": owner()},
        pods={each["metadata"]["name"]: each for each in pods},
        services={},
    )


def event(
    seconds: float, note: str, reason: str = "FailedMount", kind: str = "Warning"
) -> dict[str, Any]:
    metadata = {"name": f"e.{seconds}", "creationTimestamp": text(-3600)}
    named = {"reason": reason, "note": note, "type": kind}
    return {"metadata": metadata, "deprecatedLastTimestamp": text(seconds), **named}


KINDS = {
    "/api/v1": {"kind": "Pod", "name": "pods"},
    "/apis/apps/v1": {"kind": "StatefulSet", "name": "statefulsets"},
    "/apis/events.k8s.io/v1": {"kind": "Event", "name": "events"},
}


class Answers:
    """An API server that admits pods or says why not, and has Events by their objects' uids."""

    def __init__(self) -> None:
        self.refusal: tuple[int, str, str] | None = None
        self.events: dict[str, list[dict[str, Any]]] = {}
        self.may_list = True
        self.dry_runs: list[str] = []
        self.woken: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        if kind := KINDS.get(request.path):
            return web.json_response({"resources": [{**kind, "namespaced": True}]})
        if request.path.endswith("/statefulsets/c-a"):
            assert request.method == "PATCH"
            self.woken.append((await request.json())["metadata"]["annotations"][WOKEN])
            return web.json_response(owner())
        if request.path.endswith("/pods"):
            assert request.query["dryRun"] == "All"
            pod = await request.json()
            self.dry_runs.append(pod["metadata"]["name"])
            return _refused(*self.refusal) if self.refusal else web.json_response(pod)
        if not self.may_list:
            return _refused(403, "Forbidden", "no")
        uid = request.query["fieldSelector"].removeprefix("regarding.uid=")
        return web.json_response({"metadata": {}, "items": self.events.get(uid, [])})


def _refused(status: int, reason: str, message: str) -> web.Response:
    return web.json_response({"reason": reason, "message": message}, status=status)


def looked(
    answers: Answers, *views: Seen, identity: Identity = IDENTITY
) -> list[dict[int, Hindrance]]:
    """Look once for each of these; return what was found each time."""

    async def scenario() -> list[dict[int, Hindrance]]:
        async with answering(answers.answer) as connection, KubernetesClient(connection) as client:
            unstarted = Unstarted(client)
            found = []
            for each in views:
                found.append(dict(await unstarted.look(WANTED, identity, each)))
                await unstarted.wake(WANTED)
            return found

    return asyncio.run(scenario())


def forbidden(message: str = EMPTY) -> Answers:
    answers = Answers()
    answers.refusal = (403, "Forbidden", message)
    return answers


@pytest.mark.parametrize(
    "refusal",
    [
        (504, "Timeout", "request did not complete within requested timeout"),
        (500, "InternalError", 'failed calling webhook "w": context deadline exceeded'),
    ],
)
def test_where_a_webhook_hangs_on_pods_one_is_asked_for_and_not_each_in_turn(
    refusal: tuple[int, str, str],
) -> None:
    answers = Answers()
    answers.refusal = refusal
    looked(answers, seen(0), seen(10))
    assert answers.dry_runs == ["c-a-0"]
    # Nor again and again.
    looked(answers, seen(0), *(seen(10 + number) for number in range(30)))
    assert answers.dry_runs == ["c-a-0"] * 3


def test_pods_that_admission_refuses_are_said_and_stall_after_a_minute() -> None:
    new, early, late = looked(forbidden(), seen(0), seen(10), seen(61))
    # A set's controller makes its pods within a second or two.
    assert not new
    assert early[1] == Hindrance(why=f"FailedCreate: {EMPTY}", is_stuck=False)
    assert sorted(early) == sorted(late) == [1, 2, 3]
    assert all(each.is_stuck for each in late.values())


def conditions_of(found: dict[int, Hindrance]) -> dict[str, Any]:
    brokers = tuple(
        with_hindrance(
            observed_broker(WANTED, IDENTITY, node, seen(0)),
            found.get(node.node_id),
        )
        for node in NODES
    )
    state = Observed(cluster=ObservedCluster(brokers=brokers, is_reachable=False))
    wanted = desired(cluster=WANTED)
    document = report(state, wanted, plan(state, wanted))[WANTED.key]
    return {each["type"]: each for each in document["conditions"]}


def test_a_cluster_whose_pods_are_refused_says_so_and_needs_a_person() -> None:
    early, late = looked(forbidden(), seen(0), seen(10), seen(61))[1:]
    found = conditions_of(early)
    assert EMPTY in found["Ready"]["message"]
    assert found["Stalled"]["status"] == "False"
    stalled = conditions_of(late)["Stalled"]
    assert (stalled["status"], stalled["reason"]) == ("True", "BrokersFailing")
    assert EMPTY in stalled["message"]


def test_a_claim_that_is_refused_is_said_in_the_controllers_words() -> None:
    answers = Answers()
    note = "create Claim data-0-c-a-1 for Pod c-a-1 in StatefulSet c-a failed error: exceeded quota"
    answers.events["set"] = [
        event(-30, note, "FailedCreate"),
        event(-20, "create Pod c-a-11 in StatefulSet c-a failed", "FailedCreate"),
        event(-40, "create Pod c-a-0 in StatefulSet c-a failed", "FailedCreate"),
        event(-10, "create Pod c-a-0 in StatefulSet c-a successful", "SuccessfulCreate", "Normal"),
        event(-7200, "create Pod c-a-2 in StatefulSet c-a failed", "FailedCreate"),
    ]
    found = looked(answers, seen(0), seen(10))[1]
    assert found == {2: Hindrance(why=f"FailedCreate: {note}", is_stuck=False)}


@pytest.mark.parametrize(
    "refusal",
    [
        (409, "AlreadyExists", 'pods "c-a-0" already exists'),
        (429, "TooManyRequests", "too many requests"),
        (504, "Timeout", "the server was slow"),
        (403, "Forbidden", 'pods is forbidden: User "x" cannot create resource "pods" in'),
    ],
)
def test_what_says_nothing_about_the_pod_is_not_reported(refusal: tuple[int, str, str]) -> None:
    answers = Answers()
    answers.refusal = refusal
    answers.may_list = False
    assert looked(answers, seen(0), seen(90))[1] == {}


def test_a_set_whose_pods_are_admitted_again_is_woken_ever_more_seldom() -> None:
    answers = forbidden()
    answers.events["set"] = [event(2, "create Pod c-a-0 in StatefulSet c-a failed", FAILED_CREATE)]
    looked(answers, seen(0), seen(20), seen(40))
    assert answers.woken == []
    answers.refusal = None
    looked(answers, seen(0), *(seen(20 + second) for second in range(70)))
    assert answers.woken == [text(20), text(30), text(50)]
    answers.events["set"].append(
        event(95, "create Pod c-a-0 in StatefulSet c-a", "SuccessfulCreate")
    )
    looked(answers, seen(0), seen(100))
    assert answers.woken[3:] == []


def test_what_is_not_refused_is_asked_ever_more_seldom() -> None:
    answers = Answers()
    looked(answers, *(seen(each) for each in range(0, 600, 5)))
    assert len(answers.dry_runs) // 3 in range(3, 7)


def pod(phase: str = "Pending", scheduled: float | None = 0, **status: Any) -> dict[str, Any]:
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": text(scheduled or 0)}
    return {
        "metadata": {"name": "c-a-0", "uid": "p", "namespace": "default"}
        | {"creationTimestamp": text(0)},
        "spec": {},
        "status": {"phase": phase, "conditions": [placed] if scheduled is not None else []}
        | status,
    }


MISSING = 'MountVolume.SetUp failed for volume "keys" : secret "keys" not found'


def test_a_pod_that_waits_for_its_volumes_says_why_and_is_stuck_after_two_minutes() -> None:
    answers = Answers()
    answers.events["p"] = [event(-5, "no node", "FailedScheduling"), event(110, MISSING)]
    answers.refusal = (403, "Forbidden", "of the other two brokers nothing is to be known here")
    before, after = (each.get(1) for each in looked(answers, seen(110, pod()), seen(125, pod())))
    assert before is None
    assert after == Hindrance(why=f"FailedMount: {MISSING}", is_stuck=True)


def test_a_pod_that_pulls_its_image_has_time_for_it() -> None:
    answers = Answers()
    pulling = event(20, 'Pulling image "x"', "Pulling", "Normal")
    answers.events["p"] = [event(2, MISSING), pulling]
    early, late = (each.get(1) for each in looked(answers, seen(130, pod()), seen(601, pod())))
    assert early is None
    why = 'Pending: its containers have not started: Pulling: Pulling image "x"'
    assert late == Hindrance(why=why, is_stuck=True)


def test_without_the_right_to_list_events_a_pod_is_given_ten_minutes() -> None:
    answers = Answers()
    answers.may_list = False
    early, late = (each.get(1) for each in looked(answers, seen(130, pod()), seen(601, pod())))
    assert early is None
    assert late == Hindrance(why="Pending: its containers have not started", is_stuck=True)


def test_an_init_container_that_goes_on_for_ever_is_named() -> None:
    running = {"state": {"running": {"startedAt": text(3)}}, "started": True}
    hanging = pod(
        initContainerStatuses=[{"name": "mesh", **running}, {"name": "wait", **running}],
    )
    hanging["spec"]["initContainers"] = [{"name": "mesh", "restartPolicy": "Always"}]
    early, late = (each[1] for each in looked(Answers(), seen(130, hanging), seen(601, hanging)))
    assert early == Hindrance(
        why=f"Pending: init container wait runs since {text(3)}", is_stuck=False
    )
    assert late.is_stuck


def test_a_pod_that_no_scheduler_looks_at_is_stuck() -> None:
    forgotten = pod(scheduled=None)
    forgotten["spec"]["schedulerName"] = "typo"
    (found,) = looked(Answers(), seen(130, forgotten))
    why = "Pending: scheduler typo has not looked at it"
    assert found[1] == Hindrance(why=why, is_stuck=True)


def running(*, started: bool) -> dict[str, Any]:
    state = {"running": {"startedAt": text(0)}}
    return pod(
        "Running", containerStatuses=[{"name": "broker", "state": state, "started": started}]
    )


def test_a_broker_that_runs_and_never_answers_is_stuck_in_the_end() -> None:
    silent = running(started=False)
    early, late = (each.get(1) for each in looked(Answers(), seen(590, silent), seen(610, silent)))
    assert early is None
    assert late is not None
    assert late.is_stuck
    assert "has not answered its startup probe" in late.why
    assert looked(Answers(), seen(7200, running(started=True)))[0].get(1) is None


def test_a_single_broker_has_as_long_as_the_kubelet_gives_it_to_recover_its_log() -> None:
    silent = running(started=False)
    early, late = looked(Answers(), seen(3500, silent), seen(3545, silent), identity=ALONE)
    assert not early
    assert late[1].is_stuck


def test_a_pod_that_does_not_go_says_what_holds_it() -> None:
    going = running(started=True)
    going["metadata"] |= {"deletionTimestamp": text(0), "finalizers": ["example.com/held"]}
    early, late = (each.get(1) for each in looked(Answers(), seen(60, going), seen(130, going)))
    assert early is None
    why = f"Terminating: it was to be gone at {text(0)}, held by example.com/held"
    assert late == Hindrance(why=why, is_stuck=False)


def test_a_pod_that_has_started_or_has_no_node_waits_for_nothing() -> None:
    unplaced = pod()
    unplaced["status"]["conditions"][0]["status"] = "False"
    assert unready_since(unplaced) is None
    assert unready_since(running(started=True)) is None
    assert unready_since(pod(scheduled=7)) == at(7)


def test_the_newest_event_is_the_one_that_was_last_observed() -> None:
    counted = {**event(0, "b"), "series": {"lastObservedTime": text(60)}}
    new = {"metadata": {}, "eventTime": f"{at(30):%Y-%m-%dT%H:%M:%S.%fZ}"}
    assert newest_event([event(10, "a"), counted, new]) is counted
    assert newest_event([]) is None


def test_what_is_waited_for_does_not_hide_why_a_broker_fails() -> None:
    down = broker(2, is_registered=False, is_ready=False, failing="FailedCreate: no")
    pending = ("broker 2 joined: replicas are asked for when all brokers are there",)
    state = Observed(cluster=ObservedCluster(brokers=(broker(1), down), pending=pending))
    wanted = desired(cluster=cluster([{"name": "a", "replicas": 2}]))
    document = report(state, wanted, plan(state, wanted))[WANTED.key]
    ready = next(each for each in document["conditions"] if each["type"] == "Ready")
    assert ready["message"] == f"{pending[0]}; broker 2: FailedCreate: no"
