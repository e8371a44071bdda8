"""The problems that validation finds: where, what is wrong, what to do."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from headrace_operator.resources.documents import KeyPath


@dataclass(frozen=True, kw_only=True)
class SchemaProblem:
    """A value that its schema does not allow; `reason` includes what to do."""

    path: KeyPath
    reason: str


@dataclass(frozen=True, kw_only=True)
class ManifestProblem:
    """The same, with its position."""

    file: Path
    line: int
    resource: str
    path: str
    reason: str

    def __str__(self) -> str:
        """Return it in one line: `file:line: kind/name: path: reason`."""
        parts = (f"{self.file}:{self.line}", self.resource, self.path, self.reason)
        return ": ".join(part for part in parts if part)


def path_text(path: KeyPath) -> str:
    """Write a path as Kubernetes does: `spec.pools[0].name`, `spec.config[retention.ms]`."""
    text = ""
    for part in path:
        if isinstance(part, int) or "." in part:
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `did you mean X?` or the empty string."""
    candidates = sorted(known)
    # Ignoring case, a match of 0.6 (difflib's own cutoff) covers typical typos.
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[matches[0]]}?" if matches else ""
