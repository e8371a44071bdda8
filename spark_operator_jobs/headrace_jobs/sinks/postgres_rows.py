"""Copies a frame's rows into PostgreSQL by COPY, from the tasks that have them.

pyarrow turns Arrow batches into CSV in C++, which goes to the server unchanged: no Python object
per row.

A staging table belongs to one batch of one driver. It is created while the job's progress row is
locked and the driver's epoch is checked, so none is created after a successor has dropped the old
ones, which it finds by their names.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_jobs.progress.stored import FencedError
from headrace_jobs.sinks.protocol import SinkAwayError, SinkError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame

__all__ = [
    "ATTEMPT",
    "TASK_STAGING",
    "TaskMerge",
    "bound_idleness",
    "column_types",
    "copy_rows",
    "drop_staging",
    "drop_unless_locked",
    "merge_rows",
    "portable",
    "staging_prefix",
    "unfit_key",
    "unfit_values",
]

#: The staging table's column with the task attempt that wrote a row.
ATTEMPT = "headrace_attempt"
#: The temporary table of a task that merges its own rows.
TASK_STAGING = "headrace_task"

#: A client that hangs, or whose node is cut off, keeps its locks no longer than this.
IDLE_SECONDS_MAX = 60
_LOCK_TIMEOUT = "1s"

_NUL = "\0"
# Behind no backslash that it would be the text of.
_NUL_IN_JSON = r"(?<!\\)(\\\\)*\\u0000"
# Others have more digits, or BC, as text.
_YEAR_MAX = 9999
# An index entry has 2,704 bytes at most, with its header and those of its columns.
_KEY_BYTES_MAX = 2_600

_TYPES = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}


def portable(frame: DataFrame) -> DataFrame:
    """Return the frame with values that CSV cannot express as text: nested values become JSON."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use
    from pyspark.sql import types as T  # noqa: N812 - as above

    from headrace_jobs.transforms.json_text import as_json

    columns = []
    for field in frame.schema.fields:
        column = F.col(f"`{field.name}`")
        if isinstance(field.dataType, T.StructType | T.ArrayType | T.MapType):
            column = as_json(column)
        elif isinstance(field.dataType, T.BinaryType):
            column = F.concat(F.lit("\\x"), F.hex(column))
        columns.append(column.alias(field.name, metadata={"type": field.dataType.simpleString()}))
    return frame.select(*columns)


def unfit_values(frame: DataFrame) -> list[Column]:
    """Return a reason, or null, for each column whose type here does not hold all of Spark's."""
    from pyspark.sql import functions as F  # noqa: N812 - as above
    from pyspark.sql import types as T  # noqa: N812 - as above

    from headrace_jobs.sinks.unfit import no_utf8, of_columns

    nested = (T.StructType, T.ArrayType, T.MapType)
    has_nul = F.lit("has U+0000, which PostgreSQL does not take")
    no_year = F.lit("is not of the years 1 to 9999")
    return [
        *no_utf8(frame),
        *of_columns(frame, (T.StringType,), lambda text: F.when(text.contains(_NUL), has_nul)),
        *of_columns(
            frame, nested, lambda value: F.when(F.to_json(value).rlike(_NUL_IN_JSON), has_nul)
        ),
        *of_columns(
            frame,
            (T.DateType, T.TimestampType, T.TimestampNTZType),
            lambda time: F.when(~F.year(time).between(1, _YEAR_MAX), no_year),
        ),
    ]


def unfit_key(frame: DataFrame, key: Sequence[str]) -> list[Column]:
    """Return a reason for keys that no index takes, null for the others."""
    from pyspark.sql import functions as F  # noqa: N812 - as above
    from pyspark.sql import types as T  # noqa: N812 - as above

    kinds = {field.name: field.dataType for field in frame.schema.fields}
    sizes = [
        F.coalesce(F.octet_length(F.col(f"`{name}`")), F.lit(0))
        for name in key
        if isinstance(kinds[name], T.StringType | T.BinaryType)
    ]
    if not sizes:
        return []
    reason = f"its key has more than {_KEY_BYTES_MAX} bytes, and PostgreSQL indexes no such one"
    return [F.when(sum(sizes[1:], sizes[0]) > _KEY_BYTES_MAX, F.lit(reason))]


def column_types(frame: DataFrame) -> dict[str, str]:
    """Return PostgreSQL's type for each column of a portable frame."""
    found = {}
    for field in frame.schema.fields:
        kind = str(field.metadata["type"])
        nested = kind.startswith(("struct", "array", "map"))
        found[field.name] = (
            "jsonb" if nested else _TYPES.get(kind, kind.replace("decimal", "numeric"))
        )
    return found


@dataclass(frozen=True, kw_only=True)
class TaskMerge:
    """How a task merges its own rows.

    `guard` locks the job's progress until the task's transaction ends, and finds none if it is not
    as the driver read it: then a later driver or batch may have written newer rows.
    """

    statement: Any
    guard: str
    parameters: tuple[Any, ...]

    def run(self, connection: Any, attempt: int) -> None:
        """Merge. Raises `FencedError`."""
        bound_idleness(connection)
        if connection.execute(self.guard, self.parameters).fetchone() is None:
            raise FencedError("a later driver or batch has written: this task is fenced")
        merge_rows(connection, self.statement, [attempt])


def merge_rows(connection: Any, statement: Any, attempts: list[int]) -> None:
    """Merge the rows of these task attempts. Raises `SinkError` if a key has several."""
    import psycopg

    try:
        connection.execute(statement, (attempts,))
    except psycopg.errors.CardinalityViolation as error:
        raise SinkError(
            "several rows of this batch have the same key: which one is to stay? Name `version`"
            " (the record's offset is one, where a key is always in the same partition), or"
            " aggregate by the key"
        ) from error


def copy_rows(
    frame: DataFrame, conninfo: str, table: str, merge: TaskMerge | None
) -> dict[int, int]:
    """Copy a frame's rows into a table; return the row counts of successful task attempts.

    Without `merge` the table is a staging table, whose column `headrace_attempt` identifies the
    writer of a row: both attempts of a retried task may be there. With `merge` each task stages its
    rows in a temporary table with the same columns, and merges them.

    Raises `SinkAwayError` if a task's server was lost or refused: its rows may be there.
    """
    task = _CopyTask(columns=tuple(frame.columns), conninfo=conninfo, table=table, merge=merge)
    done = frame.mapInArrow(task.run, "attempt bigint, copied bigint, lost string").collect()
    lost = [str(row.lost) for row in done if row.lost is not None]
    if lost:
        raise SinkAwayError(f"PostgreSQL refuses {len(lost)} tasks, the first: {lost[0]}")
    return {int(row.attempt): int(row.copied) for row in done}


@dataclass(frozen=True, kw_only=True)
class _CopyTask:
    """What a task does with its partition. It is pickled to executors."""

    columns: tuple[str, ...]
    conninfo: str
    table: str
    merge: TaskMerge | None

    def run(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Copy the rows; yield the attempt and their number, or why the server was lost.

        Not as an exception: Spark would try the task again at once, or fail the batch.
        """
        import psycopg
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = 0 if context is None else int(context.taskAttemptId())
        copied, lost = 0, None
        try:
            copied = self._copy(batches, attempt)
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            lost = str(error).strip()
        names = ["attempt", "copied", "lost"]
        columns = [pa.array([attempt]), pa.array([copied]), pa.array([lost], pa.string())]
        yield pa.RecordBatch.from_arrays(columns, names)

    def _copy(self, batches: Iterable[Any], attempt: int) -> int:
        """Copy the rows in the task's own transaction; return their number."""
        import psycopg
        from psycopg import sql

        names = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        with psycopg.connect(
            self.conninfo, application_name="headrace task", prepare_threshold=None
        ) as connection:
            target = sql.Identifier(*self.table.split("."))
            if self.merge is not None:
                staging = sql.Identifier(TASK_STAGING)
                connection.execute(
                    sql.SQL(
                        "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS"
                        " SELECT {}, 0::bigint AS {} FROM {} LIMIT 0"
                    ).format(staging, names, sql.Identifier(ATTEMPT), target)
                )
                target = staging
            statement = sql.SQL("COPY {} ({}, {}) FROM STDIN (FORMAT csv)").format(
                target, names, sql.Identifier(ATTEMPT)
            )
            copied = 0
            with connection.cursor() as cursor, cursor.copy(statement) as stream:
                for batch in batches:
                    stream.write(_as_csv(batch, attempt))
                    copied += batch.num_rows
            if self.merge is not None:
                self.merge.run(connection, attempt)
        return copied


def _as_csv(batch: Any, attempt: int) -> memoryview:
    """Return an Arrow batch as CSV, with the attempt as last column. Null is empty, unquoted."""
    import io

    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    marks = pa.repeat(attempt, batch.num_rows)
    rows = pa.table([*batch.columns, marks], names=[*batch.schema.names, ATTEMPT])
    text = io.BytesIO()
    arrow_csv.write_csv(rows, text, arrow_csv.WriteOptions(include_header=False))
    return text.getbuffer()


def staging_prefix(job: str, generation: int, table: str) -> str:
    """Return the common prefix of all staging tables of this generation."""
    identity = f"{job}/{generation}/{table}"
    return f"headrace_staging_{hashlib.sha256(identity.encode()).hexdigest()[:12]}_"


def bound_idleness(connection: Any) -> None:
    """End this transaction if its client leaves it alone: the locks are its successor's then."""
    connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS_MAX}s'")


def drop_staging(connection: Any, prefix: str) -> None:
    """Drop the staging tables whose names begin so, in a transaction."""
    found = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = ANY(current_schemas(false))"
        " AND starts_with(tablename, %s)",
        (prefix,),
    ).fetchall()
    for (name,) in found:
        drop_unless_locked(connection, str(name))


def drop_unless_locked(connection: Any, staging: str) -> None:
    """Drop a staging table, unless a task that hangs is within its COPY: the next driver does."""
    import psycopg
    from psycopg import sql

    with contextlib.suppress(psycopg.errors.LockNotAvailable), connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(staging)))
        # Only this statement may not wait.
        connection.execute("SET LOCAL lock_timeout = DEFAULT")
