"""Makes a shadow's table like the live one, so that readers see another table's rows and no more.

A swap renames tables. Whatever belongs to a table by its number and not by its name stays where it
is: what `CREATE TABLE … (LIKE …)` copies is there from the shadow's beginning; owner, rights and
row security follow at each swap; what cannot follow (views, triggers, foreign keys, publications)
is named, and the swap refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple

from headrace_jobs.sinks.postgres_store import identifier
from headrace_jobs.sinks.protocol import SinkError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["make_like", "refuse_bound", "take_rights"]

_CANONICAL = {
    "timestamptz": "timestamp with time zone",
    "timestamp": "timestamp without time zone",
}
# Types of columns that may be a job's own choice, and what each holds besides its own values. Any
# other type is the user's, and so is text, which holds everything.
_HOLDS: dict[str, tuple[str, ...]] = {
    "boolean": (),
    "smallint": (),
    "integer": ("smallint",),
    "bigint": ("smallint", "integer"),
    "real": ("smallint",),
    "double precision": ("smallint", "integer", "real"),
    "bytea": (),
    "jsonb": ("text",),
    "date": ("text",),
    "timestamp with time zone": ("text", "date"),
    "timestamp without time zone": ("text", "date"),
}

_COLUMNS: LiteralString = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
"""
_HAS_KEY: LiteralString = """
SELECT EXISTS (
  SELECT FROM pg_index AS i
  WHERE indrelid = %s::regclass AND indisunique AND indpred IS NULL AND indexprs IS NULL AND %s = (
    SELECT array_agg(attname::text ORDER BY attname::text COLLATE "C") FROM pg_attribute
    WHERE attrelid = indrelid AND attnum = ANY((indkey::int2[])[0:indnkeyatts - 1])
  )
)
"""
_IS_TABLE: LiteralString = """
SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass(%s) AND relkind IN ('r', 'p'))
"""
_TABLE: LiteralString = """
SELECT pg_get_userbyid(relowner), relrowsecurity, relforcerowsecurity
FROM pg_class WHERE oid = %s::regclass
"""
# Without those of the owner, who has them all. No name is PUBLIC's, no column the whole table's.
_RIGHTS: LiteralString = """
SELECT CASE grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(grantee) END, privilege_type,
  is_grantable, name
FROM (
  SELECT relowner, NULL AS name, relacl AS acl FROM pg_class WHERE oid = %(table)s::regclass
  UNION ALL
  SELECT relowner, attname::text, attacl FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid
  WHERE attrelid = %(table)s::regclass AND NOT attisdropped
) AS of_all, aclexplode(acl)
WHERE grantee <> relowner
"""
_POLICIES: LiteralString = """
SELECT polname::text, polpermissive, polcmd::text,
  ARRAY(SELECT CASE one WHEN 0 THEN NULL ELSE pg_get_userbyid(one)::text END
    FROM unnest(polroles) AS one),
  pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid)
FROM pg_policy WHERE polrelid = %s::regclass ORDER BY polname
"""
_COMMANDS: dict[str, LiteralString] = {
    "r": "SELECT",
    "a": "INSERT",
    "w": "UPDATE",
    "d": "DELETE",
    "*": "ALL",
}
# Of `serial` columns: a sequence goes with the table that owns it.
_SEQUENCES: LiteralString = """
SELECT n.nspname::text, s.relname::text, a.attname::text
FROM pg_depend AS d
JOIN pg_class AS s ON s.oid = d.objid AND s.relkind = 'S'
JOIN pg_namespace AS n ON n.oid = s.relnamespace
JOIN pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_class'::regclass AND d.refobjid = %s::regclass AND d.deptype = 'a'
"""
_VIEWS: LiteralString = """
SELECT DISTINCT CASE c.relkind WHEN 'm' THEN 'materialized view ' ELSE 'view ' END
  || c.oid::regclass
FROM pg_depend AS d JOIN pg_rewrite AS r ON r.oid = d.objid JOIN pg_class AS c ON c.oid = r.ev_class
WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass
  AND d.refobjid = %(table)s::regclass AND c.oid <> d.refobjid
UNION ALL
SELECT 'foreign key ' || conname || ' of ' || conrelid::regclass FROM pg_constraint
WHERE contype = 'f' AND confrelid = %(table)s::regclass AND conrelid <> confrelid
ORDER BY 1
"""
# What the other table may have, too, by the same name.
_OWN: LiteralString = """
SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgrelid = %(table)s::regclass AND NOT tgisinternal
UNION ALL
SELECT 'foreign key ' || conname FROM pg_constraint
WHERE contype = 'f' AND conrelid = %(table)s::regclass
UNION ALL
SELECT 'publication ' || pubname FROM pg_publication_rel JOIN pg_publication AS p ON p.oid = prpubid
WHERE prrelid = %(table)s::regclass
ORDER BY 1
"""


def make_like(
    connection: Any, shadow: str, live: str, columns: Mapping[str, str], key: Sequence[str]
) -> bool:
    """Create a shadow like the live table; return whether there is one that has this key.

    It also gets the columns, with their types, that the live table does not have or whose values
    its types do not hold.
    """
    from psycopg import sql

    name = _name(live)
    if not connection.execute(_IS_TABLE, (name,)).fetchone()[0]:
        return False
    if key and not connection.execute(_HAS_KEY, (name, sorted(key))).fetchone()[0]:
        return False
    connection.execute(
        sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL)").format(
            identifier(shadow), identifier(live)
        )
    )
    there = dict(connection.execute(_COLUMNS, (name,)).fetchall())
    changes = []
    for column, kind in columns.items():
        parts = (sql.Identifier(column), sql.SQL(kind))
        if column not in there:
            changes.append(sql.SQL("ADD COLUMN {} {}").format(*parts))
        elif not _is_held(kind, there[column]):
            changes.append(sql.SQL("ALTER COLUMN {} DROP DEFAULT").format(parts[0]))
            changes.append(sql.SQL("ALTER COLUMN {} TYPE {} USING NULL").format(*parts))
    if changes:
        connection.execute(
            sql.SQL("ALTER TABLE {} {}").format(identifier(shadow), sql.SQL(", ").join(changes))
        )
    return True


def _is_held(kind: str, there: str) -> bool:
    """Whether a column of the live table holds what the job writes."""
    kind = _CANONICAL.get(kind, kind)
    return there not in _HOLDS or kind == there or kind in _HOLDS[there]


def refuse_bound(connection: Any, live: str, shadow: str) -> None:
    """Raise `SinkError` if something reads or guards the live table that would stay with it."""
    old, new = ({"table": _name(each)} for each in (live, shadow))
    there = {name for (name,) in connection.execute(_OWN, new).fetchall()}
    own = [name for (name,) in connection.execute(_OWN, old).fetchall() if name not in there]
    found = [name for (name,) in connection.execute(_VIEWS, old).fetchall()]
    if not found and not own:
        return
    ways = []
    if found:
        ways.append(f"drop what reads it ({', '.join(found)}), and create it again after the swap")
    if own:
        ways.append(f"give {shadow} the same ({', '.join(own)}) before it")
    raise SinkError(
        f"{', '.join([*found, *own])}: would stay with the table that {live} is now, whatever its"
        f" name is then. To swap, {'; '.join(ways)}"
    )


class _Right(NamedTuple):
    """A right on a table, or on one of its columns."""

    grantee: str | None
    privilege: str
    is_grantable: bool
    column: str | None

    def statement(self, text: LiteralString, table: str) -> Any:
        """Return a GRANT or REVOKE of it."""
        from psycopg import sql

        # A keyword that the server's catalogue names.
        what: sql.Composable = sql.SQL(self.privilege)
        if self.column is not None:
            what = sql.SQL("{} ({})").format(what, sql.Identifier(self.column))
        return sql.SQL(text).format(what, identifier(table), _role(self.grantee))


def take_rights(connection: Any, live: str, shadow: str) -> None:
    """Give a shadow the live table's owner, rights and row security, as they are now."""
    from psycopg import sql

    (old, *security), (new, *_) = (
        connection.execute(_TABLE, (_name(each),)).fetchone() for each in (live, shadow)
    )
    if old != new:
        connection.execute(
            sql.SQL("ALTER TABLE {} OWNER TO {}").format(identifier(shadow), sql.Identifier(old))
        )
    columns = dict(connection.execute(_COLUMNS, (_name(shadow),)).fetchall())
    had = {each for each in _rights(connection, live) if each.column in (None, *columns)}
    has = _rights(connection, shadow)
    for right in has - had:
        connection.execute(right.statement("REVOKE {} ON {} FROM {} CASCADE", shadow))
    for right in had - has:
        grant: LiteralString = "GRANT {} ON {} TO {}"
        if right.is_grantable:
            grant += " WITH GRANT OPTION"
        connection.execute(right.statement(grant, shadow))
    _take_policies(connection, live, shadow)
    for is_on, on, off in zip(security, ("ENABLE", "FORCE"), ("DISABLE", "NO FORCE"), strict=True):
        connection.execute(
            sql.SQL("ALTER TABLE {} {} ROW LEVEL SECURITY").format(
                identifier(shadow), sql.SQL(on if is_on else off)
            )
        )
    for schema, sequence, column in connection.execute(_SEQUENCES, (_name(live),)).fetchall():
        if column in columns:
            connection.execute(
                sql.SQL("ALTER SEQUENCE {} OWNED BY {}").format(
                    sql.Identifier(schema, sequence), sql.Identifier(*shadow.split("."), column)
                )
            )


def _rights(connection: Any, table: str) -> set[_Right]:
    found = connection.execute(_RIGHTS, {"table": _name(table)}).fetchall()
    return {_Right(*each) for each in found}


def _take_policies(connection: Any, live: str, shadow: str) -> None:
    from psycopg import sql

    table = identifier(shadow)
    had, has = (connection.execute(_POLICIES, (_name(each),)).fetchall() for each in (live, shadow))
    if had == has:
        return
    for name, *_ in has:
        connection.execute(sql.SQL("DROP POLICY {} ON {}").format(sql.Identifier(name), table))
    for name, is_permissive, command, roles, using, check in had:
        create: sql.Composable = sql.SQL("CREATE POLICY {} ON {} AS {} FOR {} TO {}").format(
            sql.Identifier(name),
            table,
            sql.SQL("PERMISSIVE" if is_permissive else "RESTRICTIVE"),
            sql.SQL(_COMMANDS[command]),
            sql.SQL(", ").join(map(_role, roles)),
        )
        if using is not None:
            create += sql.SQL(" USING ({})").format(sql.SQL(using))
        if check is not None:
            create += sql.SQL(" WITH CHECK ({})").format(sql.SQL(check))
        connection.execute(create)


def _role(name: str | None) -> Any:
    from psycopg import sql

    return sql.SQL("PUBLIC") if name is None else sql.Identifier(name)


def _name(table: str) -> str:
    return str(identifier(table).as_string())
