"""Turns a Deployment or a SparkApplication into the command that runs it on this machine. Pure.

The manifests are those for Kubernetes. Two things differ here: `headrace` is this installation, and
the cluster's bootstrap Service (`<cluster>-bootstrap:<port>`) is replaced by the local brokers.
`headrace_jobs.launch` handles the differences for Spark; it gets the manifest unchanged.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace_operator.local.processes import RestartPolicy
from headrace_operator.resources import Deployment, SparkApplication

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from headrace_operator.resources import EnvironmentVariable

__all__ = ["LocalCommand", "NotLocalError", "Surroundings", "deployment_command", "spark_command"]

HEADRACE_COMMAND = (sys.executable, "-m", "headrace_cli")
SPARK_COMMAND = (sys.executable, "-m", "headrace_jobs.launch")
# Kubernetes' syntax in command and args: $(NAME), and $$(NAME) for the literal text.
VARIABLE = re.compile(r"\$(\$?)\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


class NotLocalError(Exception):
    """This workload needs something that only Kubernetes has; the message names it."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The environment in which a workload runs."""

    cluster: str
    bootstrap_servers: str
    #: Contains a folder for each job's checkpoint and scratch files; kept between runs.
    directory: Path
    metrics_port: int


@dataclass(frozen=True, kw_only=True)
class LocalCommand:
    """A command with its environment."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    restart: RestartPolicy = RestartPolicy.ALWAYS


def deployment_command(
    deployment: Deployment,
    surroundings: Surroundings,
    *,
    extra: Mapping[str, Sequence[str]],
) -> LocalCommand:
    """Build the command of a Deployment; without images only those that run `headrace` work.

    `extra` has more arguments for each of headrace's subcommands.
    """
    containers = deployment.spec.template.spec.containers
    if len(containers) != 1 or not containers[0].command or containers[0].command[0] != "headrace":
        raise NotLocalError("only a single container whose command is headrace runs locally")
    container = containers[0]
    environment = local_environment(container.env, surroundings)
    texts = [
        local_addresses(text, surroundings) for text in (*container.command[1:], *container.args)
    ]
    arguments = expand(texts, environment)
    more = extra.get(arguments[0], ()) if arguments else ()
    return LocalCommand(command=(*HEADRACE_COMMAND, *arguments, *more), environment=environment)


def local_environment(
    variables: Sequence[EnvironmentVariable], surroundings: Surroundings
) -> dict[str, str]:
    """Environment of a container, with the bootstrap Service replaced by the local brokers."""
    return {variable.name: local_addresses(variable.value, surroundings) for variable in variables}


def local_addresses(text: str, surroundings: Surroundings) -> str:
    """Replace the bootstrap Service's address by the local brokers' addresses."""
    service = rf"(?<![\w.-]){re.escape(surroundings.cluster)}-bootstrap(\.[a-z0-9.-]+)?:\d+"
    return re.sub(service, surroundings.bootstrap_servers, text)


def expand(texts: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Replace `$(NAME)`; an unknown name stays as it is, as in Kubernetes."""

    def replacement(found: re.Match[str]) -> str:
        escaped, name = found.groups()
        return found[0][1:] if escaped else environment.get(name, found[0])

    return [VARIABLE.sub(replacement, text) for text in texts]


def spark_command(
    application: SparkApplication, manifest: Path, surroundings: Surroundings
) -> LocalCommand:
    """Build the command of the SparkApplication in this manifest file."""
    arguments = ["--name", application.metadata.name]
    arguments += ["--bootstrap-servers", surroundings.bootstrap_servers]
    arguments += ["--data-dir", str(surroundings.directory)]
    arguments += ["--metrics-port", str(surroundings.metrics_port)]
    return LocalCommand(
        command=(*SPARK_COMMAND, str(manifest), *arguments),
        restart=RestartPolicy(application.spec.restart_policy.type),
    )
