"""Delta's log: files that executors wrote are committed by delta-rs, with application transactions.

Each commit sets two of them, `headrace/<job>/<generation>` (a number that goes up by one) and its
`…/epoch`. Delta refuses a commit whose application transactions another commit has set since the
table was read: that is the compare-and-set that fences. A transaction holds a number only, so the
offsets are in a file of their own, `_headrace/<job>/<generation>/<number>-<epoch>.json`, which is
written before and means nothing until the commit names it.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from headrace_jobs.durable import replace_file
from headrace_jobs.progress.stored import format_progress, parse_progress
from headrace_jobs.sinks.files_log import COMPACTED_BYTES_MAX, ConflictError
from headrace_jobs.sinks.protocol import SinkError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

    from headrace_jobs.progress.stored import StoredProgress
    from headrace_jobs.sinks.files_log import DataFile

__all__ = ["DeltaLog"]

_NO_COMMIT = 0


class DeltaLog:
    """A Delta table, as one (job, generation) sees it."""

    def __init__(self, root: Path, identity: str) -> None:
        """Open the table if it is there. Raises `SinkError` without the library."""
        try:
            import deltalake  # noqa: F401 - whether it is there
        except ImportError as error:
            raise SinkError(
                "a Delta table needs deltalake: pip install 'headrace[sinks]', or choose the form"
                " parquet, which needs nothing"
            ) from error
        self._root = root
        self._application = f"headrace/{identity}"
        self._progress = root / "_headrace" / identity
        self._number = _NO_COMMIT
        self._table: Any = None
        self._open()

    @property
    def exists(self) -> bool:
        """Whether there is a table."""
        return self._table is not None

    def create(self, frame: DataFrame) -> None:
        """Make the table; one that somebody else made meanwhile is kept."""
        from deltalake import DeltaTable, Schema

        schema = Schema.from_arrow(_arrow_schema(frame))
        DeltaTable.create(str(self._root), schema=schema, mode="ignore")
        self._open()

    def check_schema(self, frame: DataFrame) -> None:
        """Raise `SinkError` when columns or types are others than the table's."""
        from deltalake import Schema

        ours = {
            field.name: str(field.type) for field in Schema.from_arrow(_arrow_schema(frame)).fields
        }
        theirs = {field.name: str(field.type) for field in self._table.schema().fields}
        if ours != theirs:
            raise SinkError(f"the table has the columns {theirs}, and the job's rows {ours}")

    def load(self) -> StoredProgress | None:
        """Read the newest version of the table."""
        self._open()
        if self._table is None:
            return None
        number = self._table.transaction_version(self._application)
        if number is None:
            self._number = _NO_COMMIT
            return None
        self._number = number
        epoch = self._table.transaction_version(f"{self._application}/epoch")
        return parse_progress((self._progress / f"{number}-{epoch}.json").read_text())

    def commit(self, progress: StoredProgress, files: Sequence[DataFile]) -> None:
        """Commit. Raises `ConflictError`."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        number = self._number + 1
        self._progress.mkdir(parents=True, exist_ok=True)
        path = self._progress / f"{number}-{progress.epoch}.json"
        replace_file(path, format_progress(progress))
        properties = CommitProperties(
            app_transactions=[
                Transaction(self._application, number),
                Transaction(f"{self._application}/epoch", progress.epoch),
            ],
            custom_metadata={"headraceBatch": str(progress.batch_id)},
        )
        try:
            self._table.create_write_transaction(
                [_add_action(file) for file in files],
                "append",
                self._table.schema(),
                commit_properties=properties,
            )
        except CommitFailedError as error:
            raise ConflictError(str(error)) from error
        self._table.update_incremental()
        self._number = number
        for old in self._progress.glob("*.json"):
            if int(old.name.partition("-")[0]) < number - 1:
                old.unlink(missing_ok=True)

    def files(self) -> set[str]:
        """Return the committed files."""
        return {str(path) for path in self._add_actions()["path"]}

    def compact(self, files_min: int, prefix: str) -> int:  # noqa: ARG002 - Delta names its files itself
        """Compact by delta-rs. Files that were replaced stay for readers until `vacuum`."""
        from deltalake.exceptions import CommitFailedError

        sizes = self._add_actions()["size_bytes"]
        if sum(int(size) < COMPACTED_BYTES_MAX // 2 for size in sizes) < files_min:
            return 0
        try:
            done = self._table.optimize.compact(target_size=COMPACTED_BYTES_MAX)
        except CommitFailedError as error:
            raise ConflictError(str(error)) from error
        return int(done["numFilesRemoved"])

    def _open(self) -> None:
        from deltalake import DeltaTable

        if self._table is not None:
            self._table.update_incremental()
        elif DeltaTable.is_deltatable(str(self._root)):
            self._table = DeltaTable(str(self._root))

    def _add_actions(self) -> dict[str, list[Any]]:
        import pyarrow as pa

        found: dict[str, list[Any]] = pa.table(self._table.get_add_actions()).to_pydict()
        return found


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
