"""Clients of the brokers: which cluster a command means, and kafka-python's clients for it."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from headrace_cli.errors import BadInputError, CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace_operator.local.layout import ClusterLayout
    from headrace_operator.local.state import ClusterState

_T = TypeVar("_T")

__all__ = ["Target", "admin_client", "ask", "explain_kafka_errors", "find_cluster", "find_layout"]

CLIENT_ID = "headrace-cli"
# Everything is near: a cluster that does not answer in this time is not there.
API_TIMEOUT_MS = 10_000


@dataclass(frozen=True, kw_only=True)
class Target:
    """The cluster that a command talks to."""

    bootstrap_servers: str
    layout: ClusterLayout | None = None
    state: ClusterState | None = None


def find_layout(
    data_directory: Path, cluster: str | None, *, even_stopped: bool = False
) -> ClusterLayout:
    """Find the files of a local cluster that may not be named: the only one that is running.

    Where none runs, and with `even_stopped` in any case, the only one that has files is meant.
    """
    from headrace_operator.local.layout import ClusterLayout, clusters_in

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
    """Find the brokers that a command means: given ones, else the running local cluster's."""
    from headrace_operator.local.state import load_state

    if bootstrap_servers:
        return Target(bootstrap_servers=bootstrap_servers)
    layout = find_layout(data_directory, cluster)
    state = load_state(layout.state_file)
    if state is None or not state.is_running:
        raise CommandError(
            f"cluster {layout.root.name} is not running: start it with `headrace up PATH`"
        )
    return Target(bootstrap_servers=state.bootstrap_servers, layout=layout, state=state)


@contextlib.contextmanager
def admin_client(bootstrap_servers: str) -> Iterator[Any]:
    """Open an admin client; failures of the brokers become `CommandError`."""
    quiet_kafka_logs()
    with explain_kafka_errors(bootstrap_servers):
        from kafka import KafkaAdminClient

        admin = KafkaAdminClient(
            bootstrap_servers=bootstrap_servers.split(","),
            client_id=CLIENT_ID,
            bootstrap_timeout_ms=API_TIMEOUT_MS,
            request_timeout_ms=API_TIMEOUT_MS,
        )
        try:
            yield admin
        finally:
            admin.close()


def ask(bootstrap_servers: str, question: Callable[[Any], _T]) -> _T:
    """Return what `question` makes of the answers that an admin client gets.

    A client knows the brokers that there were when it was made. Where one joined or went since and
    is asked itself, for its own settings, say, the question is put once more, by a new client.
    """
    from kafka.errors import KafkaConnectionError, UnknownBrokerIdError

    with (
        admin_client(bootstrap_servers) as admin,
        contextlib.suppress(UnknownBrokerIdError, KafkaConnectionError),
    ):
        return question(admin)
    with admin_client(bootstrap_servers) as admin:
        return question(admin)


@contextlib.contextmanager
def explain_kafka_errors(bootstrap_servers: str) -> Iterator[None]:
    """Turn kafka-python's errors into one line that names the brokers."""
    from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError

    try:
        yield
    except (KafkaConnectionError, KafkaTimeoutError) as error:
        raise CommandError(f"no answer from {bootstrap_servers}: {error}") from error
    except KafkaError as error:
        raise CommandError(f"{type(error).__name__}: {error}") from error


def quiet_kafka_logs() -> None:
    """Keep the client's own warnings (retries, reconnects) out of the user's way."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
