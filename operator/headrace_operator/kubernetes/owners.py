"""Whose an object is: one with a wanted name that another client made is left as it is. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.render.names import CLUSTER_LABEL, MANAGED_BY
from headrace_operator.render.spark_submission import APPLICATION_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

__all__ = ["ForeignObjectError", "check_owner", "is_controlled", "owners_of_kind"]

_NAMING_LABELS = {*MANAGED_BY, CLUSTER_LABEL, APPLICATION_LABEL}
#: What else of an owner the names of its objects have.
_PARTS = {"Cluster": "pool", "SparkApplication": "service account"}


class ForeignObjectError(Exception):
    """An object with a wanted name belongs to another owner."""


def check_owner(live: Mapping[str, Any], obj: Mapping[str, Any]) -> None:
    """Check that an object may be changed to the wanted one. Raises ForeignObjectError.

    It may if the wanted owner, or a former one with its name, controls it (its object is adopted).
    What nobody controls is told by its labels (restored from a backup), if no other owner is named.
    What is wanted without a controller is shared by all owners of a kind.
    """
    wanted, has = obj["metadata"], live["metadata"]
    (owner,) = wanted["ownerReferences"]
    is_shared = not owner.get("controller")
    owners = has.get("ownerReferences") or []
    same = [
        each
        for each in owners_of_kind(live, owner["apiVersion"], owner["kind"])
        if is_shared or each["name"] == owner["name"]
    ]
    is_controlled = any(each.get("controller") for each in owners)
    if same and (not is_controlled if is_shared else any(each.get("controller") for each in same)):
        return
    ours = {key: value for key, value in wanted["labels"].items() if key in _NAMING_LABELS}
    is_labelled = ours.items() <= (has.get("labels") or {}).items()
    if not is_controlled and is_labelled and (same or not owners):
        return
    kind = owner["kind"]
    whose = ", ".join(_title(each, owner) for each in owners) or f"no {kind}"
    raise ForeignObjectError(
        f"there is one of this name already, and it belongs to {whose}: it is left as it is;"
        f" delete or rename it, or give {kind} {owner['name']} or its {_PARTS[kind]} another name"
    )


def is_controlled(obj: Mapping[str, Any], uid: str) -> bool:
    """Whether the owner with this uid controls the object. Anybody may let it go with an owner."""
    owners = obj["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == uid and owner.get("controller") for owner in owners)


def owners_of_kind(
    obj: Mapping[str, Any], api_version: str, kind: str
) -> Iterator[Mapping[str, Any]]:
    """Yield the owners of a kind, in any version. Other groups have kinds of the same name."""
    group = _group(api_version)
    for each in obj["metadata"].get("ownerReferences") or []:
        if each["kind"] == kind and _group(each["apiVersion"]) == group:
            yield each


def _title(each: Mapping[str, Any], owner: Mapping[str, Any]) -> str:
    title, group = f"{each['kind']} {each['name']}", _group(each["apiVersion"])
    if each["kind"] != owner["kind"]:
        return title
    if group != _group(owner["apiVersion"]):
        # PostgreSQL's operators have a Cluster, too.
        return f"{title} of {group}"
    return title if each.get("controller") else f"{title}, which does not control it"


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]
