"""`headrace version`."""

from __future__ import annotations

import platform
from importlib import metadata

import typer

from headrace_cli.options import Output, OutputFormat

__all__ = ["version"]


def version(*, output: Output = OutputFormat.TABLE) -> None:
    """Print the versions of Headrace and of what it runs on."""
    found = {"headrace": metadata.version("headrace"), "python": platform.python_version()}
    for package in ("kafka-python", "pyspark"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    if output in {OutputFormat.JSON, OutputFormat.YAML}:
        from headrace_cli.output import print_document

        print_document(found, output)
        return
    for name, text in found.items():
        typer.echo(f"{name} {text}")
