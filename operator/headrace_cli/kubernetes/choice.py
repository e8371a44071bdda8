"""Whether a command is about Kubernetes, and where: `headrace --context CTX -n NS …`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace_cli.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_operator.kubernetes.api.connection import Connection

__all__ = ["Choice", "choose", "chosen", "open_connection", "refuse_kubernetes"]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A context of the kubeconfig, None: the current one, and a namespace, None: the context's."""

    context: str | None
    namespace: str | None
    #: Calls a function when the command ends.
    at_end: Callable[[Callable[[], None]], object]

    @property
    def title(self) -> str:
        """How to refer to it in a message."""
        return f"context {self.context}" if self.context else "the current context"


_chosen: list[Choice] = []


def choose(choice: Choice | None) -> None:
    """Record what this process's command is about; None: clusters on this machine."""
    _chosen[:] = [] if choice is None else [choice]


def chosen() -> Choice | None:
    """Return the choice on the command line; None: a cluster on this machine."""
    return _chosen[0] if _chosen else None


def open_connection(choice: Choice) -> tuple[Connection, str]:
    """Return the API server and the namespace to use. Raises BadInputError."""
    from headrace_operator.kubernetes.api.connection import ConnectionSourceError, find_connection

    try:
        connection = find_connection(context=choice.context)
        # A failed login is reported now, and not in the middle of something.
        connection.read_token()
    except ConnectionSourceError as error:
        raise BadInputError(str(error)) from error
    # Of `-n=streams`, which kubectl takes, our options leave the sign.
    named = (choice.namespace or "").removeprefix("=")
    return connection, named or connection.default_namespace


def refuse_kubernetes(instead: str = "kubectl") -> None:
    """Raise BadInputError if a command that only works on this machine got a context."""
    if chosen() is not None:
        raise BadInputError(
            "this command is about clusters of this machine, and takes no --context or"
            f" --namespace: use {instead} for those in Kubernetes"
        )
