"""`headrace version`."""

from __future__ import annotations

import platform
from importlib import metadata

import typer

__all__ = ["version"]


def version() -> None:
    """Print the versions of Headrace and of what it runs on."""
    typer.echo(f"headrace {metadata.version('headrace')}")
    typer.echo(f"python {platform.python_version()}")
    for package in ("kafka-python", "pyspark"):
        try:
            typer.echo(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            typer.echo(f"{package} not installed")
