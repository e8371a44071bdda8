"""Renders brokers' `.properties` for pods. Pure.

The settings that a pool's brokers have in common decide whether they must be restarted; id and
addresses are each broker's own. Dynamic settings are not in the file: they are set for the whole
cluster (`plan.live`), so that a removed value is gone everywhere at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.plan.brokers import config_texts
from headrace_operator.render.names import (
    CONTROLLER_PORT,
    HTTP_PORT,
    REPLICATION_PORT,
    host_of,
)
from headrace_operator.resources.broker_settings import LIVE_BROKER_SETTINGS

if TYPE_CHECKING:
    from headrace_operator.render.identity import Identity, Node
    from headrace_operator.resources import Cluster, Listener

__all__ = [
    "DATA_DIRECTORY",
    "default_settings",
    "listener_name",
    "render_properties",
    "static_config",
]

DATA_DIRECTORY = "/var/lib/headrace"
REPLICATION = "REPLICATION"
CONTROLLER = "CONTROLLER"


def listener_name(name: str) -> str:
    """Return a listener's name as Kafka writes it."""
    return name.upper().replace("-", "_")


def static_config(cluster: Cluster) -> dict[str, str]:
    """Return the spec's settings that a broker reads only at its start."""
    return {
        key: text for key, text in config_texts(cluster).items() if key not in LIVE_BROKER_SETTINGS
    }


def render_properties(cluster: Cluster, identity: Identity, node: Node) -> str:
    """Render one broker's settings, one line each, in a stable order."""
    settings = (
        default_settings(identity.formed_with)
        | static_config(cluster)
        | _quorum(cluster, identity)
        | _owned(cluster, identity, node)
    )
    return "".join(f"{name}={_escaped(value)}\n" for name, value in sorted(settings.items()))


def default_settings(brokers: int) -> dict[str, str]:
    """Return the defaults for settings that the manifest's `config` leaves out."""
    replicas = max(1, min(brokers, 3))
    # Kafka's defaults for internal topics are three replicas, two in sync: not for one broker.
    in_sync = max(1, replicas - 1)
    return {
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(in_sync),
        # Topics come from manifests; a typo in a name must not create one.
        "auto.create.topics.enable": "false",
    }


def _quorum(cluster: Cluster, identity: Identity) -> dict[str, str]:
    """Return the voters while the cluster is being formed; afterwards only where to ask.

    After that, a node with an empty disk must never find voters in its settings: a majority of such
    nodes would form a second cluster.
    """
    addresses = {
        node.node_id: f"{host_of(cluster, node)}:{CONTROLLER_PORT}" for node in identity.controllers
    }
    if identity.is_formed:
        return {"controller.quorum.bootstrap.servers": ",".join(addresses.values())}
    voters = [f"{node_id}@{address}" for node_id, address in addresses.items()]
    return {"controller.quorum.voters": ",".join(voters)}


def _owned(cluster: Cluster, identity: Identity, node: Node) -> dict[str, str]:
    host = host_of(cluster, node)
    bound: list[str] = []
    advertised: list[str] = []
    if node.is_broker:
        bound.append(f"{REPLICATION}://:{REPLICATION_PORT}")
        advertised.append(f"{REPLICATION}://{host}:{REPLICATION_PORT}")
        for listener in cluster.spec.listeners:
            name = listener_name(listener.name)
            bound.append(f"{name}://:{listener.port}")
            advertised.append(f"{name}://{_address(node, listener, host)}")
    if node.is_controller:
        bound.append(f"{CONTROLLER}://:{CONTROLLER_PORT}")
        advertised.append(f"{CONTROLLER}://{host}:{CONTROLLER_PORT}")
    names = [REPLICATION, CONTROLLER]
    names += [listener_name(each.name) for each in cluster.spec.listeners]
    owned = {
        "process.roles": ",".join(node.roles),
        "node.id": str(node.node_id),
        "cluster.id": identity.cluster_id,
        "config.providers": "env",
        "controller.listener.names": CONTROLLER,
        "listeners": ",".join(bound),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
        "log.dirs": _log_directories(cluster, node),
        "headrace.http.listener": f"0.0.0.0:{HTTP_PORT}",
    }
    if node.is_broker:
        owned["inter.broker.listener.name"] = REPLICATION
    if node.rack is not None:
        owned["broker.rack"] = node.rack
    return owned


def _address(node: Node, listener: Listener, host: str) -> str:
    if listener.type == "NodePort":
        # Any node's address would do; its own one needs no network, and lives as long as the pod.
        return f"${{env:HOST_IP}}:{node.node_ports[listener.name]}"
    if listener.type == "LoadBalancer":
        return f"{node.addresses[listener.name]}:{listener.port}"
    return f"{host}:{listener.port}"


def _log_directories(cluster: Cluster, node: Node) -> str:
    """Return a directory on each volume: a former broker's data on the volume is not used."""
    pool = next(pool for pool in cluster.spec.pools if pool.name == node.pool)
    suffix = f"-{node.life}" if node.life > 1 else ""
    return ",".join(
        f"{DATA_DIRECTORY}/data-{number}/broker-{node.node_id}{suffix}"
        for number in range(pool.storage.volumes)
    )


def _escaped(value: str) -> str:
    """Escape for Java's .properties format: only backslashes and line breaks need it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
