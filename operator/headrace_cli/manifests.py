"""Manifests given to a command: read, validated, and reported on with file and line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_cli.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headrace_operator.resources import Resource

__all__ = ["load_valid_manifests", "named_path"]


def named_path(file: Path | None, filename: Path | None) -> Path:
    """Return the manifests' path: an argument, or kubectl's option. Raises BadInputError."""
    path = file if filename is None else filename
    if path is None or (file is not None and filename is not None):
        raise BadInputError("say which manifests, once: a file, a folder, or - for standard input")
    return path


def load_valid_manifests(path: Path, *, old: Sequence[dict[str, Any]] = ()) -> tuple[Resource, ...]:
    """Read manifests; `BadInputError` has one line for each problem.

    `old` are the present documents, for rules about changes (partitions never shrink).
    """
    from headrace_operator import validation
    from headrace_operator.resources import ManifestError, parse_resource
    from headrace_operator.resources.documents import STDIN

    if str(path) != STDIN and not path.exists():
        raise BadInputError(f"{path}: no such file or folder")
    try:
        return validation.load_valid_manifests(
            path, old={parse_resource(document).key: document for document in old}
        )
    except ManifestError as error:
        raise BadInputError(str(error)) from error
