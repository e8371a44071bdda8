"""Stored resources that this version cannot read: their status says so, and nothing else is done.

The API server checked their spec when it was written, by the CRD of that day. What an older or a
relaxed CRD let in stays stored, and its owner would otherwise wait for a status without end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headrace_operator.resources import ConditionType, Reason, parse_resource

if TYPE_CHECKING:
    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.plan import Key

__all__ = ["Unreadable", "status_of_unreadable", "why_unreadable"]

_CONDITIONS = (
    (ConditionType.READY, "False"),
    (ConditionType.RECONCILING, "False"),
    (ConditionType.STALLED, "True"),
)


def why_unreadable(obj: Object) -> str:
    """Return why a resource cannot be read, with the field; '' if it can. Pure."""
    try:
        parse_resource(obj)
    except (msgspec.ValidationError, KeyError) as error:
        return f"this version cannot read it, so nothing is done for it: {error}"
    return ""


def status_of_unreadable(obj: Object, reason: str, *, now: str) -> Object | None:
    """Return the fields of the status that say so; None if they do already. Pure.

    `now` is RFC 3339.
    """
    former_conditions = (obj.get("status") or {}).get("conditions") or ()
    known = {each.get("type"): each for each in former_conditions}
    generation = obj["metadata"].get("generation", 0)
    conditions: list[dict[str, Any]] = []
    for kind, state in _CONDITIONS:
        former = known.get(kind) or {}
        has_turned = former.get("status") != state
        conditions.append(
            {
                "type": str(kind),
                "status": state,
                "reason": str(Reason.INVALID_SPEC),
                "message": reason,
                "observedGeneration": generation,
                "lastTransitionTime": now if has_turned else former.get("lastTransitionTime", now),
            }
        )
    if [known.get(each["type"]) for each in conditions] == conditions:
        return None
    return {"observedGeneration": generation, "conditions": conditions}


class Unreadable:
    """The Topics and ConsumerGroups that were seen and cannot be read, by resource."""

    def __init__(self) -> None:
        """Nothing has been seen yet."""
        self._objects: dict[Key, Object] = {}

    def see(self, obj: Object, *, is_gone: bool) -> bool:
        """Apply an event; return whether the resource is there and cannot be read."""
        metadata = obj["metadata"]
        key = (obj["kind"], metadata["namespace"], metadata["name"])
        if is_gone or not why_unreadable(obj):
            self._objects.pop(key, None)
            return False
        known = self._objects.get(key)
        if known is None or _version(known) < _version(obj):
            self._objects[key] = obj
        return True

    def get(self, key: Key) -> Object | None:
        """Return the last state of a resource that cannot be read."""
        return self._objects.get(key)

    def forget(self, key: Key) -> None:
        """Remove a resource whose deletion no watch delivered."""
        self._objects.pop(key, None)

    def resources(self) -> list[Key]:
        """Return the resources that cannot be read."""
        return list(self._objects)


def _version(obj: Object) -> int:
    return int(obj["metadata"].get("resourceVersion") or 0)
