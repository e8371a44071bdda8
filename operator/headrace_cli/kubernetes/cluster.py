"""The Cluster in Kubernetes that a command is about, and access to its brokers from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_cli.errors import BadInputError, CommandError
from headrace_cli.kubernetes.choice import open_connection

if TYPE_CHECKING:
    from headrace_cli.kubernetes.choice import Choice
    from headrace_cli.kubernetes.tunnel import Tunnel

__all__ = ["KubernetesCluster", "find_kubernetes_cluster"]


@dataclass(frozen=True, kw_only=True)
class KubernetesCluster:
    """A Cluster, and its brokers' addresses for clients on this machine."""

    document: dict[str, Any]
    bootstrap_servers: str
    proxy_url: str
    #: Node pools by the host names that brokers advertise; those that join later are added.
    pools: dict[str, str]
    #: HTTP addresses on this machine, by host.
    http: dict[str, str]
    tunnel: Tunnel

    @property
    def name(self) -> str:
        """The Cluster's name."""
        return str(self.document["metadata"]["name"])


def find_kubernetes_cluster(choice: Choice, name: str | None) -> KubernetesCluster:
    """Find a Cluster in the namespace, by default the only one, and open access to it.

    Raises BadInputError if it is not clear which one, CommandError if there is no access.
    """
    from headrace_cli.kubernetes.tunnel import Tunnel
    from headrace_operator.kubernetes.api.client import KubernetesError

    connection, namespace = open_connection(choice)
    tunnel = Tunnel(connection, namespace)
    choice.at_end(tunnel.close)
    try:
        found = tunnel.run(_read(tunnel, namespace, name))
    except KubernetesError as error:
        raise CommandError(f"{choice.title}, namespace {namespace}: {error}") from error
    if isinstance(found, str):
        raise BadInputError(f"{choice.title}, namespace {namespace}: {found}")
    document, pods = found
    return _open(tunnel, document, pods)


async def _read(
    tunnel: Tunnel, namespace: str, name: str | None
) -> str | tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a Cluster and its brokers' pods, or why none is found."""
    from headrace_operator.resources import API_VERSION

    clusters = await tunnel.client.list(API_VERSION, "Cluster", namespace)
    names = sorted(each["metadata"]["name"] for each in clusters)
    if not clusters:
        return "there is no Cluster; name another namespace with -n"
    if name is None and len(clusters) > 1:
        return f"there are several Clusters ({', '.join(names)}): say which with --cluster"
    wanted = name or names[0]
    if wanted not in names:
        return f"there is no Cluster {wanted}, but {', '.join(names)}"
    document = next(each for each in clusters if each["metadata"]["name"] == wanted)
    return document, await _list_pods(tunnel, document)


async def _list_pods(tunnel: Tunnel, document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pods of a Cluster's brokers and controllers."""
    from headrace_operator.render.names import broker_query

    metadata = document["metadata"]
    query = broker_query(metadata["name"])
    return await tunnel.client.list("v1", "Pod", metadata["namespace"], label_selector=query)


def _open(
    tunnel: Tunnel, document: dict[str, Any], pods: list[dict[str, Any]]
) -> KubernetesCluster:
    from headrace_operator.render.names import BROKER_LABEL, HTTP_PORT, POOL_LABEL
    from headrace_operator.resources import Cluster, parse_resource

    cluster = parse_resource(document)
    if not isinstance(cluster, Cluster):
        raise TypeError("the API server lists a kind's objects only")
    # Ready pods come first: a client asks them one after the other.
    pods = sorted(pods, key=lambda pod: (not _is_running(pod), not _is_ready(pod), _name_of(pod)))
    hosts = {_host_of(cluster, pod): pod for pod in pods}
    pools = {host: pod["metadata"]["labels"][POOL_LABEL] for host, pod in hosts.items()}

    async def list_again() -> dict[str, str]:
        found = {_host_of(cluster, pod): pod for pod in await _list_pods(tunnel, document)}
        pools.update({host: pod["metadata"]["labels"][POOL_LABEL] for host, pod in found.items()})
        return {host: _name_of(pod) for host, pod in found.items()}

    tunnel.add_hosts({host: _name_of(pod) for host, pod in hosts.items()}, list_again)
    # One that restarts now is reached when it is back; its name stays.
    brokers = {
        host: pod for host, pod in hosts.items() if BROKER_LABEL in pod["metadata"]["labels"]
    }
    running = [host for host, pod in brokers.items() if _is_running(pod)]
    if not running:
        reason = next(
            (
                each.get("message", "")
                for each in document.get("status", {}).get("conditions", ())
                if each["type"] == "Ready"
            ),
            "",
        )
        raise CommandError(f"Cluster {cluster.metadata.name} has no broker that runs: {reason}")
    return KubernetesCluster(
        document=document,
        bootstrap_servers=",".join(f"{host}:{_port_of(cluster)}" for host in running),
        proxy_url=tunnel.proxy_url,
        pools=pools,
        http={
            host: f"http://127.0.0.1:{tunnel.forward(_name_of(pod), HTTP_PORT)}"
            for host, pod in brokers.items()
        },
        tunnel=tunnel,
    )


def _name_of(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def _is_running(pod: dict[str, Any]) -> bool:
    is_running = pod.get("status", {}).get("phase") == "Running"
    return is_running and "deletionTimestamp" not in pod["metadata"]


def _is_ready(pod: dict[str, Any]) -> bool:
    return any(
        each["type"] == "Ready" and each["status"] == "True"
        for each in pod.get("status", {}).get("conditions", ())
    )


def _host_of(cluster: Any, pod: dict[str, Any]) -> str:
    """Return what a pod's broker advertises to clients inside Kubernetes."""
    from headrace_operator.render.names import headless_service

    namespace = pod["metadata"]["namespace"]
    return f"{pod['metadata']['name']}.{headless_service(cluster)}.{namespace}.svc"


def _port_of(cluster: Any) -> int:
    """Return the port of the first client listener that names brokers by their pods.

    If a Cluster has no such listener, use the one for brokers and operators.
    """
    from headrace_operator.render.names import REPLICATION_PORT

    inner = (each.port for each in cluster.spec.listeners if each.type == "Internal")
    return next(inner, REPLICATION_PORT)
