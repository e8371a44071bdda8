"""Names of staging tables in PostgreSQL, by which abandoned ones are found.

A staging table belongs to one batch of one driver. It is created while the job's progress row is
locked and the driver's epoch is checked, so none is created after a successor has dropped the old
ones.
"""

from __future__ import annotations

import hashlib
from typing import Any

__all__ = ["drop_staging", "staging_prefix"]


def staging_prefix(job: str, generation: int, table: str) -> str:
    """Return the common prefix of all staging tables of this generation."""
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
