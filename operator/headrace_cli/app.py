"""The command tree. Commands live in `commands/`, one module each; this names them."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from headrace_cli.commands.apply import apply
from headrace_cli.commands.broker import run_broker
from headrace_cli.commands.cluster import cluster_app
from headrace_cli.commands.consume import consume
from headrace_cli.commands.cpu_load import produce_cpu_load
from headrace_cli.commands.delete import delete
from headrace_cli.commands.describe import describe
from headrace_cli.commands.diff import diff
from headrace_cli.commands.down import down
from headrace_cli.commands.get import get
from headrace_cli.commands.group_offsets import add_offset_commands
from headrace_cli.commands.groups import groups_app
from headrace_cli.commands.jobs import jobs_app
from headrace_cli.commands.operator import operator_app
from headrace_cli.commands.produce import produce
from headrace_cli.commands.recover_quorum import recover_quorum
from headrace_cli.commands.retail import produce_retail
from headrace_cli.commands.support_bundle import support_bundle
from headrace_cli.commands.transactions import transactions_app
from headrace_cli.commands.up import up
from headrace_cli.commands.version import version
from headrace_cli.errors import EXIT_SUCCESS, CommandError
from headrace_cli.kubernetes.choice import Choice, choose
from headrace_cli.plugin import is_plugin
from headrace_cli.profiles import read_profile, use

__all__ = ["app", "run"]

app = typer.Typer(
    name="headrace",
    help=(
        "A log that speaks Kafka's protocol, run from manifests, that feeds Spark.\n\n"
        "Exit status: 0 done, 1 failed, 2 bad input (arguments, manifests)."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)


@app.callback()
def where(
    call: typer.Context,
    *,
    context: Annotated[
        str | None,
        typer.Option(help="A cluster in Kubernetes: a context of the kubeconfig."),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", help="Where in Kubernetes; alone: of the current context."
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            envvar="HEADRACE_PROFILE",
            help="A name of ~/.config/headrace/profiles.yaml: brokers, or a Cluster in Kubernetes.",
        ),
    ] = None,
) -> None:
    """Record which cluster the command is about: on this machine, or in Kubernetes."""
    found = None
    # An explicit option applies to this one command, whatever the environment has.
    if profile is not None and context is None and namespace is None:
        found = read_profile(profile)
        context, namespace = found.context, found.namespace
    use(found)
    is_elsewhere = found is not None and found.bootstrap_servers is not None
    in_kubernetes = context is not None or namespace is not None
    in_kubernetes = in_kubernetes or (is_plugin() and not is_elsewhere)
    choose(
        Choice(context=context, namespace=namespace, at_end=call.call_on_close)
        if in_kubernetes
        else None
    )


@app.command(name="broker")
def broker(
    file: Annotated[str, typer.Argument(help="Settings, by Kafka's own names.")],
) -> None:
    """Run one broker in this process."""
    raise typer.Exit(run_broker(file))


for function, name in (
    (up, "up"),
    (apply, "apply"),
    (diff, "diff"),
    (delete, "delete"),
    (get, "get"),
    (describe, "describe"),
    (produce, "produce"),
    (consume, "consume"),
    (produce_cpu_load, "produce-cpu-load"),
    (produce_retail, "produce-retail"),
    (down, "down"),
    (recover_quorum, "recover-quorum"),
    (support_bundle, "support-bundle"),
    (version, "version"),
):
    app.command(name=name)(function)
add_offset_commands(groups_app)
app.add_typer(groups_app, name="groups")
app.add_typer(transactions_app, name="transactions")
app.add_typer(jobs_app, name="jobs")
app.add_typer(cluster_app, name="cluster")
app.add_typer(operator_app, name="operator")


def run() -> int:
    """Run the given command; returns the exit status, or exits with it."""
    try:
        app()
    except SystemExit as error:
        # click exits with 1 where the reader (head, less) has what it wanted and closed the pipe.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        # Buffered output has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except CommandError as error:
        for line in str(error).splitlines():
            sys.stderr.write(line + "\n" if line.startswith(" ") else f"error: {line}\n")
        return error.exit_status
    return EXIT_SUCCESS
