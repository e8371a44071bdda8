"""Printing of objects in kubectl's formats.

What a command prints as fields and tables becomes one document inside of `as_document`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from headrace_cli.options import OutputFormat

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "Item",
    "as_document",
    "print_document",
    "print_fields",
    "print_items",
    "print_remark",
    "print_table",
    "print_title",
    "row_of",
]

#: The document being collected, and the name of the next table; empty: it is printed.
_collected: list[dict[str, Any]] = []
_titles: list[str] = []
_NAMES = frozenset({"NAME", "TOPIC", "MEMBER", "CLIENT", "VALUE"})


@dataclass(frozen=True, kw_only=True)
class Item:
    """One object: its name, its columns in tables, and its whole document."""

    kind: str
    name: str
    columns: Mapping[str, str]
    wide: Mapping[str, str] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict)


def print_items(items: Sequence[Item], output: OutputFormat, *, is_single: bool) -> None:
    """Print objects; `is_single`: one was requested by name, so it is not wrapped into a list."""
    match output:
        case OutputFormat.NAME:
            for item in items:
                typer.echo(f"{item.kind.lower()}/{item.name}")
        case OutputFormat.JSON | OutputFormat.YAML:
            print_document(_documents(items, is_single=is_single), output)
        case _:
            rows = [row_of(item, output) for item in items]
            if not rows and sys.stderr.isatty():
                sys.stderr.write("nothing found\n")
            print_table(rows)


def row_of(item: Item, output: OutputFormat) -> dict[str, str]:
    """Return a table's row."""
    wide = item.wide if output is OutputFormat.WIDE else {}
    return {"NAME": item.name} | dict(item.columns) | dict(wide)


def print_document(document: Any, output: OutputFormat) -> None:
    """Print it as YAML, or else as JSON."""
    if output is OutputFormat.YAML:
        import yaml

        typer.echo(yaml.safe_dump(document, sort_keys=False), nl=False)
    else:
        typer.echo(json.dumps(document, indent=2))


@contextlib.contextmanager
def as_document(output: OutputFormat) -> Iterator[None]:
    """Collect everything printed inside into one document, if JSON or YAML is requested."""
    if output not in {OutputFormat.JSON, OutputFormat.YAML}:
        yield
        return
    _collected.append({})
    try:
        yield
        print_document(_collected[0], output)
    finally:
        _collected.clear()
        _titles.clear()


def print_fields(fields: Mapping[str, str]) -> None:
    """Print names and values, one per line. A last one without a value is a table's title."""
    if _collected:
        _collected[0] |= {_key(name): text for name, text in fields.items() if text}
        _titles[:] = [name for name, text in fields.items() if not text]
        return
    width = max(map(len, fields)) + 2
    for name, text in fields.items():
        typer.echo(f"{name + ':':<{width}} {text}".rstrip())


def print_title(title: str, *, is_shown: bool = True) -> None:
    """Print the title of the next table; documents always have one."""
    if _collected:
        _titles[:] = [title]
    elif is_shown:
        typer.echo(f"{title}:")


def print_remark(text: str) -> None:
    """Print something only for people, not for documents."""
    if not _collected:
        typer.echo(text)


def _value(column: str, text: str) -> str | int:
    """Return the value of a cell; a name of digits only stays a text."""
    return int(text) if text.isdigit() and column not in _NAMES else text


def _key(name: str) -> str:
    """Convert a label or a column to a JSON key: `IN-SYNC` becomes inSync."""
    first, *rest = name.replace("-", " ").split()
    return "".join([first.lower(), *(word.capitalize() for word in rest)])


def print_table(
    rows: Sequence[Mapping[str, str]], *, indent: str = "", widths: dict[str, int] | None = None
) -> None:
    """Print rows under their column names, as kubectl does: no lines, three spaces between.

    Empty `widths` are filled in; the next rows of a continued table have no header.
    """
    if _collected:
        name = _titles.pop() if _titles else "rows"
        _collected[0][_key(name)] = [
            {_key(column): _value(column, text) for column, text in row.items()} for row in rows
        ]
        return
    if not rows:
        return
    names = list(rows[0])
    heads = [] if widths else [dict(zip(names, names, strict=True))]
    widths = {} if widths is None else widths
    if not widths:
        widths |= {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    for row in [*heads, *rows]:
        line = "   ".join(row[name].ljust(widths.get(name, 0)) for name in names)
        typer.echo(f"{indent}{line.rstrip()}")


def _documents(items: Sequence[Item], *, is_single: bool) -> Any:
    if is_single:
        return dict(items[0].document)
    return {"apiVersion": "v1", "kind": "List", "items": [dict(item.document) for item in items]}
