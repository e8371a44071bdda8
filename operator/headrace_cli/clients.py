"""Clients of the brokers: a command's cluster, and kafka-python's clients for it."""

from __future__ import annotations

import contextlib
import logging
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from headrace_cli.errors import BadInputError, CommandError
from headrace_cli.kubernetes.choice import chosen, refuse_kubernetes
from headrace_cli.profiles import selected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace_cli.kubernetes.cluster import KubernetesCluster
    from headrace_operator.local.layout import ClusterLayout
    from headrace_operator.local.state import ClusterState

_T = TypeVar("_T")

__all__ = [
    "Target",
    "admin_client",
    "ask",
    "check_advertised",
    "explain_kafka_errors",
    "find_cluster",
    "find_layout",
]

CLIENT_ID = "headrace-cli"
# The brokers are near: no answer within this time means that there are none.
API_TIMEOUT_MS = 10_000
_PORT_MAX = 65535


@dataclass(frozen=True, kw_only=True)
class Target:
    """The cluster of a command: on this machine, in Kubernetes, or only brokers' addresses."""

    bootstrap_servers: str
    layout: ClusterLayout | None = None
    state: ClusterState | None = None
    kubernetes: KubernetesCluster | None = None

    @property
    def name(self) -> str | None:
        """The cluster's name in its manifest; None if there is none."""
        if self.kubernetes is not None:
            return self.kubernetes.name
        return self.state.cluster if self.state is not None else None

    @property
    def client_settings(self) -> dict[str, Any]:
        """The arguments that kafka-python's clients need to reach it."""
        proxy = {} if self.kubernetes is None else {"proxy_url": self.kubernetes.proxy_url}
        return {
            "bootstrap_servers": self.bootstrap_servers.split(","),
            "client_id": CLIENT_ID,
            **proxy,
        }

    @property
    def http_addresses(self) -> list[str]:
        """The brokers' HTTP addresses, as far as they are known."""
        if self.kubernetes is not None:
            return list(self.kubernetes.http.values())
        return [each.http for each in self.state.brokers if each.http] if self.state else []

    @property
    def problem(self) -> str:
        """The known reason why it does not answer; '' if there is none."""
        return self.kubernetes.tunnel.problem if self.kubernetes is not None else ""


def find_layout(
    data_directory: Path, cluster: str | None, *, even_stopped: bool = False
) -> ClusterLayout:
    """Find the files of a local cluster that need not be named: the only running one.

    If none runs, and always with `even_stopped`, the only one with files is used.
    """
    from headrace_operator.local.layout import ClusterLayout, clusters_in

    refuse_kubernetes()
    known = clusters_in(data_directory)
    if cluster is None and not even_stopped:
        known = [name for name in known if _is_running(data_directory / name)] or known
    if cluster is None:
        if not known:
            raise CommandError(
                f"no cluster in {data_directory}: start one with `headrace up PATH`, "
                "or name brokers with --bootstrap-server"
            )
        if len(known) > 1:
            raise BadInputError(
                f"{data_directory} has several clusters ({', '.join(known)}): "
                "say which with --cluster"
            )
        cluster = known[0]
    elif cluster not in known:
        raise BadInputError(f"no cluster {cluster} in {data_directory}; known: {known}")
    return ClusterLayout(root=data_directory / cluster)


def _is_running(root: Path) -> bool:
    from headrace_operator.local.layout import ClusterLayout
    from headrace_operator.local.state import load_state

    state = load_state(ClusterLayout(root=root).state_file)
    return state is not None and state.is_running


def find_cluster(
    data_directory: Path, cluster: str | None, bootstrap_servers: str | None
) -> Target:
    """Find the brokers to use: the given ones, those in Kubernetes, the local cluster's."""
    from headrace_operator.local.state import load_state

    choice = chosen()
    profile = selected()
    if profile is not None:
        cluster = cluster or profile.cluster
        bootstrap_servers = bootstrap_servers or profile.bootstrap_servers
    if choice is not None and bootstrap_servers:
        raise BadInputError("say either --context and --namespace, or --bootstrap-server")
    if choice is not None:
        from headrace_cli.kubernetes.cluster import find_kubernetes_cluster

        found = find_kubernetes_cluster(choice, cluster)
        return Target(bootstrap_servers=found.bootstrap_servers, kubernetes=found)
    if bootstrap_servers:
        _check_addresses(bootstrap_servers)
        return Target(bootstrap_servers=bootstrap_servers)
    layout = find_layout(data_directory, cluster)
    state = load_state(layout.state_file)
    if state is None or not state.is_running:
        raise CommandError(
            f"cluster {layout.root.name} is not running: start it with `headrace up PATH`"
        )
    return Target(bootstrap_servers=state.bootstrap_servers, layout=layout, state=state)


def _check_addresses(bootstrap_servers: str) -> None:
    from kafka.cluster import get_ip_port_afi

    for each in bootstrap_servers.split(","):
        try:
            host, port, _ = get_ip_port_afi(each)
        except ValueError:
            host, port = "", 0
        if not host or not 0 < port <= _PORT_MAX:
            raise BadInputError(f"--bootstrap-server: {each!r} is not host:port")


@contextlib.contextmanager
def admin_client(target: Target) -> Iterator[Any]:
    """Open an admin client; failures of the brokers become `CommandError`."""
    quiet_kafka_logs()
    with explain_kafka_errors(target):
        from kafka import KafkaAdminClient

        admin = KafkaAdminClient(
            **target.client_settings,
            bootstrap_timeout_ms=API_TIMEOUT_MS,
            request_timeout_ms=API_TIMEOUT_MS,
        )
        try:
            if target.kubernetes is None:
                _check_brokers(admin)
            yield admin
        finally:
            admin.close()


def ask(target: Target, question: Callable[[Any], _T]) -> _T:
    """Return the result of `question` for an admin client's answers.

    A client knows the brokers at the time it was made. If one joined or left since and is asked
    directly, for example for its own settings, the question is repeated with a new client.
    """
    from kafka.errors import KafkaConnectionError, UnknownBrokerIdError

    with (
        admin_client(target) as admin,
        contextlib.suppress(UnknownBrokerIdError, KafkaConnectionError),
    ):
        return question(admin)
    with admin_client(target) as admin:
        return question(admin)


def check_advertised(target: Target) -> None:
    """Raise CommandError if brokers advertise names that cannot be resolved here.

    Producers and consumers would retry them for minutes.
    """
    with admin_client(target):
        pass


def _check_brokers(admin: Any) -> None:
    """See check_advertised. With `kubectl port-forward`, brokers advertise their pods' names.

    If one of them can be resolved, the others may just be down: a deleted pod has no name.
    """
    # The bootstrap broker's answer; a new request could go to any of them.
    brokers = admin._manager.cluster.brokers()  # noqa: SLF001
    named = sorted(f"{each.host}:{each.port}" for each in brokers)
    if brokers and not any(_is_known(each.host, each.port) for each in brokers):
        raise CommandError(
            f"the brokers name themselves {', '.join(named)}, which is unknown here: those in "
            "Kubernetes are reached with `headrace --context CONTEXT -n NAMESPACE …`, or by a "
            "listener of type NodePort or LoadBalancer"
        )


def _is_known(host: str, port: int) -> bool:
    try:
        socket.getaddrinfo(host, port)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def explain_kafka_errors(target: Target) -> Iterator[None]:
    """Turn kafka-python's errors into one line that names the brokers."""
    from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError

    try:
        yield
    except (KafkaConnectionError, KafkaTimeoutError) as error:
        reason = target.problem or error
        raise CommandError(f"no answer from {target.bootstrap_servers}: {reason}") from error
    except KafkaError as error:
        raise CommandError(f"{type(error).__name__}: {error}") from error


def quiet_kafka_logs() -> None:
    """Hide the client's own warnings (retries, reconnects) from the user."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
