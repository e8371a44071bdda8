"""What an older CRD let in, and this version cannot read, is told in its status and an Event."""

from typing import Any

from headrace_operator.kubernetes.unreadable import status_of_unreadable, why_unreadable
from headrace_operator.resources import API_VERSION

NOW, LATER = "2026-11-25T12:00:00Z", "2026-11-25T13:00:00Z"


def broken() -> dict[str, Any]:
    spec = {"clusterRef": {"name": "c"}, "partitions": "many"}
    status = {"topicId": "id-1"}
    metadata = {"name": "t", "namespace": "default", "uid": "uid-t", "generation": 3}
    found = {"apiVersion": API_VERSION, "kind": "Topic", "metadata": metadata}
    return {**found, "spec": spec, "status": status}


def refused(obj: dict[str, Any], now: str = NOW) -> Any:
    return status_of_unreadable(obj, why_unreadable(obj), now=now)


def test_the_status_names_the_field() -> None:
    status = refused(broken())
    states = {each["type"]: each["status"] for each in status["conditions"]}
    assert states == {"Ready": "False", "Reconciling": "False", "Stalled": "True"}
    assert all("`$.spec.partitions`" in each["message"] for each in status["conditions"])


def test_it_is_written_once_and_again_when_something_else_is_wrong() -> None:
    obj = broken()
    obj["status"] = refused(obj)
    assert refused(obj, LATER) is None
    obj["spec"]["replicas"], obj["spec"]["partitions"] = "all", 3
    again = refused(obj, LATER)
    assert {each["lastTransitionTime"] for each in again["conditions"]} == {NOW}
