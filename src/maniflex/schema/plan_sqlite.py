"""Operations on SQLite: natively where it can, otherwise the table is made anew with all that belongs to it.

Order keys of decimals follow their columns, and indexes on decimals stand on the keys. Triggers of order
keys and of search are dropped where they are in the way; the end of every file makes them again.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from alembic.operations import ops
from sqlalchemy.schema import CreateColumn

from maniflex.db.port import Adapter, Executor
from maniflex.schema.alterations import (
    column_statements,
    drop_statements,
    index_statements,
    read_triggers,
    search_tables,
    table_statements,
)
from maniflex.schema.operations import (
    Action,
    IndexByDatabase,
    RebuildTable,
    RenameIndex,
    SetNotNull,
    StatementByDatabase,
    StoredRowsCheck,
    duplicate_check,
    null_check,
    number_check,
    plan_alike,
    rows_of,
    statement_actions,
    statements_of,
    using_text,
)
from maniflex.schema.read import TableText
from maniflex.schema.target import MigrationError
from maniflex.schema.types import DECIMAL, FLOAT, INT
from maniflex.sql.decimal_order import order_column
from maniflex.sql.statement import Dialect, Sql, sa_dialect
from maniflex.sql.tables import quote

SQLITE = Dialect.SQLITE
_NUMBERS = (INT, FLOAT, DECIMAL)
_NEW = "$new"  # no table can be called like this


async def plan_on_sqlite(operation: ops.MigrateOperation, run: Executor) -> list[Action]:
    """What an operation comes to, on the tables as they are now."""
    match operation:
        case ops.CreateTableOp():
            return statement_actions(statements_of(_with_order_keys(operation), SQLITE))
        case ops.AddColumnOp():
            return statement_actions(_add_column(operation))
        case ops.DropColumnOp():
            return statement_actions(await drop_statements(run, operation.table_name, operation.column_name))
        case ops.AlterColumnOp():
            return statement_actions(await _alter_column(operation, run))
        case ops.CreateIndexOp():
            index = await _on_order_keys(operation, run)
            check = duplicate_check(index, SQLITE)
            return [*([check] if check else []), *statement_actions(statements_of(index, SQLITE))]
        case ops.RenameTableOp():
            return statement_actions(
                await table_statements(run, operation.table_name, operation.new_table_name)
            )
        case RenameIndex():
            return statement_actions(await index_statements(run, operation.old, operation.new))
        case ops.DropTableOp():
            return statement_actions(await _drop_table(operation, run))
        case StatementByDatabase() | IndexByDatabase():
            return statement_actions([operation.sqlite] if operation.sqlite is not None else [])
        case RebuildTable():
            return await _rebuild(operation, run)
        case SetNotNull():
            table = await _read_table(run, operation.table)
            for column in operation.columns:
                _require_column(table, operation.table, column)
                table = table.with_not_null(column)
            checks = [null_check(operation.table, column, SQLITE) for column in operation.columns]
            return [*checks, *statement_actions(await _make_anew(run, operation.table, table))]
        case _:
            return plan_alike(operation, SQLITE)


def _name(name: str) -> str:
    return quote(name, SQLITE)


# -- columns and their order keys


def _with_order_keys(operation: ops.CreateTableOp) -> ops.CreateTableOp:
    columns = [item for item in operation.columns if isinstance(item, sa.Column)]
    keys = [sa.Column(order_column(c.name), sa.Text()) for c in columns if isinstance(c.type, DECIMAL)]
    if not keys:
        return operation
    with_keys = copy.copy(operation)
    with_keys.columns = [*operation.columns, *keys]
    return with_keys


def _add_column(operation: ops.AddColumnOp) -> list[str]:
    statements = statements_of(operation, SQLITE)
    if isinstance(operation.column.type, DECIMAL):
        key = _name(order_column(operation.column.name))
        statements.append(f"ALTER TABLE {_name(operation.table_name)} ADD COLUMN {key} TEXT")
    return statements


async def _alter_column(operation: ops.AlterColumnOp, run: Executor) -> list[str]:
    changes = (operation.modify_nullable, operation.modify_type)
    if any(change is not None for change in changes) or operation.modify_server_default is not False:
        raise MigrationError(
            f"SQLite cannot alter {operation.table_name}.{operation.column_name} in place;"
            " use op.rebuild_table or op.set_not_null, which both databases understand"
        )
    if operation.modify_name is None:
        return []
    return await column_statements(run, operation.table_name, operation.column_name, operation.modify_name)


async def _on_order_keys(operation: ops.CreateIndexOp, run: Executor) -> ops.CreateIndexOp:
    types = await _column_types(run, operation.table_name)
    columns = [
        order_column(c) if isinstance(c, str) and types.get(c) == "decimal_text" else c
        for c in operation.columns
    ]
    on_keys = copy.copy(operation)
    on_keys.columns = columns
    return on_keys


async def _column_types(run: Executor, table: str) -> dict[str, str]:
    rows = await run.fetch(Sql("SELECT name, lower(type) FROM pragma_table_info(?)", (table,)))
    return {row[0]: row[1] for row in rows}


async def _drop_table(operation: ops.DropTableOp, run: Executor) -> list[str]:
    return [*await search_tables(run, operation.table_name), f"DROP TABLE {_name(operation.table_name)}"]


# -- making a table anew


async def _read_table(run: Executor, table: str) -> TableText:
    row = await run.fetch_one(
        Sql("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
    )
    if row is None:
        raise MigrationError(f"there is no table {table!r}")
    hidden = await run.fetch(Sql("SELECT name FROM pragma_table_xinfo(?) WHERE hidden > 1", (table,)))
    if hidden:
        raise MigrationError(
            f"{table} has the generated column {hidden[0][0]!r}, which cannot be copied; drop it before"
            " op.rebuild_table and add it again afterwards"
        )
    return TableText.parse(str(row[0]))


def _require_column(table: TableText, name: str, column: str) -> None:
    if column not in table.columns:
        raise MigrationError(f"{name} has no column {column!r}; add it before it is changed")


async def _rebuild(operation: RebuildTable, run: Executor) -> list[Action]:
    existing = await _read_table(run, operation.table)
    definitions = column_definitions(operation.table, operation.columns)
    for column in definitions:
        _require_column(existing, operation.table, column)
    checks: list[Action] = [
        null_check(operation.table, column.name, SQLITE, operation.using.get(column.name))
        for column in operation.columns
        if not column.nullable and not column.primary_key
    ]
    types = await _column_types(run, operation.table)
    checks += [
        number_check(operation.table, column.name)
        for column in operation.columns
        if types[column.name].startswith(("text", "varchar", "char")) and isinstance(column.type, _NUMBERS)
    ]
    table = _without_old_keys(existing.with_columns(definitions), operation)
    values = {column: using_text(using, SQLITE) for column, using in operation.using.items()}
    anew = await _make_anew(run, operation.table, table, values)
    keys = [
        f"ALTER TABLE {_name(operation.table)} ADD COLUMN {_name(order_column(column.name))} TEXT"
        for column in operation.columns
        if isinstance(column.type, DECIMAL) and order_column(column.name) not in existing.columns
    ]
    return [*checks, *statement_actions([*anew, *keys])]


def _without_old_keys(table: TableText, operation: RebuildTable) -> TableText:
    """The table without the order keys of columns that are no decimals any more."""
    old = {order_column(c.name) for c in operation.columns if not isinstance(c.type, DECIMAL)}
    return replace(table, columns={name: text for name, text in table.columns.items() if name not in old})


def column_definitions(table: str, columns: Sequence[sa.Column[Any]]) -> Mapping[str, str]:
    """The columns as they stand in a CREATE TABLE of SQLite, by name."""
    copies = sa.Table(table, sa.MetaData(), *(column._copy() for column in columns))
    return {
        column.name: str(CreateColumn(column).compile(dialect=sa_dialect(SQLITE))).strip()
        for column in copies.columns
    }


async def _make_anew(
    run: Executor, name: str, table: TableText, values: Mapping[str, str] | None = None
) -> list[str]:
    """Statements that make the table anew, with its rows, indexes and triggers."""
    indexes = await run.fetch(
        Sql(
            "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL", (name,)
        )
    )
    triggers = await read_triggers(run, name)
    columns = ", ".join(_name(column) for column in table.columns)
    selected = ", ".join((values or {}).get(column, _name(column)) for column in table.columns)
    new, old = _name(name + _NEW), _name(name)
    return [
        table.create(new),
        f"INSERT INTO {new} ({columns}) SELECT {selected} FROM {old}",
        f"DROP TABLE {old}",
        # Triggers and views of other tables name this one, which in this moment is not there.
        "PRAGMA legacy_alter_table = ON",
        f"ALTER TABLE {new} RENAME TO {old}",
        "PRAGMA legacy_alter_table = OFF",
        *(str(row[0]) for row in indexes),
        *(str(row[1]) for row in triggers),
    ]


@asynccontextmanager
async def without_foreign_keys(adapter: Adapter) -> AsyncIterator[None]:
    """Let a table be dropped and made anew without its references acting; checked at the end of a file."""
    await adapter.execute(Sql("PRAGMA foreign_keys = OFF"))  # which means nothing inside a transaction
    try:
        yield
    finally:
        await adapter.execute(Sql("PRAGMA foreign_keys = ON"))


def foreign_key_check() -> StoredRowsCheck:
    """No row may be left that refers to none."""
    return StoredRowsCheck(
        Sql('SELECT "table", parent, count(*) FROM pragma_foreign_key_check() GROUP BY 1, 2'),
        lambda row: (
            f"{rows_of(row[2], row[0], 'would', 'would')} refer to rows of {row[1]} that are not there"
        ),
    )
