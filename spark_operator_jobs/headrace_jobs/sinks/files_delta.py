"""Delta's log: files that executors wrote are committed by delta-rs, with application transactions.

Each commit sets three of them, `headrace/<job>/<generation>` (a number that goes up by one), its
`…/epoch` and its `…/file`. Delta refuses a commit whose application transactions another commit has
set since the table was read: that compare-and-set does the fencing. A transaction holds only a
number, so the offsets are in a file, `_headrace/<job>/<generation>/<number>-<epoch>-<file>.json`,
which is written before and means nothing until the commit names it. `<file>` is random: a driver's
attempt and a swap may have the same number and epoch, and then one of them is refused.

A shadow's files are named there, too, and are in `_headrace/<job>/<generation>/data`, which Delta's
`vacuum` ignores. A swap links them into `data`, and the other generation's files the other way, in
one commit; readers that have begun continue in their version of the table. Files that compaction or
a swap has replaced there are recorded beside the shadow's files, and deleted an hour later.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace_jobs.durable import replace_file, sync
from headrace_jobs.progress.stored import StoredProgress, format_progress, parse_progress
from headrace_jobs.sinks.files_compact import choose_small, merge, row_count
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
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

__all__ = ["DeltaLog"]

_PROGRESS = "_headrace"
_NO_COMMIT = 0
# In the name of a file that a task wrote.
_BATCH_AND_EPOCH = re.compile(r"-b(\d+)-e(\d+)-p")


class DeltaLog:
    """A Delta table, as one (job, generation) sees it."""

    def __init__(self, root: Path, job: str, generation: int) -> None:
        """Open the table if it is there. Raises `SinkError` without the library."""
        try:
            import deltalake  # noqa: F401 - whether it is there
        except ImportError as error:
            raise SinkError(
                "a Delta table needs deltalake: pip install 'headrace[sinks]', or choose the form"
                " parquet, which needs nothing"
            ) from error
        self._root = root
        self._job = job
        self._identity = f"{job}/{generation}"
        self._held: Held | None = None
        self.is_shadow = False
        self._table: Any = None
        self._open()

    @property
    def exists(self) -> bool:
        """Whether the table exists."""
        return self._table is not None

    @property
    def folder(self) -> str:
        """The generation's present folder of data files, relative to the table."""
        return _shadow_folder(self._identity) if self.is_shadow else DATA

    def create(self, frame: DataFrame) -> None:
        """Create the table, unless another client has created it meanwhile."""
        from deltalake import DeltaTable, Schema

        schema = Schema.from_arrow(_arrow_schema(frame))
        DeltaTable.create(str(self._root), schema=schema, mode="ignore")
        self._open()

    def check_schema(self, frame: DataFrame) -> None:
        """Raise `SinkError` if columns or types differ from the table's."""
        from deltalake import Schema

        ours = {
            field.name: str(field.type) for field in Schema.from_arrow(_arrow_schema(frame)).fields
        }
        theirs = {field.name: str(field.type) for field in self._table.schema().fields}
        if ours != theirs:
            raise SinkError(f"the table has the columns {theirs}, and the job's rows {ours}")

    def load(self) -> Held | None:
        """Read the newest version of the table."""
        while True:
            self._open()
            try:
                self._held = None if self._table is None else self._read(self._identity)
            except ConflictError:
                continue
            break
        if self._held is not None:
            self.is_shadow = self._held.shadow is not None
        return self._held

    def commit(self, progress: StoredProgress, files: Sequence[DataFile]) -> None:
        """Commit. Raises `ConflictError`."""
        files = self._linked(files, self.folder)
        before = self._held or Held(progress=progress)
        after = Held(
            progress=progress,
            shadow=(*(before.shadow or ()), *files) if self.is_shadow else None,
            replaced=self._delete_replaced(before),
        )
        self._write({self._identity: after}, "append", () if self.is_shadow else files)
        self._held = after

    def files(self) -> set[str]:
        """Return the generation's committed files."""
        if self.is_shadow:
            return {file.path for file in (self._held and self._held.shadow) or ()}
        return {file.path for file in self._live_files()}

    def clear(self, last: StoredProgress) -> None:
        """Delete files that will never be committed, of this and of discarded generations.

        In the table's own folder, that is what the last driver had not committed; `vacuum` handles
        the rest, as it knows what was compacted.
        """
        with suppress(ConflictError):  # another client commits just now: the next driver deletes
            for number, held in self.generations().items():
                if held.is_discarded:
                    folder = self._root / _shadow_folder(f"{self._job}/{number}")
                    shutil.rmtree(folder, ignore_errors=True)
        prefix = file_prefix(self._job, int(self._identity.rpartition("/")[2]))
        known = self.files()
        if self.is_shadow and self._held is not None:
            known |= {path for path, _ in self._held.replaced}
        for path in (self._root / self.folder).glob(f"{prefix}*.parquet"):
            made_by = _BATCH_AND_EPOCH.search(path.name)
            is_of_the_last = made_by is not None and (
                int(made_by[2]) == last.epoch and int(made_by[1]) > last.batch_id
            )
            if (self.is_shadow or is_of_the_last) and f"{self.folder}/{path.name}" not in known:
                path.unlink(missing_ok=True)

    def compact(self, files_min: int, prefix: str) -> int:
        """Compact; what is replaced stays until `vacuum`, or for an hour if it is a shadow's."""
        if self.is_shadow:
            return self._compact_shadow(files_min, prefix)
        protocol = self._table.protocol()
        if protocol.min_reader_version > 1 or protocol.writer_features:
            return 0  # a file may have more or fewer rows than readers see
        files = {file.path: file.bytes for file in self._live_files() if "%" not in file.path}
        chosen = choose_small(self._root, files, files_min)
        if not chosen:
            return 0
        name = f"{DATA}/{prefix}{uuid.uuid4().hex[:8]}.parquet"
        size = merge(self._root, chosen, name)
        try:
            _commit_replacement(
                self._root,
                self._table.version() + 1,
                removed={path: files[path] for path in chosen},
                added=DataFile(path=name, rows=row_count(self._root / name), bytes=size),
            )
        except ConflictError:
            (self._root / name).unlink()
            raise
        self._table.update_incremental()
        # The library makes one with every hundredth commit of its own.
        self._table.create_checkpoint()
        return len(chosen)

    def _compact_shadow(self, files_min: int, prefix: str) -> int:
        before = self._held
        if before is None or before.shadow is None:
            return 0
        files = {file.path: file.bytes for file in before.shadow}
        chosen = choose_small(self._root, files, files_min)
        if not chosen:
            return 0
        name = f"{self.folder}/{prefix}{uuid.uuid4().hex[:8]}.parquet"
        size = merge(self._root, chosen, name)
        rows = sum(file.rows for file in before.shadow if file.path in chosen)
        left = [file for file in before.shadow if file.path not in chosen]
        after = Held(
            progress=before.progress,
            shadow=(DataFile(path=name, rows=rows, bytes=size), *left),
            replaced=(*self._delete_replaced(before), *((path, time.time()) for path in chosen)),
        )
        try:
            self._write({self._identity: after}, "append", ())
        except ConflictError:
            (self._root / name).unlink()
            raise
        self._held = after
        return len(chosen)

    def _delete_replaced(self, held: Held) -> tuple[tuple[str, float], ...]:
        """Delete files that were replaced long ago; return those that are kept for now."""
        oldest = time.time() - REPLACED_FILES_KEPT_SECONDS
        for path, at in held.replaced:
            if at < oldest:
                (self._root / path).unlink(missing_ok=True)
        return tuple((path, at) for path, at in held.replaced if at >= oldest)

    def generations(self) -> dict[int, Held]:
        """Return the last read state of every generation of this job."""
        if self._table is None:
            return {}
        folders = (self._root / _PROGRESS / self._job).glob("*")
        numbers = sorted(int(path.name) for path in folders if path.name.isdigit())
        found = {number: self._read(f"{self._job}/{number}") for number in numbers}
        return {number: held for number, held in found.items() if held is not None}

    def jobs(self) -> set[str]:
        """Return the jobs that write into the table."""
        return {path.name for path in (self._root / _PROGRESS).glob("*")}

    def swap(self, live: int | None) -> None:
        """Exchange the files that readers see, in one commit. Raises `ConflictError`."""
        mine = self._read(self._identity)
        if mine is None:
            raise ConflictError(f"{self._identity} has no progress")
        now = time.time()
        replaced = (*mine.replaced, *((file.path, now) for file in mine.shadow or ()))
        changed = {self._identity: Held(progress=mine.progress, replaced=replaced)}
        other = None if live is None else f"{self._job}/{live}"
        theirs = None if other is None else self._read(other)
        if other is not None and theirs is not None:
            former = self._linked(self._live_files(), _shadow_folder(other))
            held = Held(progress=theirs.progress, shadow=tuple(former), replaced=theirs.replaced)
            changed[other] = held
        # Separate names: a driver that starts deletes uncommitted files with its own prefix.
        files = self._linked(mine.shadow or (), DATA, f"swap-{uuid.uuid4().hex[:8]}-")
        self._write(changed, "overwrite", files)

    def discard(self) -> None:
        """Discard the generation except for an epoch, then delete its files."""
        held = self._read(self._identity)
        epoch = 1 if held is None else held.progress.epoch + 1
        left = Held(progress=StoredProgress(epoch=epoch), shadow=(), is_discarded=True)
        self._write({self._identity: left}, "append", ())
        shutil.rmtree(self._root / _shadow_folder(self._identity), ignore_errors=True)

    def _write(self, changed: dict[str, Held], mode: str, files: Sequence[DataFile]) -> None:
        """Commit changes of generations, and files. Raises `ConflictError`."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        transactions, numbers = [], {}
        for identity, held in changed.items():
            number = numbers[identity] = self._number(identity) + 1
            numbered = {"": number, "/epoch": held.progress.epoch, "/file": secrets.randbits(48)}
            folder = self._root / _PROGRESS / identity
            folder.mkdir(parents=True, exist_ok=True)
            name = "-".join(map(str, numbered.values()))
            replace_file(folder / f"{name}.json", _format(held))
            transactions += [
                Transaction(f"{_application(identity)}{which}", value)
                for which, value in numbered.items()
            ]
        mine = changed[self._identity].progress
        properties = CommitProperties(
            app_transactions=transactions,
            custom_metadata={"headraceBatch": str(mine.batch_id)},
        )
        try:
            self._table.create_write_transaction(
                [_add_action(file) for file in files],
                mode,
                self._table.schema(),
                commit_properties=properties,
            )
        except CommitFailedError as error:
            raise ConflictError(str(error)) from error
        self._table.update_incremental()
        for identity, number in numbers.items():
            for old in (self._root / _PROGRESS / identity).glob("*.json"):
                if int(old.name.partition("-")[0]) < number - 1:
                    old.unlink(missing_ok=True)

    def _number(self, identity: str) -> int:
        found = self._table.transaction_version(_application(identity))
        return _NO_COMMIT if found is None else int(found)

    def _read(self, identity: str) -> Held | None:
        """Return the state in the open version of the table.

        Raises `ConflictError` if a later version has replaced it.
        """
        number = self._number(identity)
        if number == _NO_COMMIT:
            return None
        versions = (
            self._table.transaction_version(f"{_application(identity)}{which}")
            for which in ("", "/epoch", "/file")
        )
        # Tables from before swaps have no third number.
        name = "-".join(str(each) for each in versions if each is not None)
        try:
            text = (self._root / _PROGRESS / identity / f"{name}.json").read_text()
        except FileNotFoundError as error:
            raise ConflictError(f"{identity} has been committed since") from error
        return _parse(text)

    def _live_files(self) -> list[DataFile]:
        """Return the files that readers see."""
        import pyarrow as pa

        found = pa.table(self._table.get_add_actions(flatten=True)).to_pydict()
        rows = found.get("num_records") or [0] * len(found["path"])
        return [
            DataFile(path=path, rows=int(count or 0), bytes=int(size))
            for path, count, size in zip(found["path"], rows, found["size_bytes"], strict=True)
        ]

    def _linked(self, files: Iterable[DataFile], folder: str, prefix: str = "") -> list[DataFile]:
        """Return the files as they are in a folder; link those that are missing there."""
        moved = []
        for file in files:
            name = file.path.rpartition("/")[2]
            path = f"{folder}/{prefix}{name}"
            if file.path.rpartition("/")[0] == folder:
                path = file.path
            elif not (self._root / path).exists():
                (self._root / folder).mkdir(parents=True, exist_ok=True)
                os.link(self._root / file.path, self._root / path)
            moved.append(DataFile(path=path, rows=file.rows, bytes=file.bytes))
        if moved:
            sync(self._root / folder)
        return moved

    def _open(self) -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            if self._table is not None:
                self._table.update_incremental()
            elif DeltaTable.is_deltatable(str(self._root)):
                self._table = DeltaTable(str(self._root))
        except DeltaError as error:
            # Behind the first line is a stack of the library's.
            reason = str(error).partition("\n")[0]
            raise SinkError(f"{self._root} cannot be read as a Delta table: {reason}") from error


def _application(identity: str) -> str:
    return f"headrace/{identity}"


def _shadow_folder(identity: str) -> str:
    return f"{_PROGRESS}/{identity}/data"


def _format(held: Held) -> str:
    document = json.loads(format_progress(held.progress))
    if held.shadow is not None:
        document["shadow"] = [[file.path, file.rows, file.bytes] for file in held.shadow]
    if held.replaced:
        document["replaced"] = [[path, at] for path, at in held.replaced]
    return json.dumps(document | ({"discarded": True} if held.is_discarded else {}))


def _parse(text: str) -> Held:
    document = json.loads(text)
    shadow = document.get("shadow")
    return Held(
        progress=parse_progress(text),
        shadow=None
        if shadow is None
        else tuple(DataFile(path=path, rows=rows, bytes=size) for path, rows, size in shadow),
        is_discarded=bool(document.get("discarded")),
        replaced=tuple((path, at) for path, at in document.get("replaced", ())),
    )


def _arrow_schema(frame: DataFrame) -> Any:
    """Return the Arrow schema in which tasks see the frame's rows."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(frame.schema, timezone="UTC")


def _add_action(file: DataFile) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(
        path=file.path,
        size=file.bytes,
        partition_values={},
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": file.rows}),
    )


def _commit_replacement(
    root: Path, version: int, *, removed: Mapping[str, int], added: DataFile
) -> None:
    """Commit a version with one file in place of others (paths and bytes) that have its rows.

    delta-rs has this as `optimize.compact`, which is not safe (1.6): of two that began at the same
    version both are committed, and each row is there twice. This commit is of a certain version: it
    is made by link(2), which fails if any client has committed that one. Raises `ConflictError`.
    """
    now_ms = int(time.time() * 1000)
    actions: list[dict[str, object]] = [
        {
            "commitInfo": {
                "timestamp": now_ms,
                "operation": "OPTIMIZE",
                "operationParameters": {"predicate": "[]"},
                "readVersion": version - 1,
                "engineInfo": "headrace",
            }
        }
    ]
    actions += [
        {
            "remove": {
                "path": path,
                "dataChange": False,
                "deletionTimestamp": now_ms,
                "extendedFileMetadata": True,
                "partitionValues": {},
                "size": size,
            }
        }
        for path, size in removed.items()
    ]
    add = {
        "path": added.path,
        "partitionValues": {},
        "size": added.bytes,
        "modificationTime": now_ms,
        "dataChange": False,
        "stats": json.dumps({"numRecords": added.rows}),
    }
    actions.append({"add": add})
    log = root / "_delta_log"
    partial = log / f"_{version}.{uuid.uuid4().hex}.tmp"
    partial.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    sync(partial)
    try:
        os.link(partial, log / f"{version:020}.json")
    except FileExistsError as error:
        raise ConflictError(f"version {version} of {root} is taken") from error
    finally:
        partial.unlink()
    sync(log)
