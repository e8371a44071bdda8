"""Parquet files, written by the tasks that have the rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_jobs.durable import sync
from headrace_jobs.sinks.files_log import DataFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

__all__ = ["DATA", "write_files"]

#: The table's folder of live data files.
DATA = "data"


def write_files(frame: DataFrame, root: Path, folder: str, prefix: str) -> list[DataFile]:
    """Write a frame's rows, one file per task with rows; return the files of successful attempts.

    Files of other task attempts stay uncommitted.
    """
    task = _WriteTask(folder=str(root / folder), prefix=prefix)
    done = frame.mapInArrow(task.run, "name string, rows bigint, bytes bigint").collect()
    return [
        DataFile(path=f"{folder}/{row.name}", rows=int(row.rows), bytes=int(row.bytes))
        for row in done
    ]


@dataclass(frozen=True, kw_only=True)
class _WriteTask:
    """What a task does with its partition. It is pickled to executors."""

    folder: str
    prefix: str

    def run(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Write the rows into a file that is durable when its name is yielded."""
        import pyarrow as pa
        import pyarrow.parquet as pq
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        attempt = 0 if context is None else context.taskAttemptId()
        name = f"{self.prefix}-p{partition}-{attempt}.parquet"
        path = Path(self.folder) / name
        writer, rows = None, 0
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if writer is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                writer = pq.ParquetWriter(path, batch.schema, compression="zstd")
            writer.write_batch(batch)
            rows += batch.num_rows
        if writer is None:
            return
        writer.close()
        sync(path)
        size = path.stat().st_size
        yield pa.RecordBatch.from_pydict({"name": [name], "rows": [rows], "bytes": [size]})
