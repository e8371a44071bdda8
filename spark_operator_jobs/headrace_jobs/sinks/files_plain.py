"""A log of commits over plain Parquet files, which needs no library to write or to read.

`<table>/_headrace_log/<version>.json` is a commit: files that came, files that went, progress that
changed. A version is made by linking a complete file to its name, which fails when the name is
taken (link(2), also over NFS): that is the compare-and-set. Each twentieth commit holds the whole
state, so that readers look at few. Whoever reads the table reads `committed_files`, never the
folder: a listing has files that are not committed.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_jobs.durable import sync
from headrace_jobs.progress.stored import format_progress, parse_progress
from headrace_jobs.sinks.files_log import COMPACTED_BYTES_MAX, ConflictError
from headrace_jobs.sinks.files_task import DATA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from headrace_jobs.progress.stored import StoredProgress
    from headrace_jobs.sinks.files_log import DataFile

__all__ = ["PlainLog", "committed_files"]

LOG = "_headrace_log"
COMMITS_BETWEEN_STATES = 20
#: Readers that began before a compaction have this long to end.
REMOVED_FILES_KEPT_SECONDS = 3600.0


@dataclass(kw_only=True)
class _State:
    """What the commits up to a version add up to."""

    version: int = 0
    files: dict[str, int] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)

    def replay(self, version: int, commit: dict[str, Any]) -> None:
        if "files" in commit:
            self.files, self.progress = dict(commit["files"]), dict(commit["progress"])
        else:
            self.files.update(commit["add"])
            for path in commit["remove"]:
                self.files.pop(path, None)
            self.progress.update(commit["progress"])
        self.version = version


def committed_files(table: str | Path) -> list[Path]:
    """Return the files of whole batches, for `spark.read.parquet` and anybody else."""
    root = Path(table)
    return [root / path for path in sorted(_read(root / LOG).files)]


class PlainLog:
    """The log of one table, as one (job, generation) sees it."""

    exists = True

    def __init__(self, root: Path, identity: str) -> None:
        self._root = root
        self._folder = root / LOG
        self._identity = identity
        self._state = _State()

    def create(self, frame: DataFrame) -> None:
        """Nothing to make: the first commit makes the log."""

    def check_schema(self, frame: DataFrame) -> None:
        """Take any: each file has its schema."""

    def load(self) -> StoredProgress | None:
        """Read the log."""
        self._state = _read(self._folder)
        mine = self._state.progress.get(self._identity)
        return None if mine is None else parse_progress(json.dumps(mine))

    def commit(self, progress: StoredProgress, files: Sequence[DataFile]) -> None:
        """Commit. Raises `ConflictError`."""
        self._add(
            {file.path: file.bytes for file in files},
            remove=[],
            progress={self._identity: json.loads(format_progress(progress))},
        )

    def files(self) -> set[str]:
        """Return the committed files."""
        return set(self._state.files)

    def compact(self, files_min: int, prefix: str) -> int:
        """Make one file of small ones of one schema."""
        import pyarrow.parquet as pq

        small = [
            path for path, size in self._state.files.items() if size < COMPACTED_BYTES_MAX // 2
        ]
        if len(small) < files_min:
            return 0
        chosen, total = [], 0
        schema = pq.read_schema(self._root / small[0])
        for path in small:
            total += self._state.files[path]
            if total > COMPACTED_BYTES_MAX:
                break
            if pq.read_schema(self._root / path).equals(schema):
                chosen.append(path)
        name = f"{DATA}/{prefix}{self._state.version}-{uuid.uuid4().hex[:8]}.parquet"
        with pq.ParquetWriter(self._root / name, schema, compression="zstd") as writer:
            for path in chosen:
                for batch in pq.ParquetFile(self._root / path).iter_batches():
                    writer.write_batch(batch)
        sync(self._root / name)
        self._add({name: (self._root / name).stat().st_size}, remove=chosen, progress={})
        self._delete_removed()
        return len(chosen)

    def _add(self, add: dict[str, int], *, remove: list[str], progress: dict[str, Any]) -> None:
        version = self._state.version + 1
        commit: dict[str, Any] = {"add": add, "remove": remove, "progress": progress}
        after = _State(
            version=self._state.version,
            files=dict(self._state.files),
            progress=dict(self._state.progress),
        )
        after.replay(version, commit)
        if version % COMMITS_BETWEEN_STATES == 0:
            commit |= {"files": after.files, "progress": after.progress}
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f".{version}.{uuid.uuid4().hex}.partial"
        partial.write_text(json.dumps(commit))
        sync(partial)
        try:
            os.link(partial, self._folder / f"{version:020}.json")
        except FileExistsError as error:
            raise ConflictError(f"version {version} of {self._root} is taken") from error
        finally:
            partial.unlink()
        sync(self._folder)
        self._state = after

    def _delete_removed(self) -> None:
        """Delete files that were removed long ago."""
        oldest = time.time() - REMOVED_FILES_KEPT_SECONDS
        for path in self._folder.glob("*.json"):
            if path.stat().st_mtime < oldest:
                for removed in json.loads(path.read_text())["remove"]:
                    with suppress(FileNotFoundError):
                        (self._root / removed).unlink()


def _read(folder: Path) -> _State:
    state = _State()
    versions = sorted(int(path.stem) for path in folder.glob("*.json"))
    # The newest commit that holds the whole state, and what came after it.
    whole = [version for version in versions if version % COMMITS_BETWEEN_STATES == 0]
    for version in versions:
        if not whole or version >= whole[-1]:
            state.replay(version, json.loads((folder / f"{version:020}.json").read_text()))
    return state
