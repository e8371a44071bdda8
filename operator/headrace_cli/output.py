"""Printing of objects in kubectl's formats."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from headrace_cli.options import OutputFormat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Item", "print_items", "print_table"]


@dataclass(frozen=True, kw_only=True)
class Item:
    """One object: how it is called, what tables show of it, and all of it."""

    kind: str
    name: str
    columns: Mapping[str, str]
    wide: Mapping[str, str] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict)


def print_items(items: Sequence[Item], output: OutputFormat, *, is_single: bool) -> None:
    """Print objects; `is_single`: one was asked for by name, so it is not wrapped into a list."""
    match output:
        case OutputFormat.NAME:
            for item in items:
                typer.echo(f"{item.kind.lower()}/{item.name}")
        case OutputFormat.JSON:
            typer.echo(json.dumps(_documents(items, is_single=is_single), indent=2))
        case OutputFormat.YAML:
            import yaml

            text = yaml.safe_dump(_documents(items, is_single=is_single), sort_keys=False)
            typer.echo(text, nl=False)
        case _:
            rows = [
                {"NAME": item.name}
                | dict(item.columns)
                | (dict(item.wide) if output is OutputFormat.WIDE else {})
                for item in items
            ]
            if not rows and sys.stderr.isatty():
                sys.stderr.write("nothing found\n")
            print_table(rows)


def print_table(rows: Sequence[Mapping[str, str]], *, indent: str = "") -> None:
    """Print rows under their column names, as kubectl does: no lines, three spaces between."""
    if not rows:
        return
    names = list(rows[0])
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    for row in [dict(zip(names, names, strict=True)), *rows]:
        line = "   ".join(row[name].ljust(widths[name]) for name in names)
        typer.echo(f"{indent}{line.rstrip()}")


def _documents(items: Sequence[Item], *, is_single: bool) -> Any:
    if is_single:
        return dict(items[0].document)
    return {"apiVersion": "v1", "kind": "List", "items": [dict(item.document) for item in items]}
