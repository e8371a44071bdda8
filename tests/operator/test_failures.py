"""What may pass is in progress and tried again; only what a person must mend is stalled."""

import asyncio
import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import CoordinatorNotAvailableError, for_code

from headrace_operator import quorum
from headrace_operator.apply import Failure, apply_actions
from headrace_operator.kubernetes.api.cache import Store
from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.kubernetes.brokers.keeper import Refusals
from headrace_operator.kubernetes.reconcile import with_failures
from headrace_operator.kubernetes.register import Register, version_of
from headrace_operator.kubernetes.statuses import StatusWriter
from headrace_operator.plan import (
    AddVoter,
    AlterClusterConfig,
    AlterTopicConfig,
    CordonBrokers,
    CreateTopic,
    DeleteGroup,
    MoveReplicas,
    Plan,
    RemoveVoter,
    ResetOffsets,
    ScaleTarget,
)
from headrace_operator.plan.status import status
from headrace_operator.resources.consumer_group import TargetReference
from support.operator_resources import desired, existing, group, observed, topic

KEY = topic().key
SPEC = {"clusterRef": {"name": "c"}}
CREATE = CreateTopic(resource=KEY, topic="t", partitions=1, replicas=1)


class Admin:
    """Answers each request with one error code."""

    def __init__(self, code: int, group: str = "OK") -> None:
        self._code, self._group = code, group
        self.requests: list[Any] = []
        self._manager = SimpleNamespace(run=self._run, send=self._send)

    async def _send(self, request: Any) -> Any:
        return request

    def _run(self, send: Any, *arguments: Any) -> Any:
        request = asyncio.run(send(*arguments))
        self.requests.append(request)
        responses = [
            SimpleNamespace(resource_name=name, error_code=self._code, error_message="why")
            for _, name, _ in request.resources
        ]
        return SimpleNamespace(responses=responses)

    def create_topics(self, topics: Any, **_: Any) -> Any:
        found = {"name": next(iter(topics)), "error_code": self._code, "error_message": "why"}
        return {"topics": [found]}

    def delete_groups(self, names: list[str]) -> dict[str, str]:
        return dict.fromkeys(names, self._group)

    def alter_group_offsets(self, *_: Any) -> None:
        raise CoordinatorNotAvailableError

    def wait_for_topics(self, _: Any) -> None:
        return

    def describe_cluster(self) -> Any:
        return {"brokers": [{"host": "h", "port": 1}]}

    def alter_partition_reassignments(self, moves: Any) -> Any:
        self.requests.append(moves)
        if self._code:
            raise for_code(self._code)("why")
        return {}


ALTER = AlterTopicConfig(resource=KEY, topic="t", set={"a": "b"})
LIVE = AlterClusterConfig(resource=("Cluster", "", "c"), set={"a": "b"}, delete=(), changes=())
CLUSTER = ("Cluster", "", "c")
CORDON = CordonBrokers(resource=CLUSTER, cordoned=(7,), drained=(7,))
DISK = uuid.UUID(int=7)
ADD = AddVoter(resource=CLUSTER, node_id=7, directory_id=DISK, address="h:9090")
REMOVE = RemoveVoter(resource=CLUSTER, node_id=7, directory_id=DISK, reason="it leaves")
MOVE = MoveReplicas(resource=CLUSTER, moves={("t", 0): (1, 2)}, leaving=(), throttle=1)
DELETE = DeleteGroup(resource=("ConsumerGroup", "", "g"), group="g")


@pytest.mark.parametrize("action", [CREATE, ALTER, LIVE])
@pytest.mark.parametrize(
    ("code", "is_retriable"),
    # REQUEST_TIMED_OUT, NOT_CONTROLLER, UNKNOWN_SERVER_ERROR; INVALID_CONFIG, POLICY_VIOLATION.
    [(7, True), (41, True), (-1, True), (40, False), (44, False)],
)
def test_brokers_errors_say_whether_they_may_pass(
    action: Any, code: int, *, is_retriable: bool
) -> None:
    (failure,) = apply_actions(Admin(code), [action])
    assert failure.is_retriable is is_retriable
    assert failure.message.endswith(f"({code}): why")


@pytest.mark.parametrize(
    ("code", "is_retriable"),
    # NOT_CONTROLLER, BROKER_NOT_AVAILABLE; BROKER_ID_NOT_REGISTERED, INVALID_REQUEST,
    # POLICY_VIOLATION, CLUSTER_AUTHORIZATION_FAILED.
    [(41, True), (8, True), (102, False), (42, False), (44, False), (31, False)],
)
def test_a_cordon_that_only_a_person_can_mend_does_not_count_as_passing(
    code: int, *, is_retriable: bool
) -> None:
    (failure,) = apply_actions(Admin(code), [CORDON])
    assert failure.is_retriable is is_retriable
    assert failure.message.endswith(f"({code}): why")


@pytest.mark.parametrize("action", [ADD, REMOVE])
@pytest.mark.parametrize(
    ("code", "is_retriable"),
    [
        # REQUEST_TIMED_OUT: an earlier change is not committed, or the replica is behind.
        # NOT_LEADER_OR_FOLLOWER.
        *((code, True) for code in (7, 6)),
        # UNSUPPORTED_VERSION (the voters are static), INVALID_REQUEST (it is the last one),
        # CLUSTER_AUTHORIZATION_FAILED, INCONSISTENT_CLUSTER_ID, INVALID_VOTER_KEY.
        *((code, False) for code in (35, 42, 31, 104, 125)),
    ],
)
def test_a_change_of_voters_that_only_a_person_can_mend_does_not_count_as_passing(
    monkeypatch: pytest.MonkeyPatch, action: Any, code: int, *, is_retriable: bool
) -> None:
    monkeypatch.setattr(quorum, "ask_first", lambda *_: (code, "why"))
    (failure,) = apply_actions(Admin(0), [action])
    assert failure.is_retriable is is_retriable
    assert failure.message.endswith(f"({code}): why")


@pytest.mark.parametrize(("action", "code"), [(ADD, 126), (REMOVE, 127)])
def test_a_change_of_voters_that_was_made_already_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, action: Any, code: int
) -> None:
    # The first request's answer may have been lost: the client asks the next broker then.
    monkeypatch.setattr(quorum, "ask_first", lambda *_: (code, "why"))
    assert apply_actions(Admin(0), [action]) == ()


@pytest.mark.parametrize(
    ("code", "is_retriable"), [(-1, True), (41, True), (31, False), (44, False)]
)
def test_an_error_of_a_whole_request_says_whether_it_may_pass(
    code: int, *, is_retriable: bool
) -> None:
    (failure,) = apply_actions(Admin(code), [replace(MOVE, throttle=None)])
    assert failure.is_retriable is is_retriable
    assert "why" in failure.message


def test_no_move_begins_without_its_throttle_for_an_error_that_passes() -> None:
    admin = Admin(41)
    (failure,) = apply_actions(admin, [MOVE])
    assert failure.is_retriable
    assert len(admin.requests) == 1, "the throttle alone was asked for"


@pytest.mark.parametrize(
    ("error", "is_retriable"),
    [
        ("NotCoordinatorError", True),
        ("CoordinatorLoadInProgressError", True),
        ("NonEmptyGroupError", True),
        ("GroupAuthorizationFailedError", False),
    ],
)
def test_a_group_that_is_not_deleted_now_may_be_later(error: str, *, is_retriable: bool) -> None:
    (failure,) = apply_actions(Admin(0, error), [DELETE])
    assert failure.is_retriable is is_retriable
    assert error.removesuffix("Error") in failure.message


def test_a_group_without_a_coordinator_does_not_hold_up_the_others() -> None:
    resource = ("ConsumerGroup", "", "reset")
    reset = ResetOffsets(
        resource=resource, group="reset", request_id="r", offsets={("t", 0): 0}, previous={}
    )
    failures = apply_actions(Admin(0), [CREATE, reset, DELETE])
    assert [(each.action, each.is_retriable) for each in failures] == [(reset, True)]


@pytest.mark.parametrize(
    ("code", "is_retriable"),
    [(409, True), (429, True), (500, True), (503, True), (403, False), (422, False)],
)
def test_the_api_servers_errors_about_one_object_end_no_pass(
    code: int, *, is_retriable: bool
) -> None:
    refusals = Refusals(("Cluster", "n", "c"))
    with refusals.recorded({"kind": "Service", "metadata": {"name": "s"}}):
        raise KubernetesError(code, "Reason", "why")
    assert [each.is_retriable for each in refusals.failures] == [is_retriable]


def conditions_of(failure: Failure) -> dict[str, tuple[str, str]]:
    planned = with_failures(Plan(), [failure])
    found = status(observed(topics={"t": existing()}), desired(topic()), planned)[KEY]
    return {str(each.type): (each.status, str(each.reason)) for each in found}


def test_only_what_a_person_must_mend_is_stalled() -> None:
    passing = conditions_of(Failure(action=CREATE, message="no", is_retriable=True))
    assert passing["Ready"] == ("False", "ApplyFailed")
    assert passing["Reconciling"] == ("True", "ApplyFailed")
    assert passing["Stalled"][0] == "False"
    lasting = conditions_of(Failure(action=CREATE, message="no"))
    assert lasting["Ready"] == ("False", "ApplyFailed")
    assert (lasting["Reconciling"][0], lasting["Stalled"]) == ("False", ("True", "ApplyFailed"))


@pytest.mark.parametrize(
    ("planned", "is_written"), [(("u", 2), True), (("u", 1), False), (("former", 2), False)]
)
def test_a_status_is_of_the_spec_that_was_planned(
    planned: tuple[str, int], *, is_written: bool
) -> None:
    written: list[Any] = []

    class Client:
        async def apply_status(self, body: Any) -> None:
            written.append(body["status"]["observedGeneration"])

        async def event(self, *_: Any, **__: Any) -> None:
            return

    register = Register()
    present = topic(metadata={"uid": "u", "generation": 2, "resourceVersion": "1"})
    register.upsert(present)
    writer = StatusWriter(Client(), Store(), register, None)  # type: ignore[arg-type]  # what it needs
    seen, wanted = observed(topics={"t": existing()}), desired(present)
    versions = {present.key: planned}
    asyncio.run(writer.write(seen, wanted, Plan(), versions=versions, is_whole=False))
    assert written == ([2] if is_written else [])


REFUSED = KubernetesError(422, "Invalid", "no such field")


class Refusing:
    """An API server that refuses the status of one group."""

    def __init__(self, error: KubernetesError) -> None:
        self._error = error
        self.written: list[str] = []

    async def apply_status(self, body: Any) -> Any:
        name = body["metadata"]["name"]
        if name == "refused":
            raise self._error
        self.written.append(name)
        return {**body, "spec": SPEC}


@pytest.mark.parametrize(
    ("error", "is_retriable"),
    [(REFUSED, False), (KubernetesError(500, "InternalError", "late"), True)],
)
def test_a_group_whose_status_is_refused_holds_up_nobody(
    error: KubernetesError, *, is_retriable: bool
) -> None:
    register, api = Register(), Refusing(error)
    resets, pauses = [], []
    for name in ("refused", "other"):
        found = group(name)
        register.upsert(found)
        resets.append(
            ResetOffsets(
                resource=found.key, group=name, request_id="r", offsets={("t", 0): 0}, previous={}
            )
        )
        pauses.append(
            ScaleTarget(
                resource=found.key,
                target=TargetReference(kind="Deployment", name=name),
                replicas=0,
                previous=1,
                reason="r",
                is_pause=True,
            )
        )
    writer = StatusWriter(api, Store(), register, None)  # type: ignore[arg-type]  # what it needs
    first = asyncio.run(writer.note_resets(resets, is_done=False))
    assert [(each.action, each.is_retriable) for each in first] == [(resets[0], is_retriable)]
    second = asyncio.run(writer.note_pauses(pauses))
    assert [(each.action, each.is_retriable) for each in second] == [(pauses[0], is_retriable)]
    assert api.written == ["other", "other"]


def test_groups_whose_statuses_take_long_are_waited_for_together() -> None:
    class Client:
        asked, all_asked = 0, asyncio.Event()

        async def apply_status(self, body: Any) -> Any:
            self.asked += 1
            if self.asked == 5:
                self.all_asked.set()
            await asyncio.wait_for(self.all_asked.wait(), 5)
            return {**body, "spec": SPEC}

    register, client = Register(), Client()
    resets = []
    for number in range(5):
        found = group(f"g{number}")
        register.upsert(found)
        resets.append(
            ResetOffsets(
                resource=found.key, group="g", request_id="r", offsets={("t", 0): 0}, previous={}
            )
        )
    writer = StatusWriter(client, Store(), register, None)  # type: ignore[arg-type]  # what it needs
    assert asyncio.run(writer.note_resets(resets, is_done=False)) == ()


@pytest.mark.parametrize(
    ("error", "tried"),
    [(REFUSED, 20), (KubernetesError(504, "Timeout", "no answer in time"), 16)],
)
def test_a_status_that_cannot_be_written_fails_no_pass(error: KubernetesError, tried: int) -> None:
    """Where the API server does not answer in time, others of the kind are not asked for."""
    asked: list[str] = []
    events: list[str] = []

    class Client:
        async def apply_status(self, body: Any) -> Any:
            asked.append(body["metadata"]["name"])
            if body["kind"] == "ConsumerGroup":
                return {**body, "spec": SPEC}
            await asyncio.sleep(0)
            raise error

        async def event(self, *_: Any, message: str, **__: Any) -> None:
            events.append(message)

    register = Register()
    topics = [topic(f"t{number}") for number in range(20)]
    there = group("g")
    for each in (*topics, there):
        register.upsert(each)
    writer = StatusWriter(Client(), Store(), register, None)  # type: ignore[arg-type]  # what it needs
    versions = {each.key: version_of(each) for each in (*topics, there)}
    wanted = desired(*topics, groups=(there,))

    async def write() -> frozenset[Any]:
        found = await writer.write(observed(), wanted, Plan(), versions=versions, is_whole=False)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return found

    async def run() -> None:
        assert await write() == {each.key for each in topics}
        assert len(asked) == tried + 1
        assert await write() == {each.key for each in topics}

    asyncio.run(run())
    assert "g" in asked
    why = [each for each in events if "its status cannot be written" in each]
    assert len(why) == 1
    assert error.message in why[0]


def test_an_event_says_that_a_person_has_to_act_now() -> None:
    events: list[tuple[str, str, str]] = []

    class Client:
        async def apply_status(self, body: Any) -> Any:
            metadata = present.metadata
            version = str(int(metadata.resource_version) + 1)
            known = {"name": metadata.name, "uid": "u", "generation": 1}
            return {**body, "metadata": known | {"resourceVersion": version}, "spec": SPEC}

        async def event(self, *_: Any, reason: str, message: str, kind: str) -> None:
            events.append((kind, reason, message))

    register = Register()
    present = topic(metadata={"uid": "u", "generation": 1, "resourceVersion": "1"})
    register.upsert(present)
    writer = StatusWriter(Client(), Store(), register, None)  # type: ignore[arg-type]  # what it needs

    async def write(*, is_retriable: bool, message: str) -> None:
        failure = Failure(action=CREATE, message=message, is_retriable=is_retriable)
        (found,) = register.iterate("Topic")
        versions = {found.key: ("u", 1)}
        planned = with_failures(Plan(), [failure])
        seen, wanted = observed(topics={"t": existing()}), desired(found)  # type: ignore[arg-type]  # a Topic
        await writer.write(seen, wanted, planned, versions=versions, is_whole=False)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def run() -> None:
        for _ in range(2):
            await write(is_retriable=True, message="it is late")
        for _ in range(2):
            await write(is_retriable=False, message="nobody may do that")

    asyncio.run(run())
    assert [(kind, reason) for kind, reason, _ in events] == [
        ("Normal", "ApplyFailed"),
        ("Warning", "ApplyFailed"),
    ]
    assert "nobody may do that" in events[1][2]
