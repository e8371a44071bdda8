"""`headrace recover-quorum FILE`: the metadata quorum goes on with one voter that is left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace_cli.errors import BadInputError

__all__ = ["recover_quorum"]


def recover_quorum(
    file: Annotated[str, typer.Argument(help="Settings of the broker whose disk is left.")],
    *,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it; without, only say what would be done.")
    ] = False,
) -> None:
    """Let a broker be the only voter of its cluster's metadata quorum when it starts next.

    For the loss of most voters' disks, and for nothing else. What only the lost ones had of the
    metadata is lost; none of them may come back with its old disk.
    """
    from headrace_broker.server.config.broker_config import ConfigError, read_config
    from headrace_broker.server.quorum.recovery import request_recovery

    if not Path(file).is_file():
        raise BadInputError(f"{file}: no such file")
    try:
        config = read_config(Path(file))
    except ConfigError as error:
        raise BadInputError("; ".join(error.problems)) from error
    directory = config.metadata_log_directory
    if not config.is_controller:
        raise BadInputError(f"node {config.node_id} is no controller: recover from one that is")
    if not (directory / "__cluster_metadata-0").is_dir():
        raise BadInputError(f"{directory} has no metadata log: recover from a disk that is left")
    typer.echo(
        f"node {config.node_id} becomes the only voter with what {directory} has; what only other"
        " voters had is lost, and none of them may come back with its old disk"
    )
    if execute:
        request_recovery(directory, config.node_id)
        typer.echo("asked for: restart the broker now, and add voters when others have joined")
    else:
        typer.echo("nothing was done: add --execute, then restart the broker")
