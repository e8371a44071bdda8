"""Whether a Cluster's Services have the addresses of its pods, in their EndpointSlices.

Brokers and clients find a broker by its name, which has the addresses that are there. Kubernetes'
controller of EndpointSlices, where a request failed or what it had read was out of date, waits for
up to 1,000 s; a change of the Service makes it look at once. Without permission to list
EndpointSlices, nothing is known from here and nothing reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.kubernetes.brokers.observed import is_ready
from headrace_operator.kubernetes.brokers.waking import NEVER, Wakes, wake

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable

    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.kubernetes.brokers.observed import Seen
    from headrace_operator.plan import Key
    from headrace_operator.resources import Cluster

__all__ = ["Published"]

SERVICE_LABEL = "kubernetes.io/service-name"
#: A pod's address is in the slices within a second or two.
LAG_SECONDS = 10.0
#: While addresses are missing, slices are listed this often at most.
ASK_SECONDS = 3.0
#: Each time costs one request, and clients look for brokers meanwhile.
WAKE_SECONDS_MAX = 30.0

_log = structlog.get_logger("headrace.operator.brokers")


def _wakes() -> Wakes:
    return Wakes(seconds_max=WAKE_SECONDS_MAX)


@dataclass(frozen=True, kw_only=True)
class _Pod:
    """A pod as a Service is to have it: by any of its addresses."""

    name: str
    uid: str
    addresses: tuple[str, ...]


@dataclass(kw_only=True)
class _Service:
    """What its slices had when last listed, and since when some are missing."""

    uid: str
    published: frozenset[_Pod] = frozenset()
    since: dt.datetime = NEVER
    wakes: Wakes = field(default_factory=_wakes)


@dataclass(kw_only=True)
class _Memory:
    services: dict[str, _Service] = field(default_factory=dict)
    asked_at: dt.datetime = NEVER
    now: dt.datetime = NEVER
    asleep: list[Object] = field(default_factory=list)


class Published:
    """Pods' addresses in the EndpointSlices of their Cluster's Services."""

    def __init__(self, client: KubernetesClient) -> None:
        """Owns, in memory, which addresses were there, and since when others are missing."""
        self._client = client
        self._memories: dict[Key, _Memory] = {}

    def forget(self, cluster: Cluster) -> None:
        """Forget a Cluster that is deleted."""
        self._memories.pop(cluster.key, None)

    async def look(self, cluster: Cluster, seen: Seen) -> tuple[str, ...]:
        """Return in one message which addresses have been missing for a while, or nothing.

        Raises KubernetesError.

        EndpointSlices are only listed while there are pods whose addresses were never found there.
        """
        memory = self._memories.setdefault(cluster.key, _Memory())
        memory.now = seen.now
        wanted = {
            name: _wanted(service, seen.pods.values())
            for name, service in seen.services.items()
            if not service["metadata"].get("deletionTimestamp")
        }
        memory.services = {
            name: _known(memory.services.get(name), seen.services[name], pods)
            for name, pods in wanted.items()
        }
        if any(wanted[name] - each.published for name, each in memory.services.items()):
            await self._ask(cluster, memory, wanted)
        messages = []
        memory.asleep = []
        for name, each in memory.services.items():
            missing = wanted[name] - each.published
            if not missing:
                each.since, each.wakes = NEVER, _wakes()
                continue
            if each.since == NEVER:
                each.since = seen.now
            if (seen.now - each.since).total_seconds() < LAG_SECONDS:
                continue
            pods = ", ".join(sorted(pod.name for pod in missing))
            messages.append(
                f"Service {name} lacks the addresses of {pods} since"
                f" {each.since:%Y-%m-%dT%H:%M:%SZ}"
            )
            if each.wakes.is_due(seen.now):
                each.wakes.note(seen.now)
                memory.asleep.append(seen.services[name])
        if not messages:
            return ()
        return (f"{'; '.join(messages)}: Kubernetes' EndpointSlices lag behind",)

    async def wake(self, cluster: Cluster) -> None:
        """Have the controller look again at Services without addresses. Raises KubernetesError."""
        memory = self._memories.get(cluster.key)
        if memory is None:
            return
        asleep, memory.asleep = memory.asleep, []
        for each in asleep:
            _log.info("EndpointSlices lag behind", service=each["metadata"]["name"])
            await wake(self._client, each, memory.now)

    async def _ask(
        self, cluster: Cluster, memory: _Memory, wanted: dict[str, frozenset[_Pod]]
    ) -> None:
        """Note which of the wanted addresses the slices have."""
        if (memory.now - memory.asked_at).total_seconds() < ASK_SECONDS:
            return
        memory.asked_at = memory.now
        namespace, names = cluster.metadata.namespace, ", ".join(sorted(wanted))
        try:
            slices = await self._client.list(
                "discovery.k8s.io/v1",
                "EndpointSlice",
                namespace,
                f"{SERVICE_LABEL} in ({names})",
            )
        except KubernetesError as error:
            if not error.is_forbidden:
                raise
            for name, each in memory.services.items():
                each.published = wanted[name]
            return
        for name, each in memory.services.items():
            found = _found(each for each in slices if _service_of(each) == name)
            each.published = frozenset(
                pod
                for pod in wanted[name]
                if any((pod.uid, address) in found for address in pod.addresses)
            )


def _known(former: _Service | None, service: Object, wanted: frozenset[_Pod]) -> _Service:
    """Return what is known of a Service: nothing about what was not wanted for a while."""
    uid = service["metadata"]["uid"]
    if former is None or former.uid != uid:
        return _Service(uid=uid)
    former.published &= wanted
    return former


def _wanted(service: Object, pods: Iterable[Object]) -> frozenset[_Pod]:
    """Return the pods whose addresses a Service is to have."""
    spec = service["spec"]
    selector = (spec.get("selector") or {}).items()
    is_early = spec.get("publishNotReadyAddresses", False)
    found = []
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status", {})
        addresses = tuple(each["ip"] for each in status.get("podIPs") or [])
        is_over = metadata.get("deletionTimestamp") or status.get("phase") in (
            "Succeeded",
            "Failed",
        )
        if not selector or not addresses or is_over or not (is_early or is_ready(pod)):
            continue
        if selector <= (metadata.get("labels") or {}).items():
            found.append(_Pod(name=metadata["name"], uid=metadata["uid"], addresses=addresses))
    return frozenset(found)


def _found(slices: Iterable[Object]) -> set[tuple[str, str]]:
    """Return the uid and address of each pod that is served."""
    return {
        ((endpoint.get("targetRef") or {}).get("uid", ""), address)
        for each in slices
        for endpoint in each.get("endpoints") or []
        if (endpoint.get("conditions") or {}).get("ready") is not False
        for address in endpoint["addresses"]
    }


def _service_of(endpoint_slice: Object) -> str | None:
    name: str | None = (endpoint_slice["metadata"].get("labels") or {}).get(SERVICE_LABEL)
    return name
