"""Brokers' addresses for outside clients: those of Services, and those that brokers advertise.

Owns, in memory, what running brokers advertise. Each process is asked once, because its advertised
addresses are fixed when it starts. The plan decides whether a broker is restarted for that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from headrace_operator.plan.rolling import address_changes
from headrace_operator.render.names import bootstrap_service, broker_service
from headrace_operator.render.properties import listener_name
from headrace_operator.render.services import external_listeners

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.plan import Observed, ObservedBroker
    from headrace_operator.render.identity import Identity, Node
    from headrace_operator.resources import Cluster

__all__ = [
    "AddressWatch",
    "external_addresses",
    "missing_addresses",
    "with_addresses",
    "with_bootstrap_ports",
]

#: A broker whose restart did not change its addresses is restarted again, but at growing intervals:
#: a kubelet may mount the older settings once, and a pod template that overrides them always does.
AGAIN_MS_MIN = 60_000
AGAIN_MS_MAX = 3_600_000


def with_addresses(cluster: Cluster, node: Node, services: Mapping[str, Object]) -> Node:
    """Return the broker with its Services' present addresses; missing ones keep their value."""
    ports, addresses = dict(node.node_ports), dict(node.addresses)
    for listener in external_listeners(cluster):
        service = services.get(broker_service(cluster, node, listener.name))
        if service is None or service["metadata"].get("deletionTimestamp"):
            continue
        if listener.type == "NodePort":
            port = service["spec"]["ports"][0].get("nodePort")
            if port:
                # A known port is rendered into the Service: a user's change there is overwritten,
                # and no broker is restarted for it.
                ports.setdefault(listener.name, port)
            continue
        ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress") or []
        found = [each.get("hostname") or each.get("ip") for each in ingress]
        found = [each for each in found if each]
        # One of several stays: their order means nothing.
        if found and addresses.get(listener.name) not in found:
            addresses[listener.name] = found[0]
    return msgspec.structs.replace(node, node_ports=ports, addresses=addresses)


def with_bootstrap_ports(
    cluster: Cluster, identity: Identity, services: Mapping[str, Object]
) -> Identity:
    """Return the identity with all Services' NodePorts; known ports stay."""
    ports = {}
    for listener in external_listeners(cluster):
        service = services.get(bootstrap_service(cluster, listener.name))
        if listener.type != "NodePort" or service is None:
            continue
        port = service["spec"]["ports"][0].get("nodePort")
        if port and not service["metadata"].get("deletionTimestamp"):
            ports[listener.name] = listener.node_port or port
    return msgspec.structs.replace(identity, bootstrap_ports=identity.bootstrap_ports | ports)


def external_addresses(cluster: Cluster, node: Node) -> dict[str, str]:
    """Return known `host:port` by listener; `:port` means on the broker's own node."""
    found: dict[str, str] = {}
    for listener in external_listeners(cluster):
        if listener.type == "NodePort" and listener.name in node.node_ports:
            found[listener.name] = f":{node.node_ports[listener.name]}"
        elif listener.type == "LoadBalancer" and listener.name in node.addresses:
            found[listener.name] = f"{node.addresses[listener.name]}:{listener.port}"
    return found


def missing_addresses(cluster: Cluster, node: Node) -> tuple[str, ...]:
    """Return the external listeners for which a broker has no known address yet."""
    if not node.is_broker:
        return ()
    return tuple(
        each.name
        for each in external_listeners(cluster)
        if each.name not in (node.node_ports if each.type == "NodePort" else node.addresses)
    )


@dataclass(frozen=True, kw_only=True)
class _Heard:
    """What a process advertises. `misses`: how many in a row differed from the wanted addresses."""

    process: str
    advertised: Mapping[str, str]
    at_ms: int
    misses: int


class AddressWatch:
    """The advertised addresses of one Cluster's brokers."""

    def __init__(self) -> None:
        """No broker has been asked yet."""
        self._heard: dict[int, _Heard] = {}

    async def observe(
        self,
        observed: Observed,
        ask: Callable[[Sequence[int]], Awaitable[Mapping[int, Mapping[str, str]]]],
        *,
        now_ms: int,
    ) -> Observed:
        """Add what brokers with outside addresses advertise. Each process is asked only once.

        `ask` returns `host:port` by Kafka's listener name, by node id.
        """
        seen = observed.cluster
        if seen is None or not seen.is_reachable:
            return observed
        answering = [
            each for each in seen.brokers if each.addresses and each.is_registered and each.is_ready
        ]
        unknown = [each for each in answering if not self._knows(each)]
        if unknown:
            answers = await ask([each.node_id for each in unknown])
            for broker in unknown:
                if broker.node_id in answers:
                    self._hear(broker, answers[broker.node_id], now_ms)
        self._heard = {
            each.node_id: self._heard[each.node_id]
            for each in seen.brokers
            if each.node_id in self._heard
        }
        known = {each.node_id for each in answering if self._knows(each)}
        brokers, pending = [], list(seen.pending)
        for broker in seen.brokers:
            if broker.node_id not in known:
                brokers.append(broker)
                continue
            heard = self._heard[broker.node_id]
            telling = replace(broker, advertised=heard.advertised)
            changes = address_changes(telling)
            again_ms = _again_ms(heard)
            if changes and now_ms - heard.at_ms < again_ms:
                pending.append(
                    f"broker {broker.node_id} was restarted and still advertises what it did"
                    f" ({'; '.join(changes)}); the next attempt is within {again_ms // 60_000} min"
                )
                telling = broker
            brokers.append(telling)
        cluster = replace(seen, brokers=tuple(brokers), pending=tuple(pending))
        return replace(observed, cluster=cluster)

    def _knows(self, broker: ObservedBroker) -> bool:
        heard = self._heard.get(broker.node_id)
        return heard is not None and heard.process == broker.process

    def _hear(self, broker: ObservedBroker, answer: Mapping[str, str], now_ms: int) -> None:
        advertised = {
            name: answer[listener_name(name)]
            for name in broker.addresses
            if listener_name(name) in answer
        }
        before = self._heard.get(broker.node_id)
        misses = 0
        if address_changes(replace(broker, advertised=advertised)):
            misses = 1 + (before.misses if before else 0)
        self._heard[broker.node_id] = _Heard(
            process=broker.process, advertised=advertised, at_ms=now_ms, misses=misses
        )


def _again_ms(heard: _Heard) -> int:
    """How long a process with wrong addresses is left running before it is restarted for them."""
    if heard.misses <= 1:
        return 0
    return min(AGAIN_MS_MIN << min(heard.misses - 2, 10), AGAIN_MS_MAX)
