"""`headrace down`: stop a cluster, and with --delete-data remove its data."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace_cli.errors import CommandError
from headrace_cli.options import ClusterName, DataDirectory

if TYPE_CHECKING:
    from headrace_operator.local.layout import ClusterLayout
    from headrace_operator.local.state import ClusterState

__all__ = ["down"]

# A job finishes its batch (30 s), brokers flush; anything longer means that something hangs.
STOP_TIMEOUT_SECONDS = 60.0


def down(
    *,
    delete_data: Annotated[
        bool, typer.Option("--delete-data", help="Remove topics, offsets and checkpoints too.")
    ] = False,
    even_protected: Annotated[
        bool,
        typer.Option("--even-protected", help="Delete what deletionPolicy: Protect keeps, too."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Stop a cluster, wherever its `up` runs, and whatever a killed `up` left behind."""
    from headrace_cli.clients import find_layout
    from headrace_operator.local.state import load_state

    # A permanent deletion must never rest on a guess.
    layout = find_layout(data_dir, cluster, even_stopped=delete_data)
    if delete_data and not even_protected:
        _refuse_protected(layout)
    if delete_data and not yes:
        _confirm(layout)
    state = load_state(layout.state_file)
    if state is not None:
        _stop(state)
    if delete_data:
        _delete(layout)


def _refuse_protected(layout: ClusterLayout) -> None:
    from headrace_cli.change import protections
    from headrace_operator.local.desired import DesiredStore

    protected = protections(DesiredStore(layout).load())
    if protected:
        hint = "nothing was stopped or deleted; --even-protected deletes all the same"
        raise CommandError("\n".join([*protected, hint]))


def _confirm(layout: ClusterLayout) -> None:
    if not sys.stdin.isatty():
        raise CommandError("--delete-data asks before it deletes: add --yes where nobody answers")
    typer.confirm(f"Delete {layout.root} with all topics, offsets and checkpoints?", abort=True)


def _stop(state: ClusterState) -> None:
    import psutil

    from headrace_operator.local.processes import end_leftovers

    running_up = state.up.find() if state.up else None
    if running_up is not None:
        running_up.send_signal(signal.SIGTERM)
        try:
            running_up.wait(STOP_TIMEOUT_SECONDS)
        except psutil.TimeoutExpired:
            raise CommandError(
                f"`headrace up` (pid {running_up.pid}) did not end in "
                f"{STOP_TIMEOUT_SECONDS:.0f} s; see its terminal"
            ) from None
    left = end_leftovers(state.processes)
    if running_up is not None or left:
        typer.echo(f"cluster {state.cluster} stopped")
    else:
        typer.echo(f"cluster {state.cluster} was not running")


def _delete(layout: ClusterLayout) -> None:
    from headrace_operator.local.state import LockHeldError, exclusive_lock

    try:
        with exclusive_lock(layout.up_lock, wait=False):
            shutil.rmtree(layout.root)
    except LockHeldError:
        raise CommandError(f"{layout.root} is in use by a `headrace up` that just began") from None
    typer.echo(f"{layout.root} deleted")
