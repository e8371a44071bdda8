"""Names of staging tables in PostgreSQL, by which those that nobody needs any more are found.

A staging table is one batch's, of one driver. It is made while the job's progress row is locked and
the driver's epoch compared, so none is made after a successor has cleared away.
"""

from __future__ import annotations

import hashlib
from typing import Any

__all__ = ["drop_staging", "staging_prefix"]


def staging_prefix(job: str, generation: int, table: str) -> str:
    """Return what the names of all staging tables of this generation begin with."""
    identity = f"{job}/{generation}/{table}"
    return f"headrace_staging_{hashlib.sha256(identity.encode()).hexdigest()[:12]}_"


def drop_staging(connection: Any, prefix: str) -> None:
    """Drop the staging tables whose names begin so."""
    from psycopg import sql

    found = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = ANY(current_schemas(false))"
        " AND starts_with(tablename, %s)",
        (prefix,),
    ).fetchall()
    for (name,) in found:
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(str(name))))
