"""Reads YAML manifests and records the position of each part.

Positions are 1-based lines, by path of keys and indices, so that a problem found later in a schema
or a plan can be reported with `file:line`. Duplicate keys are errors: YAML forbids them, but PyYAML
silently keeps the last one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KUSTOMIZATION_NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
MANIFEST_SUFFIXES = (".yaml", ".yml", ".json")
STDIN = "-"

KeyPath: TypeAlias = tuple[str | int, ...]


class ManifestError(Exception):
    """A manifest that cannot be read; the message begins with `file:line:`."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """One YAML document of a file."""

    file: Path
    line: int
    value: dict[str, Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def line_of(self, path: KeyPath) -> int:
        """Return the line of the deepest part of `path` in the manifest."""
        while path:
            if path in self.lines:
                return self.lines[path]
            path = path[:-1]
        return self.line

    def where(self, path: KeyPath = ()) -> str:
        """Return `file:line`, for messages."""
        return f"{self.file}:{self.line_of(path)}"


def read_documents(path: Path) -> list[Document]:
    """Read a file, `-` (standard input), a folder (its manifests by name, or its kustomization).

    A List, as `get -o yaml` prints it, is read as its items. Raises ManifestError.
    """
    if path.is_dir():
        return list(_read_folder(path, seen=frozenset()))
    return list(_read_file(path))


def _read_folder(folder: Path, *, seen: frozenset[Path]) -> Iterator[Document]:
    resolved = folder.resolve()
    if resolved in seen:
        raise ManifestError(f"{folder}:1: the kustomization includes itself")
    for name in KUSTOMIZATION_NAMES:
        if (folder / name).is_file():
            yield from _read_kustomization(folder / name, seen=seen | {resolved})
            return
    files = sorted(file for file in folder.iterdir() if file.suffix in MANIFEST_SUFFIXES)
    if not files:
        raise ManifestError(f"{folder}:1: no manifests (*.yaml) in this folder")
    for file in files:
        yield from _read_file(file)


def _read_kustomization(file: Path, *, seen: frozenset[Path]) -> Iterator[Document]:
    """Follow `resources:` (and set `namespace:`); other kustomize features are refused by name."""
    supported = {"apiVersion", "kind", "resources", "namespace", "metadata"}
    for kustomization in _read_file(file):
        for key in kustomization.value:
            if key not in supported:
                raise ManifestError(
                    f"{kustomization.where((key,))}: {key}: only resources and namespace are"
                    " resolved without kustomize; render with `kubectl kustomize` first"
                )
        namespace = kustomization.value.get("namespace")
        for index, entry in enumerate(kustomization.value.get("resources") or ()):
            target = file.parent / str(entry)
            if not target.exists():
                where = kustomization.where(("resources", index))
                raise ManifestError(f"{where}: resources: {entry} does not exist")
            documents = _read_folder(target, seen=seen) if target.is_dir() else _read_file(target)
            for document in documents:
                if namespace is not None and isinstance(document.value.get("metadata"), dict):
                    document.value["metadata"]["namespace"] = namespace
                yield document


def _read_file(file: Path) -> Iterator[Document]:
    try:
        text = sys.stdin.read() if str(file) == STDIN else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{file}:1: cannot be read: {error}") from error
    loader = yaml.SafeLoader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is None:
                break
            lines: dict[KeyPath, int] = {}
            _record_lines(node, (), lines, file)
            value = loader.construct_document(node)
            if value is None:
                continue
            line = node.start_mark.line + 1
            if not isinstance(value, dict):
                raise ManifestError(f"{file}:{line}: a manifest is a mapping, not {value!r}")
            document = Document(file=file, line=line, value=_plain(value), lines=lines)
            if (value.get("apiVersion"), value.get("kind")) == ("v1", "List"):
                yield from _items(document)
            else:
                yield document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ManifestError(f"{file}:{line}: not YAML: {error.problem}") from error
    finally:
        loader.dispose()


def _items(document: Document) -> Iterator[Document]:
    """Yield the documents of a List."""
    for index, item in enumerate(document.value.get("items") or ()):
        place = ("items", index)
        if not isinstance(item, dict):
            raise ManifestError(f"{document.where(place)}: a manifest is a mapping, not {item!r}")
        lines = {path[2:]: line for path, line in document.lines.items() if path[:2] == place}
        yield Document(file=document.file, line=document.line_of(place), value=item, lines=lines)


def _record_lines(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], file: Path) -> None:
    # A merge key's or an alias's node is visited again under its second path: both have a line.
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            key = key_node.value
            line = key_node.start_mark.line + 1
            if (*path, key) in lines:
                where = ".".join(map(str, (*path, key)))
                raise ManifestError(f"{file}:{line}: {where}: the key stands here twice")
            lines[(*path, key)] = line
            _record_lines(value_node, (*path, key), lines, file)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            _record_lines(item, (*path, index), lines, file)


def _plain(value: Any) -> Any:
    """Convert to JSON's types: YAML reads unquoted moments as datetimes; keys may be numbers."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if hasattr(value, "isoformat"):
        return value.isoformat().replace("+00:00", "Z")
    return value
