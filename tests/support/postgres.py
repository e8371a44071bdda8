"""A real PostgreSQL from Debian's package, in a temporary folder, on loopback, as a plain user."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.processes import LOOPBACK, free_port, wait_until

_PLACES = ("/usr/lib/postgresql",)
_START_SECONDS = 60


@contextlib.contextmanager
def running_postgres() -> Iterator["PostgresServer"]:
    """Run a server meanwhile; where it is not installed, the test is skipped, and says so."""
    binaries = postgres_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL IS MISSING: apt-get install postgresql; NOT TESTED")
    server = PostgresServer(binaries)
    try:
        server.start()
        yield server
    finally:
        server.close()


def postgres_binaries() -> Path | None:
    """Return the folder of the newest PostgreSQL that is installed; None when there is none."""
    found = shutil.which("initdb")
    if found:
        return Path(found).parent
    versions = [path for place in _PLACES for path in Path(place).glob("*/bin/initdb")]
    return max(versions, default=Path("/"), key=_version).parent if versions else None


def _version(path: Path) -> float:
    return float(path.parts[-3])


class PostgresServer:
    """One server. It refuses to run as root, so root runs it as nobody."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self.as_user: dict[str, Any] = {}
        self.directory = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
        if os.getuid() == 0:
            user = pwd.getpwnam("nobody")
            self.as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(self.directory, user.pw_uid, user.pw_gid)
        self.port = free_port()
        self.data = self.directory / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._run(
            "initdb", "-D", str(self.data), "-U", "headrace", "-A", "trust", "-N", "-E", "UTF8"
        )

    @property
    def dsn(self) -> str:
        return f"host={LOOPBACK} port={self.port} user=headrace dbname=postgres"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        command = [str(self._binaries / "postgres"), "-D", str(self.data), "-h", LOOPBACK]
        command += ["-p", str(self.port), "-k", "", "-c", "fsync=off"]
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=self.directory, **self.as_user
            )
        wait_until(self._answers, _START_SECONDS, "an answer from PostgreSQL")

    def own(self, path: Path) -> Path:
        """Give a path to the user that the server runs as."""
        if self.as_user:
            os.chown(path, self.as_user["user"], self.as_user["group"])
        return path

    def crash(self) -> None:
        """End without a checkpoint, as a killed server does: its next start replays its log."""
        self._run("pg_ctl", "-D", str(self.data), "-m", "immediate", "-w", "stop")
        if self._process is not None:
            self._process.wait(30)
            self._process = None

    def close(self) -> None:
        if self.is_running:
            self.crash()
        shutil.rmtree(self.directory, ignore_errors=True)

    def query(self, statement: str) -> list[tuple]:
        """Run a statement; returns its rows, if it has any."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            return self.query("SELECT 1") == [(1,)]
        return False

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._binaries / program), *arguments],
            check=True,
            capture_output=True,
            cwd=self.directory,
            **self.as_user,
        )


@contextlib.contextmanager
def running_pooler(postgres: PostgresServer) -> Iterator[str]:
    """Run PgBouncer before a server, a session for each transaction; yields its dsn."""
    program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    if not Path(program).exists():
        pytest.skip("PGBOUNCER IS MISSING: apt-get install pgbouncer; NOT TESTED")
    port = free_port()
    settings = postgres.directory / f"pgbouncer-{port}.ini"
    settings.write_text(
        f"[databases]\n* = host={LOOPBACK} port={postgres.port} user=headrace\n"
        f"[pgbouncer]\nlisten_addr = {LOOPBACK}\nlisten_port = {port}\nunix_socket_dir =\n"
        "auth_type = any\npool_mode = transaction\ndefault_pool_size = 4\n"
    )
    postgres.own(settings)
    with (postgres.directory / "pgbouncer.log").open("ab") as log:
        process = subprocess.Popen(
            [program, str(settings)], stdout=log, stderr=subprocess.STDOUT, **postgres.as_user
        )
    dsn = postgres.dsn.replace(f"port={postgres.port}", f"port={port}")
    try:
        wait_until(lambda: _lets_in(dsn), _START_SECONDS, "an answer from PgBouncer")
        yield dsn
    finally:
        process.terminate()
        process.wait(30)


def _lets_in(dsn: str) -> bool:
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(dsn) as connection:
        return connection.execute("SELECT 1").fetchone() == (1,)
    return False
