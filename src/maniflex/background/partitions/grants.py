"""What a table that takes the place of another must know: who may use it, and what else hangs on it."""

from __future__ import annotations

from collections.abc import Sequence

from maniflex.db.port import Executor
from maniflex.errors import DeclarationError
from maniflex.sql.statement import Sql

_TABLE = """
SELECT relkind::text, relrowsecurity, pg_get_userbyid(relowner)::text,
       pg_get_userbyid(relowner) = current_user
  FROM pg_class WHERE oid = to_regclass($1)
"""
_GRANTS = """
SELECT CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END, g.privilege_type
  FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) g LEFT JOIN pg_roles r ON r.oid = g.grantee
 WHERE c.oid = to_regclass($1) AND g.grantee <> c.relowner
"""
# They belong to the table itself and not to its name, so they would stay with the rows it has now.
_DEPENDENTS = """
SELECT 'the view ' || w.ev_class::regclass FROM pg_depend d JOIN pg_rewrite w ON w.oid = d.objid
 WHERE d.classid = 'pg_rewrite'::regclass
   AND d.refclassid = 'pg_class'::regclass AND d.refobjid = to_regclass($1)
UNION
SELECT 'the foreign key from ' || conrelid::regclass || ' to ' || confrelid::regclass FROM pg_constraint
 WHERE contype = 'f' AND to_regclass($1) IN (conrelid, confrelid)
UNION
SELECT 'the trigger ' || tgname FROM pg_trigger
 WHERE tgrelid = to_regclass($1) AND NOT tgisinternal AND NOT starts_with(tgname, 'maniflex_')
UNION
SELECT 'the publication ' || p.pubname FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
 WHERE r.prrelid = to_regclass($1)
UNION
SELECT 'a privilege on the column ' || attname FROM pg_attribute
 WHERE attrelid = to_regclass($1) AND attacl IS NOT NULL
 ORDER BY 1
"""


async def require_plain_table(run: Executor, name: str) -> None:
    """Refuse a table that is not ours to replace, or that others hang on."""
    rows = await run.write(Sql(_TABLE, (name,)))
    if not rows:
        raise DeclarationError(f"there is no table {name!r}; start the application once, or migrate it up")
    kind, has_row_security, owner, is_ours = rows[0]
    if kind != "r":
        raise DeclarationError(f"{name!r} is no ordinary table, so it cannot be partitioned")
    if has_row_security:
        raise DeclarationError(f"{name!r} has row level security, which a partitioned table would lose")
    if not is_ours:
        raise DeclarationError(f"{name!r} belongs to the role {owner}; run the command as that role")
    if rows := await run.write(Sql(_DEPENDENTS, (name,))):
        dependents = ", ".join(row[0] for row in rows)
        raise DeclarationError(
            f"{name!r} cannot be partitioned, because it would lose {dependents};"
            " remove that, and make it again on the partitioned table"
        )


async def copy_grants(run: Executor, table: str, others: Sequence[str]) -> None:
    """Let those who may use the table use others in the same way."""
    for grantee, privilege in await run.write(Sql(_GRANTS, (table,))):
        for other in others:
            await run.execute(Sql(f"GRANT {privilege} ON {other} TO {grantee}"))
