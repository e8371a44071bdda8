"""`headrace operator run`: the operator, in a pod or anywhere that reaches the API server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from headrace_cli.errors import CommandError

__all__ = ["operator_app"]

operator_app = typer.Typer(
    name="operator", help="Run the Kubernetes operator.", no_args_is_help=True
)


@operator_app.command(name="run")
def run(  # noqa: PLR0913 - the options of a command line
    namespace: Annotated[
        list[str] | None,
        typer.Option(help="Watch this namespace only; may be given several times. Default: all."),
    ] = None,
    *,
    spark_runner: Annotated[
        bool, typer.Option("--spark-runner", help="Run SparkApplications too.")
    ] = False,
    listen: Annotated[
        str, typer.Option(help="Where /healthz, /readyz and /metrics are served.")
    ] = "0.0.0.0:8080",
    lease_namespace: Annotated[
        str | None, typer.Option(help="Where the lease is. Default: the pod's own namespace.")
    ] = None,
    reach: Annotated[
        list[str] | None,
        typer.Option(
            help="NAMESPACE/CLUSTER=HOST:PORT: brokers that run elsewhere; they are only reached."
        ),
    ] = None,
    broker_image: Annotated[
        str | None,
        typer.Option(
            help="What brokers run whose Clusters name no image. Default: what the operator runs.",
            envvar="HEADRACE_BROKER_IMAGE",
        ),
    ] = None,
    probe_seconds: Annotated[
        float, typer.Option(min=0.1, help="How often watches are compared with lists.")
    ] = 30.0,
    kubeconfig: Annotated[Path | None, typer.Option(help="Default: $KUBECONFIG.")] = None,
) -> None:
    """Watch Clusters, Topics and ConsumerGroups, and bring brokers to what they say."""
    from headrace_operator.kubernetes.api.connection import ConnectionSourceError
    from headrace_operator.kubernetes.logs import configure_logs
    from headrace_operator.kubernetes.main import OperatorConfig, run_operator

    host, _, port = listen.rpartition(":")
    config = OperatorConfig(
        namespaces=tuple(namespace or ()),
        is_spark_runner=spark_runner,
        host=host,
        port=int(port),
        lease_namespace=lease_namespace,
        probe_seconds=probe_seconds,
        kubeconfig=kubeconfig,
        broker_image=broker_image,
        reached=dict(map(parse_reach, reach or ())),
    )
    configure_logs()
    try:
        asyncio.run(run_operator(config))
    except ConnectionSourceError as error:
        raise CommandError(str(error)) from error


def parse_reach(text: str) -> tuple[tuple[str, str], str]:
    """Read `NAMESPACE/CLUSTER=HOST:PORT`. Raises CommandError."""
    where, equals, address = text.partition("=")
    namespace, slash, name = where.partition("/")
    if not (equals and slash and namespace and name and address):
        raise CommandError(f"--reach {text}: write NAMESPACE/CLUSTER=HOST:PORT")
    return (namespace, name), address
