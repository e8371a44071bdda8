"""The nodes that brokers wait for: volumes are bound to them, or pods cannot terminate there.

Read-only. Without permission to read nodes and volumes, nothing is known and nothing reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.kubernetes.brokers.observed import is_ready
from headrace_operator.plan import NodeLoss
from headrace_operator.render.names import pod_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.kubernetes.brokers.identity import Identities
    from headrace_operator.render.identity import Identity
    from headrace_operator.resources import Cluster

__all__ = ["Losses", "hostname_of"]

_HOSTNAME_LABEL = "kubernetes.io/hostname"


class Losses:
    """Nodes that pods wait for."""

    def __init__(self, client: KubernetesClient, identities: Identities) -> None:
        """The identities give the brokers' claims."""
        self._client = client
        self._identities = identities
        #: Nodes of volumes that are bound to one, by the claims' uids: they never change.
        self._hosts: dict[str, str] = {}

    async def look(
        self, cluster: Cluster, identity: Identity, pods: Mapping[str, Object]
    ) -> Mapping[int, NodeLoss]:
        """Return the brokers' missing nodes, by node id. Raises KubernetesError."""
        found: dict[int, NodeLoss] = {}
        machines: dict[str, list[Object]] = {}
        try:
            for node in identity.nodes:
                pod = pods.get(pod_name(cluster, node))
                if is_ready(pod):
                    continue
                claims = self._identities.claims_of(cluster, node)
                loss = await self._loss_of(pod, claims, machines)
                if loss is not None:
                    found[node.node_id] = loss
        except KubernetesError as error:
            if not error.is_forbidden:
                raise
        return found

    async def _loss_of(
        self, pod: Object | None, claims: Sequence[Object], machines: dict[str, list[Object]]
    ) -> NodeLoss | None:
        volumes: dict[str, list[str]] = {}
        for claim in claims:
            if not claim["metadata"].get("deletionTimestamp") and (
                host := await self._host_of(claim)
            ):
                volumes.setdefault(host, []).append(claim["metadata"]["name"])
        # Without volumes, only the node on which a pod cannot terminate.
        machine = (pod or {}).get("spec", {}).get("nodeName")
        hosts = sorted(volumes) or ([machine] if machine else [])
        for host in hosts:
            if host not in machines:
                machines[host] = await self._client.list(
                    "v1", "Node", None, f"{_HOSTNAME_LABEL}={host}"
                )
            bound = tuple(volumes.get(host, ()))
            loss = _judged(host, bound, machines[host], is_placed=bool(machine))
            if loss is not None:
                return loss
        return None

    async def _host_of(self, claim: Object) -> str:
        """Return the only node that can mount a claim's volume; '' if there is no such node."""
        name = claim["spec"].get("volumeName")
        if not name:
            return ""
        uid = claim["metadata"]["uid"]
        if uid not in self._hosts:
            live = await self._client.get("v1", "PersistentVolume", None, name)
            if not (host := hostname_of(live or {})):
                return ""
            self._hosts[uid] = host
        return self._hosts[uid]


def hostname_of(volume: Mapping[str, Any]) -> str:
    """Return the node that a PersistentVolume is bound to; '' if several can mount it."""
    required = (volume.get("spec", {}).get("nodeAffinity") or {}).get("required") or {}
    hosts = {
        tuple(each.get("values") or ())
        for term in required.get("nodeSelectorTerms") or []
        for each in term.get("matchExpressions") or []
        if each.get("key") == _HOSTNAME_LABEL and each.get("operator", "In") == "In"
    }
    (only,) = hosts if len(hosts) == 1 else ((),)
    return str(only[0]) if len(only) == 1 else ""


def _judged(
    host: str, volumes: tuple[str, ...], machines: Sequence[Object], *, is_placed: bool
) -> NodeLoss | None:
    if not machines:
        if not volumes:
            # Kubernetes deletes the pods there, and starts them elsewhere.
            return None
        reason = "it does not exist any more"
        return NodeLoss(machine=host, volumes=volumes, reason=reason, is_gone=True)
    machine = machines[0]
    conditions = machine.get("status", {}).get("conditions") or []
    ready: Object = next((each for each in conditions if each["type"] == "Ready"), {})
    if ready.get("status") != "True":
        since = ready.get("lastTransitionTime")
        reason = "it is not ready" + (f" since {since}" if since else "")
        return NodeLoss(machine=host, volumes=volumes, reason=reason)
    if machine["spec"].get("unschedulable") and volumes and not is_placed:
        reason = "it takes no pod, being cordoned"
        return NodeLoss(machine=host, volumes=volumes, reason=reason, is_cordoned=True)
    return None
