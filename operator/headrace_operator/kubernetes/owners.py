"""Whose an object is: one with a wanted name that another client made is left as it is. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.render.names import CLUSTER_LABEL, MANAGED_BY
from headrace_operator.render.spark_submission import APPLICATION_LABEL

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["ForeignObjectError", "check_owner"]

_NAMING_LABELS = {*MANAGED_BY, CLUSTER_LABEL, APPLICATION_LABEL}
#: What else of an owner the names of its objects have.
_PARTS = {"Cluster": "pool", "SparkApplication": "service account"}


class ForeignObjectError(Exception):
    """An object with a wanted name belongs to another owner."""


def check_owner(live: Mapping[str, Any], obj: Mapping[str, Any]) -> None:
    """Check that an object may be changed to the wanted one. Raises ForeignObjectError.

    It may if the wanted owner, or a former one with its name, owns it (its object is adopted), or
    if it has no owner and the labels name this one (restored from a backup). What has no
    controller is shared by all owners of a kind.
    """
    wanted, has = obj["metadata"], live["metadata"]
    (owner,) = wanted["ownerReferences"]
    is_shared = not owner.get("controller")
    owners = has.get("ownerReferences") or []
    if any(
        each["kind"] == owner["kind"] and (is_shared or each["name"] == owner["name"])
        for each in owners
    ):
        return
    ours = {key: value for key, value in wanted["labels"].items() if key in _NAMING_LABELS}
    if not owners and ours.items() <= (has.get("labels") or {}).items():
        return
    kind = owner["kind"]
    whose = ", ".join(f"{each['kind']} {each['name']}" for each in owners) or f"no {kind}"
    raise ForeignObjectError(
        f"there is one of this name already, and it belongs to {whose}: it is left as it is;"
        f" delete or rename it, or give {kind} {owner['name']} or its {_PARTS[kind]} another name"
    )
