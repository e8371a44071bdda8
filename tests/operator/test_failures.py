"""What may pass is in progress and tried again; only what a person must mend is stalled."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import CoordinatorNotAvailableError

from headrace_operator.apply import Failure, apply_actions
from headrace_operator.kubernetes.api.cache import Store
from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.kubernetes.brokers.keeper import Refusals
from headrace_operator.kubernetes.reconcile import with_failures
from headrace_operator.kubernetes.register import Register
from headrace_operator.kubernetes.statuses import StatusWriter
from headrace_operator.plan import (
    AlterClusterConfig,
    AlterTopicConfig,
    CreateTopic,
    DeleteGroup,
    Plan,
    ResetOffsets,
)
from headrace_operator.plan.status import status
from support.operator_resources import desired, existing, observed, topic

KEY = topic().key
CREATE = CreateTopic(resource=KEY, topic="t", partitions=1, replicas=1)


class Admin:
    """Answers each request with one error code."""

    def __init__(self, code: int, group: str = "OK") -> None:
        self._code, self._group = code, group
        self._manager = SimpleNamespace(run=self._run, send=None)

    def _run(self, _send: Any, request: Any) -> Any:
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


ALTER = AlterTopicConfig(resource=KEY, topic="t", set={"a": "b"})
LIVE = AlterClusterConfig(resource=("Cluster", "", "c"), set={"a": "b"}, delete=(), changes=())
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
