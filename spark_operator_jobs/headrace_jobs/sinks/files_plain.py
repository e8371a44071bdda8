"""A log of commits over plain Parquet files, which needs no library to write or to read.

`<table>/_headrace_log/<version>.json` is a commit: files that came, files that went, progress that
changed. A version is made by linking a complete file to its name, which fails when the name is
taken (link(2), also over NFS): that is the compare-and-set. Each twentieth commit holds the whole
state, so that readers look at few, and so does one that swaps generations. Whoever reads the table
reads `committed_files`, never the folder: a listing has files that are not committed.
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

from headrace_jobs.durable import sync
from headrace_jobs.progress.stored import StoredProgress, format_progress, parse_progress
from headrace_jobs.sinks.files_log import COMPACTED_BYTES_MAX, ConflictError, DataFile, Held
from headrace_jobs.sinks.files_task import DATA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

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
    #: The files of each generation that readers do not see, by its identity.
    shadows: dict[str, dict[str, int]] = field(default_factory=dict)

    def replay(self, version: int, commit: dict[str, Any]) -> None:
        if "files" in commit:
            self.files, self.progress = dict(commit["files"]), dict(commit["progress"])
            self.shadows = {
                identity: dict(files) for identity, files in commit.get("shadows", {}).items()
            }
        else:
            self.files.update(commit["add"])
            for path in commit["remove"]:
                self.files.pop(path, None)
            self.progress.update(commit["progress"])
            for identity, files in commit.get("shadow", {}).items():
                self.shadows.setdefault(identity, {}).update(files)
        self.version = version


def committed_files(table: str | Path) -> list[Path]:
    """Return the files of whole batches, for `spark.read.parquet` and anybody else."""
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
        """Nothing to make: the first commit makes the log."""

    def check_schema(self, frame: DataFrame) -> None:
        """Take any: each file has its schema."""

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
        """Return what was read last of every generation of this job."""
        numbers = {
            identity: int(identity.rpartition("/")[2])
            for identity in self._state.progress
            if identity.rpartition("/")[0] == self._job
        }
        return {number: self._held(identity) for identity, number in numbers.items()}

    def other_jobs(self) -> set[str]:
        """Return the other jobs that write into the table."""
        return {each.rpartition("/")[0] for each in self._state.progress} - {self._job}

    def swap(self, live: int | None) -> None:
        """Exchange the files that readers see, in one commit. Raises `ConflictError`."""
        shadows = dict(self._state.shadows)
        files = shadows.pop(self._identity)
        if live is not None:
            shadows[f"{self._job}/{live}"] = self._state.files
        self._add({"files": files, "progress": self._state.progress, "shadows": shadows})

    def discard(self) -> None:
        """Forget the generation's files and progress, but for an epoch, then delete the files."""
        shadows = dict(self._state.shadows)
        doomed = shadows.pop(self._identity, {})
        epoch = self._held(self._identity).progress.epoch + 1
        left = json.loads(format_progress(StoredProgress(epoch=epoch))) | {"discarded": True}
        progress = self._state.progress | {self._identity: left}
        self._add({"files": self._state.files, "progress": progress, "shadows": shadows})
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

    def compact(self, files_min: int, prefix: str) -> int:
        """Make one file of small ones of one schema."""
        import pyarrow.parquet as pq

        if self.is_shadow:
            return 0
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
        size = (self._root / name).stat().st_size
        self._add({"add": {name: size}, "remove": chosen, "progress": {}})
        self._delete_removed()
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
            os.link(partial, self._log / f"{version:020}.json")
        except FileExistsError as error:
            raise ConflictError(f"version {version} of {self._root} is taken") from error
        finally:
            partial.unlink()
        sync(self._log)
        self._state = after

    def _delete_removed(self) -> None:
        """Delete files that were removed long ago."""
        oldest = time.time() - REMOVED_FILES_KEPT_SECONDS
        for path in self._log.glob("*.json"):
            if path.stat().st_mtime < oldest:
                for removed in json.loads(path.read_text()).get("remove", ()):
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
