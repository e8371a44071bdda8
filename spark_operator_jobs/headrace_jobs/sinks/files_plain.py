"""A log of commits over plain Parquet files; writing and reading it needs no library.

`<table>/_headrace_log/<version>.json` is a commit: added files, removed files, changed progress. A
version is created by linking a complete file to its name, which fails if the name is taken
(link(2), also over NFS): that is the compare-and-set. Every twentieth commit holds the whole state,
so that readers need only a few files, and so does one that swaps generations. Readers must use
`committed_files`, never the folder: a listing contains uncommitted files.

The log is pruned after each commit that holds the whole state. The newest such commit that is at
least an hour old is the base: older commits are not needed, and a reader that has listed the folder
has an hour to finish. The oldest is deleted first, so a writer that finds its previous version gone
knows that it was away for too long.
"""

from __future__ import annotations

import copy
import json
import os
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from headrace_jobs.durable import sync
from headrace_jobs.progress.stored import StoredProgress, format_progress, parse_progress
from headrace_jobs.sinks.files_compact import choose_small, merge
from headrace_jobs.sinks.files_log import (
    REPLACED_FILES_KEPT_SECONDS,
    ConflictError,
    DataFile,
    Held,
    file_prefix,
)
from headrace_jobs.sinks.files_task import DATA
from headrace_jobs.sinks.protocol import SinkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

__all__ = ["PlainLog", "committed_files"]

_logger = structlog.get_logger(__name__)

LOG = "_headrace_log"
COMMITS_BETWEEN_STATES = 20
_READ_ATTEMPTS = 100


@dataclass(kw_only=True)
class _State:
    """The state after all commits up to a version."""

    version: int = 0
    files: dict[str, int] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)
    #: The files of each hidden generation, by its identity.
    shadows: dict[str, dict[str, int]] = field(default_factory=dict)

    def replay(self, version: int, commit: dict[str, Any]) -> None:
        if "files" in commit:
            self.files, self.progress = dict(commit["files"]), dict(commit["progress"])
            self.shadows = {
                identity: dict(files) for identity, files in commit.get("shadows", {}).items()
            }
        else:
            self.files.update(commit["add"])
            self.progress.update(commit["progress"])
            for identity, files in commit.get("shadow", {}).items():
                self.shadows.setdefault(identity, {}).update(files)
            for path in commit["remove"]:
                for files in (self.files, *self.shadows.values()):
                    files.pop(path, None)
        self.version = version

    def known_files(self) -> set[str]:
        """Return the files of all generations."""
        return {path for files in (self.files, *self.shadows.values()) for path in files}


def committed_files(table: str | Path) -> list[Path]:
    """Return the files of whole batches, for `spark.read.parquet` and other readers."""
    root = Path(table)
    return [root / path for path in sorted(_read(root / LOG).files)]


class PlainLog:
    """The log of one table, as one (job, generation) sees it."""

    exists = True
    folder = DATA

    def __init__(self, root: Path, job: str, generation: int) -> None:
        self._root = root
        self._log = root / LOG
        self._job = job
        self._identity = f"{job}/{generation}"
        self._state = _State()
        self.is_shadow = False

    def create(self, frame: DataFrame) -> None:
        """Do nothing: the first commit creates the log."""

    def check_schema(self, frame: DataFrame) -> None:
        """Accept any: each file has its own schema."""

    def load(self) -> Held | None:
        """Read the log."""
        self._state = _read(self._log)
        if self._identity not in self._state.progress:
            return None
        found = self._held(self._identity)
        self.is_shadow = found.shadow is not None
        return found

    def commit(self, progress: StoredProgress, files: Sequence[DataFile]) -> None:
        """Commit. Raises `ConflictError`."""
        added = {file.path: file.bytes for file in files}
        self._add(
            {
                "add": {} if self.is_shadow else added,
                "remove": [],
                "progress": {self._identity: json.loads(format_progress(progress))},
            }
            | ({"shadow": {self._identity: added}} if self.is_shadow else {})
        )

    def generations(self) -> dict[int, Held]:
        """Return the last read state of every generation of this job."""
        numbers = {
            identity: int(identity.rpartition("/")[2])
            for identity in self._state.progress
            if identity.rpartition("/")[0] == self._job
        }
        return {number: self._held(identity) for identity, number in numbers.items()}

    def jobs(self) -> set[str]:
        """Return the jobs that write into the table."""
        return {each.rpartition("/")[0] for each in self._state.progress}

    def swap(self, live: int | None) -> None:
        """Exchange the files that readers see, in one commit. Raises `ConflictError`."""
        shadows = dict(self._state.shadows)
        files = shadows.pop(self._identity)
        if live is not None:
            shadows[f"{self._job}/{live}"] = self._state.files
        self._add({"files": files, "progress": self._state.progress, "shadows": shadows})

    def discard(self) -> None:
        """Drop the generation's files and progress, except for an epoch, then delete the files."""
        shadows = dict(self._state.shadows)
        doomed = shadows.pop(self._identity, {})
        epoch = self._held(self._identity).progress.epoch + 1
        left = json.loads(format_progress(StoredProgress(epoch=epoch))) | {"discarded": True}
        progress = self._state.progress | {self._identity: left}
        self._add(
            {
                "files": self._state.files,
                "progress": progress,
                "shadows": shadows,
                # Files that a kill leaves here are deleted when the log is pruned.
                "remove": list(doomed),
            }
        )
        for path in doomed:
            (self._root / path).unlink(missing_ok=True)

    def _held(self, identity: str) -> Held:
        noted, shadow = self._state.progress[identity], self._state.shadows.get(identity)
        return Held(
            progress=parse_progress(json.dumps(noted)),
            shadow=None
            if shadow is None
            else tuple(DataFile(path=path, rows=0, bytes=size) for path, size in shadow.items()),
            is_discarded=bool(noted.get("discarded")),
        )

    def files(self) -> set[str]:
        """Return the generation's committed files."""
        return set(self._state.shadows.get(self._identity, self._state.files))

    def clear(self, last: StoredProgress) -> None:  # noqa: ARG002 - the log knows what was committed
        """Delete files that will never be committed, of this and of discarded generations."""
        known = self._state.known_files()
        for version in _versions(self._log):
            # Removed, but left for readers that still use them.
            known.update((_commit(self._log, version) or {}).get("remove", ()))
        numbers = [number for number, held in self.generations().items() if held.is_discarded]
        for number in {*numbers, int(self._identity.rpartition("/")[2])}:
            for path in (self._root / DATA).glob(f"{file_prefix(self._job, number)}*.parquet"):
                if f"{DATA}/{path.name}" not in known:
                    path.unlink(missing_ok=True)

    def compact(self, files_min: int, prefix: str) -> int:
        """Merge small files with the same schema into one."""
        files = self._state.shadows.get(self._identity, {}) if self.is_shadow else self._state.files
        chosen = choose_small(self._root, files, files_min)
        if not chosen:
            return 0
        name = f"{DATA}/{prefix}{self._state.version}-{uuid.uuid4().hex[:8]}.parquet"
        added = {name: merge(self._root, chosen, name)}
        try:
            self._add(
                {"add": {} if self.is_shadow else added, "remove": chosen, "progress": {}}
                | ({"shadow": {self._identity: added}} if self.is_shadow else {})
            )
        except ConflictError:
            if name not in _read(self._log).known_files():
                (self._root / name).unlink()
            raise
        return len(chosen)

    def _add(self, commit: dict[str, Any]) -> None:
        version = self._state.version + 1
        after = copy.deepcopy(self._state)
        after.replay(version, commit)
        if version % COMMITS_BETWEEN_STATES == 0:
            commit |= {
                "files": after.files,
                "progress": after.progress,
                "shadows": after.shadows,
            }
        self._log.mkdir(parents=True, exist_ok=True)
        partial = self._log / f".{version}.{uuid.uuid4().hex}.partial"
        partial.write_text(json.dumps(commit))
        sync(partial)
        try:
            os.link(partial, _path(self._log, version))
        except FileExistsError as error:
            raise ConflictError(f"version {version} of {self._root} is taken") from error
        finally:
            partial.unlink()
        sync(self._log)
        if self._was_pruned(version - 1):
            # A version below the base is never read; reading again shows what to do.
            raise ConflictError(f"version {version} of {self._root} was taken, and pruned since")
        self._state = after
        if version % COMMITS_BETWEEN_STATES == 0:
            try:
                self._prune()
            except OSError as error:
                _logger.warning("old commits stay", table=str(self._root), error=str(error))

    def _was_pruned(self, version: int) -> bool:
        if version > 0:
            return not _path(self._log, version).exists()
        return any(each % COMMITS_BETWEEN_STATES == 0 for each in _versions(self._log))

    def _prune(self) -> None:
        """Delete commits that are no longer needed, and first the files that they removed.

        If it is interrupted, the next pruning continues: each step can be repeated.
        """
        oldest = time.time() - REPLACED_FILES_KEPT_SECONDS
        versions = _versions(self._log)
        base = max(
            (
                version
                for version in versions
                if version % COMMITS_BETWEEN_STATES == 0 and _is_older(self._log, version, oldest)
            ),
            default=0,
        )
        known = self._state.known_files()
        for version in versions:
            if version < base:
                # The commit of a writer that was away for too long removed nothing.
                removed = {*(_commit(self._log, version) or {}).get("remove", ())} - known
                for path in removed:
                    (self._root / path).unlink(missing_ok=True)
                _path(self._log, version).unlink(missing_ok=True)
        for partial in self._log.glob("*.partial"):
            # From a writer that was killed.
            with suppress(FileNotFoundError):
                if partial.stat().st_mtime < oldest:
                    partial.unlink()


def _path(folder: Path, version: int) -> Path:
    return folder / f"{version:020}.json"


def _versions(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.json"))


def _commit(folder: Path, version: int) -> dict[str, Any] | None:
    """Return a commit; None if it does not exist, or no longer does. Raises `SinkError`."""
    path = _path(folder, version)
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SinkError(f"{path} is no commit: {error}. Restore it from a copy") from error
    return found


def _is_older(folder: Path, version: int, than: float) -> bool:
    try:
        return _path(folder, version).stat().st_mtime < than
    except FileNotFoundError:
        return False


def _read(folder: Path) -> _State:
    """Read the newest commit that holds the whole state, and the later ones in order.

    A listing that is made during commits may lack one and have a later one, so it only gives the
    starting point. Raises `SinkError` if commits were deleted from the log.
    """
    for _ in range(_READ_ATTEMPTS):
        state, versions = _State(), _versions(folder)
        if not versions:
            return state
        whole = [version for version in versions if version % COMMITS_BETWEEN_STATES == 0]
        version = begin = whole[-1] if whole else 1
        while (commit := _commit(folder, version)) is not None:
            state.replay(version, commit)
            version += 1
        if _path(folder, begin).exists():
            return state
        # It was pruned after the listing, perhaps with later ones: there is a newer base.
    raise SinkError(f"{folder} lacks commits: restore it from a copy, or begin another table")
