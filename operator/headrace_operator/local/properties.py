"""Renders a broker's `.properties` from a Cluster. Pure: data in, text out.

Names are Kafka's own. The manifest's `config` overrides the defaults here, but not the settings
that the local backend must own: ids, addresses and directories.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace_operator.render.properties import default_settings as replicated_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = [
    "BrokerNode",
    "Formation",
    "bootstrap_servers",
    "default_settings",
    "render_broker_properties",
]

LOOPBACK = "127.0.0.1"
LISTENER_NAME = "PLAINTEXT"
CONTROLLER_LISTENER_NAME = "CONTROLLER"


@dataclass(frozen=True, kw_only=True)
class Formation:
    """What was fixed when the cluster was formed, and holds for every broker that joins later."""

    #: Empty: a single broker of an older cluster, whose data has its own id.
    cluster_id: str
    #: Number of brokers then: the replication defaults follow from it, and must not differ by
    #: broker. Smaller once the cluster has shrunk below it, as there cannot be more replicas than
    #: brokers.
    brokers: int
    #: The quorum's log names the voters. From then on no node may start a second quorum.
    is_formed: bool = False


@dataclass(frozen=True, kw_only=True)
class BrokerNode:
    """One process of a cluster: its id, roles and ports, and its data folder."""

    node_id: int
    pool: str
    roles: tuple[str, ...]
    client_port: int
    controller_port: int
    http_port: int
    data_directory: Path
    rack: str | None = None

    @property
    def is_broker(self) -> bool:
        """Whether it serves clients."""
        return "broker" in self.roles

    @property
    def is_controller(self) -> bool:
        """Whether it votes in the metadata quorum."""
        return "controller" in self.roles

    @property
    def address(self) -> str:
        """Its address for clients."""
        return f"{LOOPBACK}:{self.client_port}"

    @property
    def controller_address(self) -> str:
        """Its address for controllers and brokers, if it is a controller."""
        return f"{LOOPBACK}:{self.controller_port}"

    @property
    def http_url(self) -> str:
        """The base URL of /healthz, /readyz and /metrics."""
        return f"http://{LOOPBACK}:{self.http_port}"


def bootstrap_servers(nodes: Sequence[BrokerNode]) -> str:
    """List brokers' addresses as clients' `bootstrap.servers`."""
    return ",".join(node.address for node in nodes if node.is_broker)


def render_broker_properties(
    node: BrokerNode,
    nodes: Sequence[BrokerNode],
    config: Mapping[str, str],
    formation: Formation,
) -> str:
    """Render the settings of one node, one line each, in a stable order."""
    settings = default_settings(formation) | dict(config) | _owned(node)
    settings |= _quorum(nodes, may_form=not formation.is_formed)
    if formation.cluster_id:
        settings["cluster.id"] = formation.cluster_id
    return "".join(f"{name}={_escaped(value)}\n" for name, value in sorted(settings.items()))


def default_settings(formation: Formation) -> dict[str, str]:
    """Return the defaults for settings that the manifest's `config` leaves out."""
    return replicated_settings(formation.brokers) | {
        # Members on one machine join together: there is nothing to wait for.
        "group.initial.rebalance.delay.ms": "0",
    }


def _quorum(nodes: Sequence[BrokerNode], *, may_form: bool) -> dict[str, str]:
    """Return the voters while the cluster is being formed; afterwards only where to ask (KIP-853).

    After that, a node with an empty disk must never find voters in its settings: a majority of such
    nodes would form a second, empty cluster.
    """
    controllers = [node for node in nodes if node.is_controller]
    if may_form:
        voters = [f"{node.node_id}@{node.controller_address}" for node in controllers]
        return {"controller.quorum.voters": ",".join(voters)}
    servers = ",".join(node.controller_address for node in controllers)
    return {"controller.quorum.bootstrap.servers": servers}


def _owned(node: BrokerNode) -> dict[str, str]:
    listeners = []
    if node.is_broker:
        listeners.append(f"{LISTENER_NAME}://{node.address}")
    if node.is_controller:
        listeners.append(f"{CONTROLLER_LISTENER_NAME}://{node.controller_address}")
    owned = {
        "process.roles": ",".join(node.roles),
        "node.id": str(node.node_id),
        "controller.listener.names": CONTROLLER_LISTENER_NAME,
        "listeners": ",".join(listeners),
        "listener.security.protocol.map": (
            f"{LISTENER_NAME}:PLAINTEXT,{CONTROLLER_LISTENER_NAME}:PLAINTEXT"
        ),
        "log.dirs": str(node.data_directory),
        "headrace.http.listener": f"{LOOPBACK}:{node.http_port}",
    }
    if node.is_broker:
        owned["advertised.listeners"] = f"{LISTENER_NAME}://{node.address}"
        owned["inter.broker.listener.name"] = LISTENER_NAME
    if node.rack is not None:
        owned["broker.rack"] = node.rack
    return owned


def _escaped(value: str) -> str:
    """Escape for Java's .properties format: only backslashes and line breaks need it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
