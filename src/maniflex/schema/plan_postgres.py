"""Operations on PostgreSQL, so that writers are never kept waiting.

Indexes of tables that are in use are built concurrently; a column gets NOT NULL by way of a check that is
validated beside the writers; what takes a strong lock takes it alone and briefly. Everything that spans
several transactions looks first at what is there, so that it can be repeated after a crash.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

import sqlalchemy as sa
from alembic.operations import ops
from sqlalchemy.schema import DefaultClause

from maniflex.db.port import Executor
from maniflex.model.meta import Kind
from maniflex.schema.alterations import column_statements, drop_statements, index_statements, table_statements
from maniflex.schema.operations import (
    Action,
    Commit,
    IndexBuild,
    IndexByDatabase,
    RebuildTable,
    RenameIndex,
    SetNotNull,
    StatementAction,
    StatementByDatabase,
    duplicate_check,
    null_check,
    plan_alike,
    statement_actions,
    statements_of,
    using_text,
)
from maniflex.schema.target import MigrationError
from maniflex.schema.types import ColumnType
from maniflex.sql.statement import Dialect, Sql, sa_dialect
from maniflex.sql.tables import COLUMN_TYPES, index_name, quote

POSTGRES = Dialect.POSTGRES
_INDEX = re.compile(
    r"\s*CREATE\s+(UNIQUE\s+)?INDEX\s+(?:CONCURRENTLY\s+)?(?:IF\s+NOT\s+EXISTS\s+)?(\w+|\"(?:[^\"]|\"\")+\")\s+(ON\s.*)",
    re.IGNORECASE | re.DOTALL,
)
_COLUMNS = """
SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid),
       l.collname::text
  FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  LEFT JOIN pg_collation l ON l.oid = a.attcollation
 WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
"""
_HAS_CHECK = "SELECT 1 FROM pg_constraint WHERE conrelid = to_regclass($1) AND conname = $2"


async def plan_on_postgres(
    operation: ops.MigrateOperation, run: Executor, new_tables: Collection[str], *, is_preview: bool = False
) -> list[Action]:
    """What an operation comes to; `new_tables` were made by the same file, so no one uses them yet.

    In a preview the operations before it have not run, so a column may not be there yet.
    """
    match operation:
        case ops.CreateIndexOp():
            [text] = statements_of(operation, POSTGRES)
            build = _index(text, operation.table_name, new_tables)
            check = duplicate_check(operation, POSTGRES) if isinstance(build, IndexBuild) else None
            return [build] if check is None else [check, build]
        case IndexByDatabase():
            if operation.postgresql is None:
                return []
            return [_index(operation.postgresql, operation.table, new_tables)]
        case StatementByDatabase():
            return [] if operation.postgresql is None else [StatementAction(operation.postgresql)]
        case ops.AlterColumnOp() if operation.modify_nullable is False:
            raise MigrationError(
                f"op.alter_column({operation.table_name!r}, {operation.column_name!r}, nullable=False) would"
                " stop all writers while the table is read; use op.set_not_null"
            )
        case ops.DropIndexOp():
            return [StatementAction(f"DROP INDEX IF EXISTS {_name(str(operation.index_name))}")]
        case ops.DropColumnOp():
            return statement_actions(await drop_statements(run, operation.table_name, operation.column_name))
        case RenameIndex():
            return statement_actions(await index_statements(run, operation.old, operation.new))
        case ops.RenameTableOp():
            return statement_actions(
                await table_statements(run, operation.table_name, operation.new_table_name)
            )
        case ops.AlterColumnOp() if operation.modify_name is not None:
            old, new = operation.column_name, operation.modify_name
            return statement_actions(await column_statements(run, operation.table_name, old, new))
        case RebuildTable():
            return await _alter_columns(operation, run)
        case SetNotNull():
            return [
                action
                for column in operation.columns
                for action in await _set_not_null(operation.table, column, run, is_preview=is_preview)
            ]
        case _:
            return plan_alike(operation, POSTGRES)


def _name(name: str) -> str:
    return quote(name, POSTGRES)


def _index(text: str, table: str, new_tables: Collection[str]) -> Action:
    match = _INDEX.match(text)
    if match is None:
        raise MigrationError(f"this is no CREATE INDEX statement: {' '.join(text.split())[:80]}")
    if table in new_tables:
        return StatementAction(text)
    unique, name, rest = bool(match[1]), match[2], match[3]
    build = f"CREATE {'UNIQUE ' if unique else ''}INDEX CONCURRENTLY {name} {rest}"
    return IndexBuild(name.strip('"').replace('""', '"'), table, build, unique)


# -- NOT NULL


async def _set_not_null(table: str, column: str, run: Executor, *, is_preview: bool = False) -> list[Action]:
    """CHECK NOT VALID, VALIDATE, NOT NULL, no CHECK: only the second takes long, and it stops no writer."""
    name, place = _name(column), _name(table)
    check = index_name("nn", table, column)
    columns = {row[0]: row for row in await run.fetch(Sql(_COLUMNS, (place,)))}
    if column not in columns and not is_preview:
        raise MigrationError(f"{table} has no column {column!r}; add it before it is changed")
    has_check = await run.fetch_one(Sql(_HAS_CHECK, (place, check))) is not None
    alter = f"ALTER TABLE {place}"
    actions: list[Action] = []
    if column not in columns or not columns[column][2]:
        actions.append(null_check(table, column, POSTGRES))
        if not has_check:
            actions.append(
                StatementAction(f"{alter} ADD CONSTRAINT {_name(check)} CHECK ({name} IS NOT NULL) NOT VALID")
            )
        actions += [
            Commit(),
            StatementAction(f"{alter} VALIDATE CONSTRAINT {_name(check)}"),
            Commit(),
            StatementAction(f"{alter} ALTER COLUMN {name} SET NOT NULL"),
            StatementAction(f"{alter} DROP CONSTRAINT {_name(check)}"),
        ]
    elif has_check:
        actions.append(StatementAction(f"{alter} DROP CONSTRAINT {_name(check)}"))
    return actions


# -- rebuild_table: the columns that differ are altered


async def _alter_columns(operation: RebuildTable, run: Executor) -> list[Action]:
    table = _name(operation.table)
    rows = {row[0]: row for row in await run.fetch(Sql(_COLUMNS, (table,)))}
    actions: list[Action] = []
    for column in operation.columns:
        if column.name not in rows:
            raise MigrationError(f"{operation.table} has no column {column.name!r}; add it first")
        alter = f"ALTER TABLE {table} ALTER COLUMN {_name(column.name)}"
        actions += statement_actions(
            f"{alter} {change}" for change in _changes(column, rows[column.name], operation)
        )
        if not column.nullable and not rows[column.name][2]:
            actions += [Commit(), *await _set_not_null(operation.table, column.name, run), Commit()]
    return actions


def _changes(column: sa.Column[Any], row: Any, operation: RebuildTable) -> Iterator[str]:
    """The clauses that alter one column, but not to NOT NULL."""
    _, type_, not_null, default, collation = row
    wanted_type = column.type.compile(dialect=sa_dialect(POSTGRES))
    using = operation.using.get(column.name)
    if using is not None or not _has_type(column, str(type_), collation):
        if default is not None:  # it may not fit the new type; the new one follows
            yield "DROP DEFAULT"
            default = None
        yield f"TYPE {wanted_type}" + (f" USING {using_text(using, POSTGRES)}" if using is not None else "")
    if column.nullable and not_null and not column.primary_key:
        yield "DROP NOT NULL"
    wanted_default = _default_text(column)
    if wanted_default is None and default is not None:
        yield "DROP DEFAULT"
    elif wanted_default is not None and default != wanted_default:
        yield f"SET DEFAULT {wanted_default}"


def _has_type(column: sa.Column[Any], existing: str, collation: str | None) -> bool:
    """Whether a column is of this type; one of the same family, made by hand, is left alone."""
    existing = re.sub(r"\(.*?\)", "", existing).lower()
    if not isinstance(column.type, ColumnType):
        return str(column.type.compile(dialect=sa_dialect(POSTGRES))).lower() == existing
    if existing == "text" and column.type.kind is Kind.TEXT:
        return collation == "C"
    return existing in COLUMN_TYPES[POSTGRES][column.type.kind]


def _default_text(column: sa.Column[Any]) -> str | None:
    default = column.server_default
    if not isinstance(default, DefaultClause):
        return None
    if isinstance(default.arg, str):
        return "'" + default.arg.replace("'", "''") + "'"
    return str(default.arg.compile(dialect=sa_dialect(POSTGRES), compile_kwargs={"literal_binds": True}))
