"""Completion of names from the running cluster. Never fails: no answer is no suggestion."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


__all__ = ["complete_cluster", "complete_group", "complete_topic"]


def complete_cluster(context: typer.Context, incomplete: str) -> list[str]:
    """Suggest clusters of the data directory."""
    from headrace_operator.local.layout import clusters_in

    data_directory = Path(context.params.get("data_dir") or ".headrace")
    return [name for name in clusters_in(data_directory) if name.startswith(incomplete)]


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Suggest topics."""
    return _complete(
        context,
        incomplete,
        lambda admin: (name for name in admin.list_topics() if not name.startswith("__")),
    )


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """Suggest consumer groups."""
    return _complete(
        context, incomplete, lambda admin: [group["group_id"] for group in admin.list_groups()]
    )


def _complete(
    context: typer.Context, incomplete: str, names: Callable[[Any], Iterable[str]]
) -> list[str]:
    from headrace_cli.clients import admin_client, find_cluster

    parameters = context.params
    try:
        target = find_cluster(
            Path(parameters.get("data_dir") or ".headrace"),
            parameters.get("cluster"),
            parameters.get("bootstrap_server"),
        )
        with admin_client(target) as admin:
            return sorted(name for name in names(admin) if name.startswith(incomplete))
    except Exception:  # noqa: BLE001 - a traceback in the middle of a prompt helps nobody
        return []
