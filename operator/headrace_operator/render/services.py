"""Services: the headless one for pods' names, and those for clients. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_operator.render.names import (
    BROKER_LABEL,
    CONTROLLER_PORT,
    HTTP_PORT,
    NAME,
    POOL_LABEL,
    REPLICATION_PORT,
    bootstrap_service,
    broker_service,
    headless_service,
    metadata,
    pod_name,
    selector,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_operator.render.identity import Identity, Node
    from headrace_operator.resources import Cluster, Listener

__all__ = ["external_listeners", "render_services"]


def external_listeners(cluster: Cluster) -> tuple[Listener, ...]:
    """Return the external listeners, for which each broker has a separate Service."""
    return tuple(each for each in cluster.spec.listeners if each.type != "Internal")


def render_services(cluster: Cluster, identity: Identity) -> Iterator[dict[str, Any]]:
    """Render all Services of the cluster."""
    ports = [_port("controller", CONTROLLER_PORT), _port("replication", REPLICATION_PORT)]
    ports += [_port(each.name, each.port) for each in cluster.spec.listeners]
    ports.append(_port("http", HTTP_PORT))
    yield _service(
        cluster,
        headless_service(cluster),
        {
            "type": "ClusterIP",
            "clusterIP": "None",
            # Voters must find one another before any of them can be ready.
            "publishNotReadyAddresses": True,
            "selector": selector(cluster) | NAME,
            "ports": ports,
        },
    )
    clients = selector(cluster) | {BROKER_LABEL: "true"}
    internal = [each for each in cluster.spec.listeners if each.type == "Internal"]
    if internal:
        ports = [_port(each.name, each.port) for each in internal]
        spec = {"type": "ClusterIP", "selector": clients, "ports": ports}
        yield _service(cluster, bootstrap_service(cluster), spec)
    for listener in external_listeners(cluster):
        port = _port(listener.name, listener.port)
        node_port = listener.node_port or identity.bootstrap_ports.get(listener.name)
        if node_port and listener.type == "NodePort":
            port["nodePort"] = node_port
        spec = {"type": listener.type, "selector": clients, "ports": [port]}
        yield _service(cluster, bootstrap_service(cluster, listener.name), spec)
        for node in identity.nodes:
            if node.is_broker:
                yield _broker_service(cluster, node, listener)


def _broker_service(cluster: Cluster, node: Node, listener: Listener) -> dict[str, Any]:
    port = _port(listener.name, listener.port)
    if listener.name in node.node_ports:
        port["nodePort"] = node.node_ports[listener.name]
    return _service(
        cluster,
        broker_service(cluster, node, listener.name),
        {
            "type": listener.type,
            # Clients with this address may also get a broker that is about to be ready.
            "publishNotReadyAddresses": True,
            "selector": selector(cluster)
            | {
                POOL_LABEL: node.pool,
                "statefulset.kubernetes.io/pod-name": pod_name(cluster, node),
            },
            "ports": [port],
        },
    )


def _service(cluster: Cluster, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(cluster, name),
        "spec": spec,
    }


def _port(name: str, port: int) -> dict[str, Any]:
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
