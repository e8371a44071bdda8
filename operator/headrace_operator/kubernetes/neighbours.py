"""Other operators in the same Kubernetes: which namespaces are theirs, by the Leases they hold.

Each operator writes on its Lease whom it serves. One for all namespaces reads the others', and
stands aside where one of a few namespaces is at work, which may not look elsewhere and so cannot
stand aside itself. Of two for all namespaces the one works whose Lease is older.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.kubernetes.api.lease import LEASE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.transport import Object

__all__ = ["LEASE_LABEL", "Neighbours", "lease_metadata", "served_by"]

LOOK_SECONDS = 5.0
#: For so long after a Lease was held last its namespaces stay its holder's: it may be restarted.
GRACE_SECONDS = 60.0
EVERYTHING = "*"
LEASE_LABEL = "headrace.dev/operator-lease"
_SERVES = "headrace.dev/serves"

_log = structlog.get_logger("headrace.operator.neighbours")


def lease_metadata(namespaces: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """Return what an operator's Lease says of it. No namespaces: all of them."""
    served = ",".join(sorted(namespaces)) or EVERYTHING
    return {"labels": {LEASE_LABEL: "true"}, "annotations": {_SERVES: served}}


def served_by(lease: Object, namespace: str) -> bool:
    """Whether the holder of an operator's Lease says that it serves a namespace."""
    return bool({EVERYTHING, namespace}.intersection(_served(lease["metadata"])))


@dataclass(kw_only=True)
class _Lease:
    """What was seen of one. Clocks are never compared: it is held as long as it changes."""

    version: str
    changed_at: float
    held_at: float = float("-inf")
    serves: tuple[str, ...] = ()
    age: tuple[str, str] = ("", "")


class Neighbours:
    """Who else serves what. Only an operator for all namespaces looks."""

    def __init__(
        self,
        client: KubernetesClient,
        own: tuple[str, str],
        clock: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        """`own`: namespace and name of our Lease. `clock` is monotonic, in seconds."""
        self._client = client
        self._own = own
        self._clock = clock
        self._on_change = on_change
        self._seen: dict[tuple[str, str], _Lease] = {}
        self._looked_at = float("-inf")
        #: By namespace (EVERYTHING: all of them): the Lease of who serves it.
        self._left: dict[str, str] = {}

    def serves(self, namespace: str) -> bool:
        """Whether a namespace is ours."""
        return EVERYTHING not in self._left and namespace not in self._left

    async def run(self) -> None:
        """Look now and then."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Read the Leases of operators; say what changes by that."""
        try:
            found = await self._client.list(
                "coordination.k8s.io/v1", "Lease", None, f"{LEASE_LABEL}=true"
            )
        except KubernetesError as error:
            # Without the right nobody is known; without an answer everybody stays as known.
            log = _log.info if error.is_forbidden else _log.warning
            log("other operators are not looked for", error=str(error))
            return
        self._take(found)
        left = dict(self._others())
        if left == self._left:
            return
        for namespace in sorted(left.keys() - self._left.keys()):
            _log.warning(
                "stands aside: another operator serves this namespace",
                namespace=namespace,
                lease=left[namespace],
            )
        for namespace in sorted(self._left.keys() - left.keys()):
            _log.info("serves a namespace that another operator left", namespace=namespace)
        self._left = left
        self._on_change()

    def _take(self, leases: Sequence[Object]) -> None:
        now = self._clock()
        # Nobody was watched meanwhile: a Lease that did not change says nothing yet.
        was_away = now - self._looked_at > 2 * LOOK_SECONDS
        self._looked_at = now
        for lease in leases:
            metadata, spec = lease["metadata"], lease.get("spec") or {}
            key = (metadata["namespace"], metadata["name"])
            version = str(metadata["resourceVersion"])
            known = self._seen.get(key)
            if known is None:
                known = self._seen[key] = _Lease(version=version, changed_at=now)
            if known.version != version or was_away:
                known.version, known.changed_at = version, now
            if spec.get("holderIdentity") and now - known.changed_at <= LEASE_SECONDS:
                known.held_at = now
            known.serves = _served(metadata)
            known.age = (str(metadata.get("creationTimestamp", "")), str(metadata["uid"]))
        there = {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in leases}
        for key in [*self._seen.keys() - there]:
            if now - self._seen[key].held_at > GRACE_SECONDS:
                del self._seen[key]

    def _others(self) -> Mapping[str, str]:
        now, own = self._clock(), self._seen.get(self._own)
        left: dict[str, str] = {}
        for key, lease in sorted(self._seen.items()):
            is_at_work = now - lease.held_at <= GRACE_SECONDS
            if key == self._own or not is_at_work:
                continue
            if lease.serves == (EVERYTHING,) and own is not None and own.age < lease.age:
                continue
            left |= dict.fromkeys(lease.serves, "/".join(key))
        return left


def _served(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    listed = (metadata.get("annotations") or {}).get(_SERVES, "")
    return tuple(each for each in listed.split(",") if each)
