"""Another storage class than volumes have is refused, and nothing is half done."""

from typing import Any

import pytest

from headrace_operator.kubernetes.brokers.storage import with_classes_kept
from support.operator_resources import cluster


def claim(name: str, storage_class: str | None, **spec: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if spec.pop("is_going", False):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": metadata, "spec": {"storageClassName": storage_class, **spec}}


def pool(name: str, storage_class: str | None) -> dict[str, Any]:
    storage = {} if storage_class is None else {"storageClassName": storage_class}
    return {"name": name, "storage": storage}


BOUND = claim("data-0-c-a-0", "slow", volumeName="pv-1")


def test_the_class_of_volumes_stays_and_the_way_to_another_is_said() -> None:
    wanted = cluster([pool("a", "fast"), pool("b", "fast")])
    new = claim("data-0-c-b-0", "fast", volumeName="pv-2")
    found, reason = with_classes_kept(wanted, {"a": [BOUND], "b": [new]}, {})
    assert [each.storage.storage_class_name for each in found.spec.pools] == ["slow", "fast"]
    assert "volume data-0-c-a-0 is of class slow and the spec says fast" in reason
    assert "pool b" not in reason


def test_a_set_that_left_the_class_to_the_default_is_not_recreated() -> None:
    template = {"metadata": {"name": "data-0"}, "spec": {}}
    found, reason = with_classes_kept(
        cluster([pool("a", "fast")]),
        {"a": [BOUND]},
        {"a": {"spec": {"volumeClaimTemplates": [template]}}},
    )
    assert reason
    assert found.spec.pools[0].storage.storage_class_name is None


def test_a_claim_without_a_volume_is_named_and_the_new_class_taken() -> None:
    wanted = cluster([pool("a", "fast")])
    found, reason = with_classes_kept(wanted, {"a": [claim("data-0-c-a-0", "typo")]}, {})
    assert found == wanted
    assert "delete this claim and its pod" in reason


def of_class(storage_class: str) -> dict[str, Any]:
    """Return a set whose volumes are asked for with a class."""
    template = {"metadata": {"name": "data-0"}, "spec": {"storageClassName": storage_class}}
    return {"spec": {"volumeClaimTemplates": [template]}}


@pytest.mark.parametrize(("storage_class", "written"), [("slow", "slow"), ("", '""')])
def test_a_class_that_is_not_named_any_more_stays_and_is_said(
    storage_class: str, written: str
) -> None:
    bound = claim("data-0-c-a-0", storage_class, volumeName="pv-1")
    wanted = cluster([pool("a", None)])
    found, reason = with_classes_kept(wanted, {"a": [bound]}, {"a": of_class(storage_class)})
    assert found.spec.pools[0].storage.storage_class_name == storage_class
    assert f"volume data-0-c-a-0 is of class {written} and the spec says no class" in reason
    assert reason.endswith(f"or write {written}")


def test_a_class_that_no_volume_has_yet_may_be_left_out_again() -> None:
    wanted = cluster([pool("a", None)])
    assert with_classes_kept(wanted, {}, {"a": of_class("typo")}) == (wanted, "")
    claims = {"a": [claim("data-0-c-a-0", "typo")]}
    found, reason = with_classes_kept(wanted, claims, {"a": of_class("typo")})
    assert found == wanted
    assert reason.endswith("it is asked for with the cluster's default")


@pytest.mark.parametrize(
    ("storage_class", "claims"),
    [
        ("slow", [BOUND]),
        (None, [BOUND]),
        ("fast", []),
        ("fast", [claim("data-0-c-a-0", None)]),
        ("fast", [claim("data-0-c-a-0", "slow", volumeName="pv-1", is_going=True)]),
    ],
)
def test_where_nothing_differs_nothing_is_said(
    storage_class: str | None, claims: list[Any]
) -> None:
    wanted = cluster([pool("a", storage_class)])
    assert with_classes_kept(wanted, {"a": claims}, {}) == (wanted, "")
