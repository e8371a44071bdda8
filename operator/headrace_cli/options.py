"""Options that several commands share, declared once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace_cli.completion import complete_cluster, complete_group, complete_topic

__all__ = [
    "BootstrapServers",
    "ClusterName",
    "DataDirectory",
    "GroupName",
    "Http",
    "ManifestArgument",
    "ManifestOption",
    "Output",
    "OutputFormat",
    "TopicName",
]


class OutputFormat(StrEnum):
    """How objects are printed: kubectl's formats."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


DataDirectory = Annotated[
    Path,
    typer.Option(
        "--data-dir",
        envvar="HEADRACE_DATA_DIR",
        help="Where `headrace up` keeps its clusters.",
        file_okay=False,
    ),
]
ClusterName = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Which cluster of the data directory; needed only when there are several.",
        autocompletion=complete_cluster,
    ),
]
BootstrapServers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "--bootstrap-servers",
        envvar="HEADRACE_BOOTSTRAP_SERVER",
        help="Brokers to talk to (host:port,…) instead of the local cluster's.",
    ),
]
ManifestArgument = Annotated[
    Path | None, typer.Argument(help="Manifest, folder or kustomization; - for stdin.")
]
ManifestOption = Annotated[
    Path | None, typer.Option("--filename", "-f", help="The same, as kubectl takes it.")
]
Http = Annotated[
    list[str] | None,
    typer.Option("--http", help="A broker's HTTP address, where no local cluster knows it."),
]
Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="Format of what is printed.")]
TopicName = Annotated[str, typer.Argument(help="Topic.", autocompletion=complete_topic)]
GroupName = Annotated[str, typer.Argument(help="Consumer group.", autocompletion=complete_group)]
