"""The right that a request to the API server needs, as Roles name it; and missing rights.

Pure, except for `Lacking`'s clock. `headrace_operator_kubernetes_requests_total` counts the rights
that are used, and a test compares it with the Roles in `manifests/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LACKING_SECONDS", "Lacking", "Right", "needed_right"]

#: After this time a missing right is tried again: it may have been granted meanwhile.
LACKING_SECONDS = 300.0
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update"}
#: `/api/VERSION` and `/apis/GROUP/VERSION`.
_CORE_PARTS, _GROUP_PARTS = 2, 3


class Right(NamedTuple):
    """A verb on a resource: `pods/eviction`, `statefulsets.apps`. Namespaces are left out."""

    verb: str
    resource: str
    namespace: str = ""


def needed_right(method: str, path: str) -> Right | None:
    """Return the right that a request needs; None for discovery, which needs none. Pure."""
    parts = path.strip("/").split("/")
    size = _CORE_PARTS if parts[0] == "api" else _GROUP_PARTS
    group = "" if parts[0] == "api" else parts[1]
    rest = parts[size:]
    if not rest:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > _CORE_PARTS:
        namespace, rest = rest[1], rest[2:]
    plural, is_named = rest[0], len(rest) > 1
    subresource = f"/{rest[2]}" if len(rest) > _CORE_PARTS else ""
    if method == "GET":
        verb = "get" if is_named else "list"
    elif method == "DELETE":
        verb = "delete" if is_named else "deletecollection"
    else:
        verb = _VERBS[method]
    return Right(verb, (f"{plural}.{group}" if group else plural) + subresource, namespace)


class Lacking:
    """Cluster-wide rights that the API server has denied.

    An operator for one namespace lacks some of them (nodes, volumes). It works without, and need
    not try them in every pass.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._until: dict[Right, tuple[float, str]] = {}

    def note(self, right: Right, message: str) -> None:
        """Record the server's message, if it is not about a namespace."""
        if not right.namespace:
            self._until[right] = (self._clock() + LACKING_SECONDS, message)

    def message(self, right: Right | None) -> str:
        """Return the server's recent denial; '' if the right should be tried."""
        until, message = self._until.get(right, (0.0, "")) if right else (0.0, "")
        return message if self._clock() < until else ""
