"""`headrace recover-quorum [FILE]`: the metadata quorum goes on with one voter that is left."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from headrace_cli.errors import BadInputError

__all__ = ["recover_quorum"]

PROCESSES = Path("/proc")
_PROGRAMS = frozenset({"headrace", "headrace_cli"})


def recover_quorum(
    file: Annotated[
        str | None,
        typer.Argument(
            help="Settings of the broker whose disk is left. Default: those that the broker which"
            " runs here was started with, as in its pod."
        ),
    ] = None,
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

    path = _settings_of_running_broker() if file is None else Path(file)
    if not path.is_file():
        raise BadInputError(f"{path}: no such file")
    try:
        config = read_config(path)
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


def _settings_of_running_broker() -> Path:
    """Return the file that the broker of this machine or pod was started with.

    A pod has files of other revisions beside it. Raises BadInputError unless there is just one.
    """
    found: set[Path] = set()
    for process in PROCESSES.glob("[0-9]*"):
        # Processes end meanwhile, or are somebody else's.
        with contextlib.suppress(OSError):
            arguments = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            for program, command, file in zip(
                arguments, arguments[1:], arguments[2:], strict=False
            ):
                if Path(program).name in _PROGRAMS and command == "broker" and file:
                    found.add((process / "cwd").readlink() / file)
    if len(found) != 1:
        which = ", ".join(map(str, sorted(found))) or "none"
        raise BadInputError(
            f"of the brokers that run here ({which}) it is not clear which one is meant: name the"
            " FILE of its settings"
        )
    return found.pop()
