"""Whose an object is, by what it says of its owners, its labels and nothing else."""

import asyncio
import json
from typing import Any

import pytest

from headrace_operator.kubernetes.api.cache import Store
from headrace_operator.kubernetes.brokers.former import remains_of_former
from headrace_operator.kubernetes.brokers.identity import Identities
from headrace_operator.kubernetes.owners import ForeignObjectError, check_owner
from headrace_operator.render.brokers import render_identity
from headrace_operator.render.identity import Identity
from headrace_operator.render.spark import render_access
from headrace_operator.render.spark_submission import Submission
from headrace_operator.resources import API_VERSION
from support.operator_resources import make
from support.spark_world import application

MAIN = make("Cluster", "main", {"pools": [{"name": "a"}]}, metadata={"uid": "u-1"})
IDENTITY = Identity(cluster_id="id", image="headrace:1", version="4.2")
WANTED = render_identity(MAIN, IDENTITY)
OURS = {"apiVersion": API_VERSION, "kind": "Cluster", "name": "main", "uid": "u-0"}
POSTGRES = {**OURS, "apiVersion": "postgresql.cnpg.io/v1", "controller": True}


def live(*owners: dict[str, Any], wanted: Any = WANTED, **labels: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(wanted))
    found["metadata"] |= {"ownerReferences": list(owners), "labels": labels, "uid": "cm"}
    return found


LABELS: dict[str, str] = WANTED["metadata"]["labels"]


@pytest.mark.parametrize(
    "found",
    [
        live(OURS | {"controller": True}),
        live(OURS | {"controller": True, "apiVersion": "headrace.dev/v1"}),
        live(OURS | {"controller": True}, POSTGRES | {"controller": False}),
        live(OURS, **LABELS),
        live(**LABELS),
    ],
)
def test_what_a_cluster_of_this_name_controls_is_adopted(found: dict[str, Any]) -> None:
    check_owner(found, WANTED)


@pytest.mark.parametrize(
    ("found", "whose"),
    [
        (live(POSTGRES), "Cluster main of postgresql.cnpg.io"),
        (live(POSTGRES, **LABELS), "Cluster main of postgresql.cnpg.io"),
        (live(OURS), "Cluster main, which does not control it"),
        (live(OURS, POSTGRES, **LABELS), "Cluster main of postgresql.cnpg.io"),
        (live(OURS | {"controller": True, "name": "other"}, **LABELS), "Cluster other"),
        (live({**OURS, "kind": "Topic"}, **LABELS), "Topic main"),
        (live(), "no Cluster"),
    ],
)
def test_what_another_owner_has_is_left_and_the_owner_named(
    found: dict[str, Any], whose: str
) -> None:
    with pytest.raises(ForeignObjectError, match=f"belongs to .*{whose}"):
        check_owner(found, WANTED)


def test_what_applications_share_is_not_taken_from_who_controls_it() -> None:
    submission = Submission(application=application(), submission_id="", attempt=0)
    wanted = render_access(submission)[0]
    (owner,) = wanted["metadata"]["ownerReferences"]
    check_owner(live(owner | {"name": "other", "uid": "u-9"}, wanted=wanted), wanted)
    for others in ([POSTGRES], [owner | {"apiVersion": "example.org/v1"}], [owner, POSTGRES]):
        with pytest.raises(ForeignObjectError):
            check_owner(live(*others, wanted=wanted), wanted)


class Refusing:
    """An API server that may only be asked."""

    async def get(self, *_: Any) -> None:
        return None


@pytest.mark.parametrize("owner", [POSTGRES, OURS, OURS | {"uid": "u-1"}])
def test_an_identity_of_somebody_else_is_neither_changed_nor_deleted(owner: dict[str, Any]) -> None:
    store = Store()
    found = live(owner)
    store.upsert(found)
    identities = Identities(Refusing(), store)  # type: ignore[arg-type]  # only asked
    with pytest.raises(ForeignObjectError, match="it is left as it is"):
        asyncio.run(identities.save(MAIN, IDENTITY))
    assert store.get("ConfigMap", "default", "main-identity") == found


def test_a_set_of_another_groups_cluster_is_nothing_that_a_former_one_left() -> None:
    stateful_set = live(POSTGRES) | {"kind": "StatefulSet", "spec": {}}
    assert remains_of_former(MAIN, [stateful_set], []) == []
    stateful_set = live(OURS) | {"kind": "StatefulSet", "spec": {}}
    assert remains_of_former(MAIN, [stateful_set], []) == ["StatefulSet main-identity"]


def test_claims_that_go_with_a_former_cluster_are_waited_for_and_its_own_are_not() -> None:
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "data-0-main-a-0"}}
    for owners, waits in (
        ([], False),
        ([OURS | {"controller": False}], True),
        ([OURS | {"uid": "u-1", "controller": False}], False),
        ([POSTGRES], False),
        ([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "main-a", "uid": "s"}], True),
    ):
        found = {**claim, "metadata": {**claim["metadata"], "ownerReferences": owners}}  # type: ignore[dict-item]  # JSON
        assert bool(remains_of_former(MAIN, [], [found])) is waits
