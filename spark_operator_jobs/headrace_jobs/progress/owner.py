"""Whose checkpoint a folder is, and of which topics, in `<checkpoint>/headrace.json`.

Spark's own files do not say it. Another job that was given the folder would go on behind records
that it never read, and so would the same job behind the first records of a topic that was deleted
and made again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace_jobs.durable import replace_file
from headrace_jobs.progress.checkpoint import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["claim_checkpoint", "known_topics", "recreated_topics", "remember_topics"]

_FILE = "headrace.json"


def claim_checkpoint(folder: Path, job: str, generation: int, *, adopt: bool) -> None:
    """Note that the folder is this job's, unless it is another one's. `adopt` takes it over.

    Raises `CheckpointError`, and OSError.
    """
    noted = _read(folder)
    ours = {"job": job, "generation": generation}
    theirs = {name: noted.get(name) for name in ours}
    if theirs == ours:
        return
    if noted.get("job") is not None and not adopt:
        raise CheckpointError(
            f"the checkpoint {folder} is of the job {theirs['job']}, generation"
            f" {theirs['generation']}, and this is {job}, generation {generation}: name another"
            " --checkpoint; or give --adopt-checkpoint once where the job was renamed"
        )
    _write(folder, noted | ours)


def recreated_topics(known: Mapping[str, str], ids: Mapping[str, str]) -> list[str]:
    """Return the topics that have another id than the known one. Pure."""
    return sorted(topic for topic, id_ in ids.items() if known.get(topic, id_) != id_)


def known_topics(folder: Path) -> dict[str, str]:
    """Return the ids of topics that were remembered here. Raises `CheckpointError`."""
    known: dict[str, str] = _read(folder).get("topics", {})
    return known


def remember_topics(folder: Path, ids: Mapping[str, str]) -> None:
    """Note the ids of topics. Raises `CheckpointError`, and OSError."""
    noted = _read(folder)
    if noted.get("topics") != ids:
        _write(folder, noted | {"topics": dict(ids)})


def _read(folder: Path) -> dict[str, Any]:
    path = folder / _FILE
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} cannot be read: it is no JSON object")
    return found


def _write(folder: Path, document: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / _FILE, json.dumps(document, indent=2) + "\n")
