"""A job's progress in PostgreSQL, in the database with its rows.

Owns one connection of the driver and the table `headrace_progress`: a row for each (job,
generation, table). A writer of an output's rows first locks the progress row, compares the epoch,
and stores the batch's offsets in the same transaction. So there is one writer at a time, and a
driver that was replaced finds a newer epoch.

After a lost answer to COMMIT the outcome is unknown. `transact` asks again on a new connection:
locking the row waits until the server has ended that transaction, and then the row shows its
outcome.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import TYPE_CHECKING, Any, LiteralString

import structlog

from headrace_jobs import outages
from headrace_jobs.outages import Outage
from headrace_jobs.progress.offsets import format_offsets, parse_offsets
from headrace_jobs.progress.stored import (
    NO_BATCH,
    FencedError,
    StoredProgress,
    Verdict,
    judge,
)
from headrace_jobs.sinks.generations import mixing
from headrace_jobs.sinks.postgres_rows import TaskMerge, bound_idleness, drop_unless_locked
from headrace_jobs.sinks.protocol import SinkAwayError, SinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace_jobs.progress.stored import Batch
    from headrace_jobs.sinks.protocol import Run

__all__ = [
    "PROGRESS_TABLE",
    "PostgresStore",
    "check_name",
    "connect",
    "escaped",
    "exists",
    "identifier",
    "lock_relation",
    "progress_table_exists",
    "saying_why",
]

PROGRESS_TABLE = "headrace_progress"
_LOSES = "it ends the connection with each attempt to write the batch"
# Detects a silent loss of the server (a cut cable) within this time.
_TCP_TIMEOUT_MS = 20_000
# PostgreSQL cuts a longer identifier without an error (NAMEDATALEN).
_NAME_BYTES_MAX = 63
# An arbitrary unused number: `CREATE TABLE IF NOT EXISTS` is not safe when run concurrently.
_ADVISORY_LOCK = 0x48454144

_CREATE: LiteralString = """
CREATE TABLE IF NOT EXISTS headrace_progress (
  job text NOT NULL,
  generation integer NOT NULL,
  output text NOT NULL,
  -- The table that holds this generation's rows: another one than `output` while it is a shadow,
  -- none of a generation that was thrown away, of which the epoch is left.
  relation text NOT NULL,
  epoch bigint NOT NULL,
  batch bigint NOT NULL DEFAULT -1,
  checkpoint text NOT NULL DEFAULT '',
  offsets jsonb NOT NULL DEFAULT '{}',
  reset text NOT NULL DEFAULT '',
  topics jsonb NOT NULL DEFAULT '{}',
  delivery text NOT NULL DEFAULT '',
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (job, generation, output)
)
"""
_CLAIM: LiteralString = """
INSERT INTO headrace_progress AS mine (job, generation, output, relation, epoch, delivery)
VALUES (%s, %s, %s, %s, 1, %s)
ON CONFLICT (job, generation, output) DO UPDATE
SET epoch = mine.epoch + 1, delivery = excluded.delivery, updated_at = now(),
  relation = CASE mine.relation WHEN '' THEN excluded.relation ELSE mine.relation END
RETURNING relation, epoch, batch, checkpoint, offsets::text, reset, to_jsonb(mine) ->> 'topics'
"""
# Through the row, which may be one of a table that was made before there was such a column.
_READ: LiteralString = """
SELECT relation, epoch, batch, checkpoint, offsets::text, reset, to_jsonb(mine) ->> 'topics'
FROM headrace_progress AS mine WHERE job = %s AND generation = %s AND output = %s
"""
_GUARD: LiteralString = f"""
{_READ} AND relation = %s AND epoch = %s AND batch = %s AND checkpoint = %s FOR SHARE
"""
_STORE: LiteralString = """
UPDATE headrace_progress
SET batch = %s, checkpoint = %s, offsets = %s, reset = %s, updated_at = now()
WHERE job = %s AND generation = %s AND output = %s
"""
_STORE_TOPICS: LiteralString = _STORE.replace("reset = %s,", "reset = %s, topics = %s,")
_HAS_TOPICS: LiteralString = """
SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('headrace_progress')
  AND attname = 'topics' AND NOT attisdropped)
"""
_ADD_TOPICS: LiteralString = """
ALTER TABLE headrace_progress ADD COLUMN topics jsonb NOT NULL DEFAULT '{}'
"""


def connect(dsn: str, name: str) -> Any:
    """Connect, in autocommit mode. `dsn` is libpq's; the `PG…` environment completes it.

    Raises `SinkError` with instructions, `SinkAwayError` if the server lets nobody in.
    """
    try:
        import psycopg
    except ImportError as error:
        raise SinkError("PostgreSQL needs psycopg: pip install 'headrace[spark]'") from error
    try:
        return psycopg.connect(
            dsn,
            autocommit=True,
            connect_timeout=10,
            application_name=name,
            tcp_user_timeout=_TCP_TIMEOUT_MS,
            # A pooler may give each transaction another session, which has not prepared it.
            prepare_threshold=None,
            keepalives_idle=10,
        )
    except psycopg.Error as error:
        is_away = isinstance(error, psycopg.OperationalError)
        kind = SinkAwayError if is_away else SinkError
        raise kind(f"PostgreSQL does not let us in: {_brief(error)}") from error


class PostgresStore:
    """The progress row of one (job, generation, table), and the driver's connection to it."""

    def __init__(self, dsn: str, run: Run, output: str) -> None:
        """Connect and take the next epoch. Raises `SinkError`."""
        self._name = f"headrace {run.job}"
        self._dsn = dsn
        self._key = (run.job, run.generation, output)
        self._connection = connect(dsn, self._name)
        info = self._connection.info
        self._server = f"PostgreSQL at {info.host}, port {info.port},"
        try:
            with saying_why(PROGRESS_TABLE):
                self.relation, self.stored = self._claim(run, output)
                self._refuse_lost_table(output)
        except Exception:
            self._connection.close()
            raise
        self.epoch = self.stored.epoch

    def _claim(self, run: Run, output: str) -> tuple[str, StoredProgress]:
        relation = f"{output}_g{run.generation}" if run.is_shadow else output
        check_name(relation)
        with self._transaction():
            self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_LOCK,))
            # Who may not create tables may use one that is there.
            if not progress_table_exists(self._connection):
                self._connection.execute(_CREATE)
            self._has_topics = self._add_topics()
            self._refuse_mixing(run, output, relation)
            claimed = self._connection.execute(
                _CLAIM, (*self._key, relation, run.delivery.value)
            ).fetchone()
        return _progress(claimed)

    def _add_topics(self) -> bool:
        """Whether the table has a column for the topics' ids; add it to a former version's."""
        import psycopg

        if self._connection.execute(_HAS_TOPICS).fetchone()[0]:
            return True
        try:
            with self._connection.transaction():
                # Batches hold the table's lock: whoever waits for them stops those behind it.
                self._connection.execute("SET LOCAL lock_timeout = '2s'")
                self._connection.execute(_ADD_TOPICS)
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable) as error:
            structlog.get_logger(__name__).warning(
                "the ids of topics are not stored: a topic that was made again is not noticed where"
                " the checkpoint is lost, too",
                error=_brief(error),
                instead=f"as the owner of {PROGRESS_TABLE}: {_ADD_TOPICS.strip()}",
            )
            return False
        # Only this statement may not wait.
        self._connection.execute("SET LOCAL lock_timeout = DEFAULT")
        return True

    def _refuse_mixing(self, run: Run, output: str, relation: str) -> None:
        """Refuse a new generation that would write among rows that are not its own."""
        rows = self._connection.execute(
            "SELECT generation, relation FROM headrace_progress"
            " WHERE job = %s AND output = %s AND relation <> ''",
            (run.job, output),
        ).fetchall()
        if any(generation == run.generation for generation, _ in rows):
            return
        live = [generation for generation, place in rows if place == output]
        if live and not run.is_shadow:
            raise mixing(f"table {output}", "rows", live[0], run.generation)
        if run.is_shadow and self._has_rows(relation):
            raise SinkError(
                f"table {relation} has rows that belong to no generation of {run.job}: drop it, or"
                " begin a generation of another number"
            )

    def _refuse_lost_table(self, output: str) -> None:
        """Refuse to begin an empty table in place of one that had batches and is gone."""
        if self.stored.batch_id == NO_BATCH or exists(self._connection, self.relation):
            return
        raise SinkError(
            f"table {self.relation} is gone, and {PROGRESS_TABLE} says that batch"
            f" {self.stored.batch_id} is in it. Restore the table; or begin the next --generation"
            f" with --shadow, which computes {output} again, and swap it in; or create the table"
            " yourself to go on without the rows that it had"
        )

    def _has_rows(self, relation: str) -> bool:
        from psycopg import sql

        if not exists(self._connection, relation):
            return False
        statement = sql.SQL("SELECT EXISTS (TABLE {})").format(identifier(relation))
        return bool(self._connection.execute(statement).fetchone()[0])

    @contextlib.contextmanager
    def keep_relation(self) -> Iterator[str]:
        """Prevent a swap while tasks write into the generation's present table.

        By a transaction's lock: a pooler may leave a session's to somebody else.
        """
        with self._connection.transaction():
            self._connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            lock_relation(self._connection, self._key[0], self._key[2], is_shared=True)
            self._take(self._connection.execute(_READ, self._key).fetchone())
            yield self.relation

    def task_merge(self, statement: Any) -> TaskMerge:
        """Return a task's merge, for as long as this driver has stored no later batch."""
        place = (self.relation, self.epoch, self.stored.batch_id, self.stored.checkpoint)
        return TaskMerge(statement=statement, guard=_GUARD, parameters=(*self._key, *place))

    @property
    def conninfo(self) -> str:
        """The executors' connection string: the driver's whole environment, password included."""
        from psycopg.conninfo import make_conninfo

        info = self._connection.info
        return make_conninfo(**(info.get_parameters() | {"password": info.password or None}))

    def refresh(self) -> None:
        """Read the row again. Raises `FencedError` if the generation was discarded.

        A connection that was lost since the last batch (a restart, an idle timeout) is made anew.
        Raises `AwayError` if the server stays down.
        """
        import psycopg

        outage = self.outage()
        while True:
            try:
                self._take(self._connection.execute(_READ, self._key).fetchone())
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                outage.wait(_brief(error))
                self._reconnect(outage)
            else:
                return

    def outage(self) -> Outage:
        """Return how long the server is waited for, from its next failure on."""
        return Outage(self._server, outages.OUTAGE_SECONDS_MAX)

    def rewind(self, progress: StoredProgress) -> None:
        """Store where the next batch must start: after a reset, or if nothing was stored."""
        with self._transaction():
            self._lock()
            if self.stored.epoch != self.epoch:
                raise FencedError(f"another driver has epoch {self.stored.epoch}")
            self._store(progress)

    def transact(self, batch: Batch, work: Callable[[Any, str], None] | None = None) -> Verdict:
        """Do the work and store the batch's progress, both or neither. Retries if in doubt.

        `work` gets the connection and the table's name, inside the transaction. Raises
        `FencedError`, `GapError`, exceptions of `work`, and `AwayError` if the server stays down,
        or keeps refusing (its disk is full, one of its timeouts is too short) or hanging up.
        """
        import psycopg

        outage = self.outage()
        while True:
            try:
                return self._transact_once(batch, work)
            except (
                psycopg.OperationalError,
                psycopg.InterfaceError,
                psycopg.errors.IdleInTransactionSessionTimeout,
            ) as error:
                # Refused, lost on the way, or done with a lost answer: the row will show it.
                does = _LOSES if error.sqlstate is None else "it refuses the batch"
                outage.wait(f"{does}: {_brief(error)}")
                self._reconnect(outage)

    def once(self, work: Callable[[Any, str], None]) -> None:
        """Do the work in a transaction, unless this driver is fenced. No retries."""
        with self._transaction():
            self._lock()
            if self.stored.epoch != self.epoch:
                raise FencedError(f"another driver has epoch {self.stored.epoch}")
            work(self._connection, self.relation)

    def drop(self, staging: str) -> None:
        """Drop a staging table. Where the server is gone just now, the next driver does."""
        import psycopg

        with contextlib.suppress(psycopg.OperationalError, psycopg.InterfaceError):
            drop_unless_locked(self._connection, staging)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _transact_once(self, batch: Batch, work: Callable[[Any, str], None] | None) -> Verdict:
        with self._transaction():
            self._lock()
            verdict = judge(self.stored, self.epoch, batch)
            if verdict is Verdict.SKIP:
                return verdict
            if work is not None:
                work(self._connection, self.relation)
            after = self.stored.after(batch)
            self._store(after)
        self.stored = after
        return verdict

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._connection.transaction():
            bound_idleness(self._connection)
            yield

    def _lock(self) -> None:
        self._take(self._connection.execute(_READ + " FOR UPDATE", self._key).fetchone())

    def _take(self, row: tuple[Any, ...] | None) -> None:
        # There is no row: a user deleted it.
        relation, stored = ("", StoredProgress(epoch=0)) if row is None else _progress(row)
        if not relation:
            raise FencedError(
                f"the progress of {self._key} is gone: the generation was thrown away"
            )
        self.relation, self.stored = relation, stored

    def _store(self, progress: StoredProgress) -> None:
        values = (progress.batch_id, progress.checkpoint, format_offsets(progress.offsets))
        topics = (json.dumps(dict(progress.topics)),) if self._has_topics else ()
        statement = _STORE_TOPICS if topics else _STORE
        self._connection.execute(statement, (*values, progress.reset, *topics, *self._key))

    def _reconnect(self, outage: Outage) -> None:
        self._connection.close()
        while True:
            try:
                self._connection = connect(self._dsn, self._name)
            except SinkAwayError as error:
                outage.wait(error)
            else:
                return


def identifier(name: str) -> Any:
    """Return a table's name, with its schema if it has one, for use in a statement."""
    from psycopg import sql

    return sql.Identifier(*name.split("."))


def escaped(name: str) -> str:
    """Return a name for an identifier in a statement that has parameters: `%` begins one."""
    return name.replace("%", "%%")


def exists(connection: Any, relation: str) -> bool:
    """Whether there is a table (or view) of this name."""
    name = identifier(relation).as_string()
    return connection.execute("SELECT to_regclass(%s)", (name,)).fetchone()[0] is not None


@contextlib.contextmanager
def saying_why(table: str) -> Iterator[None]:
    """Raise what the server refuses as a `SinkError` that says what to do."""
    import psycopg

    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise SinkError(
            f"PostgreSQL does not let us use {table}: {_brief(error)}. Its user needs SELECT,"
            f" INSERT and UPDATE on {PROGRESS_TABLE} and on the job's tables, and CREATE on the"
            " schema unless these exist (exactly once stages rows in tables there)"
        ) from error
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise SinkAwayError(f"PostgreSQL refuses: {_brief(error)}") from error
    except psycopg.Error as error:
        raise SinkError(f"PostgreSQL refuses: {_brief(error)}") from error


def check_name(name: str) -> None:
    """Raise `SinkError` if PostgreSQL would cut the name, and two tables could be one."""
    for part in name.split("."):
        size = len(part.encode())
        if size > _NAME_BYTES_MAX:
            raise SinkError(
                f"the name {part!r} has {size} bytes: PostgreSQL cuts one after {_NAME_BYTES_MAX}."
                " Choose a shorter table name; a shadow's is longer by _g and its number"
            )


def progress_table_exists(connection: Any) -> bool:
    """Whether any job keeps progress in this database."""
    return exists(connection, PROGRESS_TABLE)


def lock_relation(connection: Any, job: str, output: str, *, is_shared: bool) -> None:
    """Lock which table has which generation for as long as the transaction lasts.

    Writers share the lock, a swap does not.
    """
    number = int.from_bytes(hashlib.sha256(f"{job}/{output}".encode()).digest()[:8], signed=True)
    function = "pg_advisory_xact_lock_shared" if is_shared else "pg_advisory_xact_lock"
    connection.execute(f"SELECT {function}(%s)", (number,))


def _brief(error: Exception) -> str:
    return str(error).strip()


def _progress(row: tuple[Any, ...]) -> tuple[str, StoredProgress]:
    relation, epoch, batch, checkpoint, offsets, reset, topics = row
    positions = parse_offsets(offsets)
    progress = StoredProgress(
        epoch=epoch,
        batch_id=batch,
        checkpoint=checkpoint,
        offsets=positions,
        reset=reset,
        # A generation that was thrown away has no offsets, and left its ids.
        topics=json.loads(topics or "{}") if positions else {},
    )
    return relation, progress
