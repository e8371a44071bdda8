"""Writes results to a PostgreSQL table, exactly once: rows and progress in one transaction.

Executors COPY a batch's rows into a staging table, each task attempt in a separate transaction.
Then the driver, in one transaction, locks the job's progress row, compares the epoch, skips a batch
that is already there, merges the rows staged by successful tasks, and stores the batch's offsets. A
batch is there whole or not at all, whichever process is killed.

With a `key` rows are merged (the row of a key is replaced), without one they are appended.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_jobs.delivery import Delivery
from headrace_jobs.progress.stored import Verdict, judge
from headrace_jobs.sinks.postgres_generations import PostgresGenerations
from headrace_jobs.sinks.postgres_rows import (
    ATTEMPT,
    TASK_STAGING,
    column_types,
    copy_rows,
    drop_staging,
    merge_rows,
    portable,
    staging_prefix,
    unfit_key,
    unfit_values,
)
from headrace_jobs.sinks.postgres_shadow import make_like
from headrace_jobs.sinks.postgres_store import (
    PostgresStore,
    escaped,
    exists,
    identifier,
    saying_why,
)
from headrace_jobs.sinks.protocol import SinkAwayError, SinkError
from headrace_jobs.sinks.unfit import first_reason, is_null

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headrace_jobs.progress.stored import Batch, StoredProgress
    from headrace_jobs.sinks.protocol import Run

__all__ = ["PostgresTable", "PostgresWriter"]


@dataclass(frozen=True, kw_only=True)
class PostgresTable:
    """A table, in the search path or as `schema.table`. It is made when it is not there.

    `dsn` is libpq's (`host=db dbname=shop`, or a URL); missing parts come from `PGHOST`, `PGUSER`,
    `PGPASSWORD`, `PGPASSFILE` and the like, on the driver. `key`: the columns of a unique index; a
    row replaces the one with the same key. `version`: a column whose greater value wins, in
    whatever order rows come, and null is less than any; without it a batch may have each key only
    once, or it is refused.
    """

    table: str
    key: tuple[str, ...] = ()
    version: str | None = None
    dsn: str = ""

    def describe(self) -> str:
        """Return `PostgreSQL table NAME`."""
        return f"PostgreSQL table {self.table}"

    def refusal(self, delivery: Delivery, output_mode: str) -> str | None:  # noqa: ARG002 - every delivery holds
        """Return why the combination cannot hold."""
        if output_mode == "update" and not self.key:
            return "output mode update writes a row again when it changed: name its key"
        if self.version is not None and not self.key:
            return "a version without a key compares nothing"
        return None

    @property
    def wants_each_key_once(self) -> bool:
        """Whether it refuses a batch with several rows of a key."""
        return bool(self.key) and self.version is None

    def output_generations(self, job: str) -> PostgresGenerations:
        """Return the job's generations in this table."""
        return PostgresGenerations(dsn=self.dsn, job=job, table=self.table, key=self.key)

    def open(self, run: Run) -> PostgresWriter:
        """Connect and take the next epoch. Raises `SinkError`."""
        return PostgresWriter(self, run)


class PostgresWriter:
    """A table that is open for one driver."""

    keeps_progress = True

    def __init__(self, sink: PostgresTable, run: Run) -> None:
        """Connect, take the next epoch, and drop the staging tables of earlier drivers."""
        self._sink = sink
        self._delivery = run.delivery
        self._store = PostgresStore(sink.dsn, run, sink.table)
        self._prefix = staging_prefix(run.job, run.generation, sink.table)
        self._is_made = False
        self._attempts = itertools.count()
        with saying_why(sink.table):
            self._store.once(lambda connection, _: drop_staging(connection, self._prefix))

    def describe(self) -> str:
        """Return what it is, for messages."""
        return self._sink.describe()

    @property
    def stored(self) -> StoredProgress:
        """The progress in the database when it was last read."""
        return self._store.stored

    @property
    def can_rewind(self) -> bool:
        """Whether rows that are written again replace themselves."""
        return bool(self._sink.key)

    def rewind(self, progress: StoredProgress) -> None:
        """Store where the next batch must start."""
        with saying_why(self._sink.table):
            self._store.rewind(progress)

    def unfit(self, frame: DataFrame) -> Column | None:
        """Return why PostgreSQL can never take a row."""
        key = self._sink.key
        return first_reason([*is_null(key), *unfit_key(frame, key), *unfit_values(frame)])

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """Write a batch. Raises `FencedError`, `GapError`, `SinkError`, `AwayError`."""
        import psycopg

        outage = self._store.outage()
        while True:
            try:
                self._write(frame, batch)
            except (psycopg.OperationalError, psycopg.InterfaceError, SinkAwayError) as error:
                if self._delivery is Delivery.AT_MOST_ONCE:
                    raise SinkError(f"{error} (at most once, nothing is tried again)") from error
                # As far as it came it is begun again: the progress says whether it came to its end.
                outage.wait(str(error).strip())
            else:
                return

    def _write(self, frame: DataFrame, batch: Batch) -> None:
        self._store.refresh()
        if judge(self._store.stored, self._store.epoch, batch) is Verdict.SKIP:
            return
        frame = portable(frame)
        if not self._is_made:
            self._make_table(frame)
        if self._delivery is Delivery.AT_MOST_ONCE:
            if self._store.transact(batch) is Verdict.SKIP:
                return
            self._stage_and_merge(frame, batch, None)
        elif self._delivery is Delivery.AT_LEAST_ONCE:
            self._write_by_tasks(frame)
            self._store.transact(batch)
        else:
            self._stage_and_merge(frame, batch, batch)

    def close(self) -> None:
        """Close the connection."""
        self._store.close()

    def _write_by_tasks(self, frame: DataFrame) -> None:
        """Let each task merge its own rows: nothing is staged, and a retry may repeat them."""
        with self._store.keep_relation() as relation:
            merge = self._merge(TASK_STAGING, relation, frame.columns)
            copy_rows(frame, self._store.conninfo, relation, self._store.task_merge(merge))

    def _stage_and_merge(self, frame: DataFrame, batch: Batch, progress: Batch | None) -> None:
        """Stage the rows, then merge them, with the batch's progress if there is one."""
        from psycopg import sql

        # Of its own in each attempt: a task of the last one may hang in its COPY.
        attempt = next(self._attempts)
        staging = f"{self._prefix}{self._store.epoch}_{batch.batch_id}_{attempt}"
        name = sql.Identifier(staging)
        columns = sql.SQL(", ").join(map(sql.Identifier, frame.columns))
        drop = sql.SQL("DROP TABLE IF EXISTS {}").format(name)
        # Unlogged: after a crash of the server the replay stages the rows again.
        create = sql.SQL("CREATE UNLOGGED TABLE {} AS SELECT {}, 0::bigint AS {} FROM {} LIMIT 0")

        def make(connection: Any, relation: str) -> None:
            connection.execute(drop)
            connection.execute(
                create.format(name, columns, sql.Identifier(ATTEMPT), identifier(relation))
            )

        self._store.once(make)
        attempts = copy_rows(frame, self._store.conninfo, staging, None)
        expected = sum(attempts.values())

        def merge(connection: Any, relation: str) -> None:
            counted = connection.execute(
                sql.SQL("SELECT count(*) FROM {} WHERE {} = ANY(%s)").format(
                    name, sql.Identifier(ATTEMPT)
                ),
                (list(attempts),),
            ).fetchone()[0]
            if counted != expected:
                raise SinkAwayError(
                    f"{expected} rows were staged and {counted} are there: the server crashed"
                    " meanwhile"
                )
            if expected:
                statement = self._merge(staging, relation, frame.columns)
                merge_rows(connection, statement, list(attempts))

        if progress is not None:
            self._store.transact(progress, merge)
        else:
            self._store.once(merge)
        self._store.drop(staging)

    def _merge(self, staging: str, relation: str, columns: list[str]) -> Any:
        """Return the statement that merges rows of successful attempts, its only parameter."""
        from psycopg import sql

        columns = [escaped(each) for each in columns]
        keys = [escaped(each) for each in self._sink.key]
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        key = sql.SQL(", ").join(map(sql.Identifier, keys))
        distinct: sql.Composable = sql.SQL("")
        order: sql.Composable = sql.SQL("")
        conflict: sql.Composable = sql.SQL("")
        if self._sink.key:
            rest = [each for each in columns if each not in keys]
            assignments = sql.SQL(", ").join(
                sql.SQL("{0} = excluded.{0}").format(sql.Identifier(each)) for each in rest
            )
            action = sql.SQL("DO UPDATE SET {}").format(assignments)
            conflict = sql.SQL("ON CONFLICT ({}) {}").format(
                key, action if rest else sql.SQL("DO NOTHING")
            )
            if self._sink.version is not None:
                version = sql.Identifier(escaped(self._sink.version))
                distinct = sql.SQL("DISTINCT ON ({})").format(key)
                order = sql.SQL("ORDER BY {}, {} DESC NULLS LAST").format(key, version)
                conflict += sql.SQL(" WHERE mine.{0} IS NULL OR mine.{0} <= excluded.{0}").format(
                    version
                )
        return sql.SQL(
            "INSERT INTO {} AS mine ({}) SELECT {} {} FROM {} WHERE {} = ANY(%s) {} {}"
        ).format(
            identifier(escaped(relation)),
            names,
            distinct,
            names,
            sql.Identifier(staging),
            sql.Identifier(ATTEMPT),
            order,
            conflict,
        )

    def _make_table(self, frame: DataFrame) -> None:
        """Create the table if it is missing, and check that an existing one can take the rows."""
        from psycopg import sql

        kinds = column_types(frame)
        columns = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))
            for name, kind in kinds.items()
        ]
        if self._sink.key:
            key = sql.SQL(", ").join(map(sql.Identifier, self._sink.key))
            columns.append(sql.SQL("PRIMARY KEY ({})").format(key))
        create = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})")

        def make(connection: Any, relation: str) -> None:
            # By its present name: a swap or a discard may have happened meanwhile. Asked first:
            # who may not create tables may write into one that is there.
            if exists(connection, relation):
                return
            live = self._sink.table
            is_shadow = relation != live
            if not is_shadow or not make_like(connection, relation, live, kinds, self._sink.key):
                connection.execute(create.format(identifier(relation), sql.SQL(", ").join(columns)))

        with saying_why(self._sink.table):
            self._store.once(make)
        self._is_made = True
