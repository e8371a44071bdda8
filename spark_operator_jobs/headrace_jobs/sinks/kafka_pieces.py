"""Brings a frame's records to the driver in their order, in pieces where they do not fit into it.

What is at most a quarter of the driver's heap comes as a whole, by one job that Spark ends if it is
more. Then one job brings the first piece of each partition, and each further job the next piece of
one. A piece is a few of Spark's Arrow batches, of which none is split. The frame has to be
persisted: a piece begins where the one before ended, in the same rows.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from headrace_jobs.sinks.protocol import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

__all__ = ["PIECE_BYTES", "arrow_batches"]

#: A driver with 512 MiB has room for some of these: in the JVM, on the way, and in Python.
PIECE_BYTES = 16 * 1024 * 1024
# There is one for each partition at once.
_FIRST_BYTES = 512 * 1024
_ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_RESULT_BYTES = "spark.driver.maxResultSize"
_PIECE = "at INT, number INT, is_last BOOLEAN, digest BIGINT, records BINARY"


def arrow_batches(
    records: DataFrame, *, piece_bytes: int = PIECE_BYTES, whole_bytes: int | None = None
) -> Iterator[Any]:
    """Yield Arrow's record batches of a frame of `key, value` as bytes. Raises `SinkError`.

    `whole_bytes`: what may come at once, instead of a quarter of the heap.
    """
    whole = _whole(records, whole_bytes)
    if whole is not None:
        yield from whole.to_batches()
        return
    for first in _collect(records, _pieces(min(piece_bytes, _FIRST_BYTES))):
        piece = first
        yield from _record_batches(piece.records)
        while not piece.is_last:
            following = _pieces(piece_bytes, piece.at, piece.number, piece.digest)
            found = _collect(records, following)
            if len(found) != 1:
                raise SinkError(f"partition {piece.at} of the batch has no piece after the last")
            (piece,) = found
            yield from _record_batches(piece.records)


def _whole(records: DataFrame, bytes_max: int | None) -> Any | None:
    """Return all records, or None if they are too large.

    To know their size before would cost each batch another job.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    context: Any = records.sparkSession.sparkContext
    heap_bytes = context._jvm.java.lang.Runtime.getRuntime().maxMemory()  # noqa: SLF001 - no public way
    # The context's own, which each job reads.
    conf = context._jsc.sc().conf()  # noqa: SLF001 - as above
    before, given = conf.get(_RESULT_BYTES, "1g"), conf.getSizeAsBytes(_RESULT_BYTES, "1g")
    limit = bytes_max or heap_bytes // 4
    conf.set(_RESULT_BYTES, str(min(limit, given) if given else limit))
    try:
        return records.toArrow()
    except (Py4JJavaError, PySparkException) as error:
        if _RESULT_BYTES not in str(error):
            raise
        return None
    finally:
        conf.set(_RESULT_BYTES, before)


def _collect(records: DataFrame, task: Callable[[Iterator[Any]], Iterator[Any]]) -> list[Any]:
    """Return the rows of a task for each partition. Its Arrow batches are the same each time."""
    conf = records.sparkSession.conf
    before = str(conf.get(_ARROW_BYTES))
    conf.set(_ARROW_BYTES, str(_FIRST_BYTES))
    try:
        return records.mapInArrow(task, _PIECE).collect()
    finally:
        conf.set(_ARROW_BYTES, before)


def _record_batches(content: bytes) -> Iterator[Any]:
    import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(content)) as stream:
        yield from stream


def _pieces(
    piece_bytes: int, partition: int | None = None, skipped: int = 0, digest: int = 0
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return what a task does: each partition's first piece, or the next one of one of them.

    `digest` is of the skipped batches: rows that were computed again may be in another order.
    """

    def piece_of(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        at = -1 if context is None else context.partitionId()
        if partition not in (None, at):
            return
        found, seen, number, size = [], 0, 0, 0
        is_last = True
        for batch in batches:
            if size >= piece_bytes:
                is_last = False
                break
            for column in batch.columns:
                # Not of the bits of nulls, whose last byte may end in anything.
                for buffer in column.buffers()[1:]:
                    seen = zlib.crc32(buffer or b"", seen)
            number += 1
            if number > skipped:
                found.append(batch)
                size += batch.nbytes
            elif number == skipped and seen != digest:
                raise ValueError("the batch's rows were computed again, in another order")
        if not found:
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, found[0].schema) as stream:
            for batch in found:
                stream.write_batch(batch)
        row = [[at], [number], [is_last], [seen], [sink.getvalue().to_pybytes()]]
        kinds = [pa.int32(), pa.int32(), pa.bool_(), pa.int64(), pa.binary()]
        arrays = [pa.array(value, kind) for value, kind in zip(row, kinds, strict=True)]
        yield pa.record_batch(arrays, ["at", "number", "is_last", "digest", "records"])

    return piece_of
