"""Generations of a job's table in PostgreSQL: side by side, compared, swapped in one transaction.

The table that readers use has the rows of one generation, the live one. Another generation's rows
are in `<table>_g<generation>`. A swap renames both tables and records it in their progress rows,
all in one transaction: readers see one or the other. Drivers lock their progress row in each of
their transactions, and continue in the table that it then names.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, LiteralString

from headrace_jobs.progress.offsets import parse_offsets
from headrace_jobs.sinks.generations import (
    Difference,
    OutputGeneration,
    columns_of_one,
    generation_of,
    refuse_others,
    refuse_unwritten,
    seen_by_readers,
)
from headrace_jobs.sinks.postgres_rows import drop_staging, staging_prefix
from headrace_jobs.sinks.postgres_shadow import refuse_bound, take_rights
from headrace_jobs.sinks.postgres_store import (
    check_name,
    connect,
    exists,
    identifier,
    lock_relation,
    progress_table_exists,
    saying_why,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["PostgresGenerations"]

_ROWS: LiteralString = """
SELECT generation, relation, batch, offsets::text, delivery FROM headrace_progress
WHERE job = %s AND output = %s AND relation <> '' ORDER BY generation
"""
_MOVE: LiteralString = """
UPDATE headrace_progress SET relation = %s WHERE job = %s AND output = %s AND generation = %s
"""


# The remaining row fences the generation's drivers, even if its number is used again.
_FORGET: LiteralString = """
UPDATE headrace_progress SET relation = '', epoch = epoch + 1, batch = DEFAULT,
  checkpoint = DEFAULT, offsets = DEFAULT, reset = DEFAULT, updated_at = now()
WHERE job = %s AND output = %s AND generation = %s
"""


@dataclass(frozen=True, kw_only=True)
class PostgresGenerations:
    """The generations of one job in one table."""

    dsn: str
    job: str
    table: str
    key: tuple[str, ...]

    def all(self) -> list[OutputGeneration]:
        """Return every generation that has progress. Raises `SinkError`."""
        with self._connected() as connection:
            return self._all(connection)

    def diff(self, old: int, new: int, *, examples_max: int = 10) -> Difference:
        """Compare two generations, row by row, in one snapshot. Raises `SinkError`."""
        with self._connected() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            found = {each.generation: each for each in self._all(connection)}
            both = {number: self._of(found, number) for number in (old, new)}
            for number, each in both.items():
                refuse_unwritten(self.table, number, each)
            relations = [both[number].output for number in (old, new)]
            columns = [_columns(connection, each) for each in relations]
            # A program with another key has a table of its own.
            if self.key and all({*self.key} <= each for each in columns):
                result = _keyed_difference(connection, relations, self.key, examples_max)
            else:
                result = _difference_of_bags(connection, relations, examples_max)
            columns_old, columns_new = columns_of_one(*columns)
            return replace(result, columns_old=columns_old, columns_new=columns_new)

    def swap(self, generation: int) -> None:
        """Make a generation the one that readers see. Raises `SinkError`."""
        with self._connected() as connection, connection.transaction():
            lock_relation(connection, self.job, self.table, is_shared=False)
            connection.execute(_ROWS + " FOR UPDATE", (self.job, self.table))
            found = {each.generation: each for each in self._all(connection)}
            refuse_others(self.table, self.job, _jobs(connection, self.table))
            new = self._of(found, generation)
            if new.is_live:
                return
            refuse_unwritten(self.table, generation, new)
            live = next((each for each in found.values() if each.is_live), None)
            if live is not None and all(exists(connection, each.output) for each in (live, new)):
                refuse_bound(connection, live.output, new.output)
                take_rights(connection, live.output, new.output)
            if live is not None:
                self._move(connection, live, f"{self.table}_g{live.generation}")
            self._move(connection, new, self.table)

    def discard(self, generation: int) -> None:
        """Discard a shadow, rows and progress; its driver is fenced. Raises `SinkError`."""
        from psycopg import sql

        prefix = staging_prefix(self.job, generation, self.table)
        with self._connected() as connection, connection.transaction():
            lock_relation(connection, self.job, self.table, is_shared=False)
            found = {each.generation: each for each in self._all(connection)}
            doomed = self._of(found, generation)
            if doomed.is_live:
                raise seen_by_readers(self.table, generation)
            connection.execute(_FORGET, (self.job, self.table, generation))
            drop_staging(connection, prefix)
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(identifier(doomed.output)))

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        with connect(self.dsn, "headrace jobs") as connection, saying_why(self.table):
            yield connection

    def _all(self, connection: Any) -> list[OutputGeneration]:
        if not progress_table_exists(connection):
            return []
        rows = connection.execute(_ROWS, (self.job, self.table)).fetchall()
        return [
            OutputGeneration(
                generation=generation,
                output=relation,
                is_live=relation == self.table,
                batch_id=batch,
                offsets=parse_offsets(offsets),
                delivery=delivery,
            )
            for generation, relation, batch, offsets, delivery in rows
        ]

    def _of(self, found: dict[int, OutputGeneration], generation: int) -> OutputGeneration:
        return generation_of(found, generation, place=self.table, job=self.job)

    def _move(self, connection: Any, which: OutputGeneration, name: str) -> None:
        from psycopg import sql

        check_name(name)
        connection.execute(
            # A generation without a batch yet has no table.
            sql.SQL("ALTER TABLE IF EXISTS {} RENAME TO {}").format(
                identifier(which.output), sql.Identifier(name.rpartition(".")[2])
            )
        )
        connection.execute(_MOVE, (name, self.job, self.table, which.generation))


def _jobs(connection: Any, table: str) -> set[str]:
    """Return the jobs that write into a table."""
    found = connection.execute(
        "SELECT job FROM headrace_progress WHERE relation = %s", (table,)
    ).fetchall()
    return {job for (job,) in found}


def _columns(connection: Any, relation: str) -> set[str]:
    """Return the columns of a table."""
    found = connection.execute(
        "SELECT attname FROM pg_attribute"
        " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
        (identifier(relation).as_string(),),
    ).fetchall()
    return {name for (name,) in found}


def _keyed_difference(
    connection: Any, relations: Sequence[str], key: Sequence[str], examples_max: int
) -> Difference:
    from psycopg import sql

    joined = sql.SQL("{} AS old FULL JOIN {} AS new ON {}").format(
        *map(identifier, relations),
        sql.SQL(" AND ").join(
            sql.SQL("old.{0} = new.{0}").format(sql.Identifier(each)) for each in key
        ),
    )
    has_old, has_new = (
        sql.SQL("{} IS NOT NULL").format(sql.Identifier(side, key[0])) for side in ("old", "new")
    )
    counted = sql.SQL(
        "SELECT count(*) FILTER (WHERE NOT {new}), count(*) FILTER (WHERE NOT {old}),"
        " count(*) FILTER (WHERE {old} AND {new} AND to_jsonb(old) <> to_jsonb(new)),"
        " count(*) FILTER (WHERE to_jsonb(old) = to_jsonb(new)) FROM {joined}"
    ).format(old=has_old, new=has_new, joined=joined)
    only_old, only_new, changed, same = connection.execute(counted).fetchone()
    shown = sql.SQL(
        "SELECT to_jsonb(old)::text, to_jsonb(new)::text FROM {}"
        " WHERE to_jsonb(old) IS DISTINCT FROM to_jsonb(new) LIMIT {}"
    ).format(joined, examples_max)
    examples = connection.execute(shown).fetchall()
    return Difference(
        only_old=only_old,
        only_new=only_new,
        changed=changed,
        same=same,
        examples=tuple((old, new) for old, new in examples),
    )


def _difference_of_bags(connection: Any, relations: Sequence[str], examples_max: int) -> Difference:
    """Compare tables without a key: duplicate rows count."""
    from psycopg import sql

    old, new = (
        sql.SQL("SELECT to_jsonb(t)::text AS row FROM {} AS t").format(identifier(each))
        for each in relations
    )
    missing = sql.SQL("SELECT row FROM ({} EXCEPT ALL {}) AS difference")
    only_old = connection.execute(missing.format(old, new)).fetchall()
    only_new = connection.execute(missing.format(new, old)).fetchall()
    total = connection.execute(sql.SQL("SELECT count(*) FROM ({}) AS t").format(old)).fetchone()[0]
    examples = [(row, None) for (row,) in only_old] + [(None, row) for (row,) in only_new]
    return Difference(
        only_old=len(only_old),
        only_new=len(only_new),
        changed=0,
        same=total - len(only_old),
        examples=tuple(examples[:examples_max]),
    )
