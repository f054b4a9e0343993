"""Bring a database up to its models at start: add missing tables and columns, stop where the two contradict.

Nothing is ever dropped or rewritten, and renamed only where `renamed_from` says so. Everything happens in
one transaction under one lock, so two processes that start together do not collide and a failure leaves no
half-made schema.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, CreateTable

from maniflex.db.port import Adapter, Tx
from maniflex.errors import ConstraintViolation, DeclarationError, ValidationFailed
from maniflex.model.meta import FieldMeta, Kind
from maniflex.schema.derived import migrate_decimals, migrate_search
from maniflex.schema.drift import find_old_tables, keeping_advice, old_names, refuse_drift
from maniflex.schema.history import note_change
from maniflex.schema.indexes import compare_index, duplicates, refuse_old_promises
from maniflex.schema.read import Columns, ddl, read_columns, read_indexes, type_ddl
from maniflex.schema.renames import rename_as_declared
from maniflex.sql.codec import literal
from maniflex.sql.history_layouts import form_of
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql, by_dialect
from maniflex.sql.tables import ALWAYS_EQUAL, COLUMN_TYPES, quote

log = logging.getLogger("maniflex.migrate")

_LOCK = 0x6D616E69666C6578 >> 1  # "maniflex"; any fixed number of 63 bits will do


async def migrate(adapter: Adapter, models: Sequence[ModelSql], extra: Sequence[Sql] = ()) -> None:
    """Create tables, columns and indexes that are missing, then run `extra`.

    `extra` is what a model cannot declare, in statements that do no harm when they are repeated.
    """
    async with adapter.transaction() as tx:
        if by_dialect(adapter.dialect, sqlite=False, postgres=True):  # on SQLite, only one writes anyway
            await _take_turn(tx)
        await rename_as_declared(tx, models)
        tables = [(model, await read_columns(tx, model)) for model in models]
        await refuse_drift(tx, tables)
        old_tables = await find_old_tables(tx, tables)
        for model, columns in tables:
            if advice := keeping_advice(model, old_tables.get(model.meta.name, ())):
                log.warning("%s gets the new table %r, and %s", model.meta.name, model.table.name, advice)
            await _migrate_model(tx, model, columns)
        for statement in extra:
            if not await _is_index_settled(tx, statement):
                await tx.execute(statement)


_INDEX_IF_NEEDED = re.compile(
    r"\s*(?:(?P<drop>DROP\s+INDEX\s+IF)|CREATE\s+(?:UNIQUE\s+)?INDEX\s+IF\s+NOT)\s+EXISTS\s+"
    r"(?P<name>\w+|\"[^\"]+\")",
    re.IGNORECASE,
)


async def _is_index_settled(tx: Tx, statement: Sql) -> bool:
    """Whether `statement` makes an index that exists, or drops one that does not.

    PostgreSQL would lock out all writers to find that out.
    """
    match = _INDEX_IF_NEEDED.match(statement.text)
    if match is None or by_dialect(tx.dialect, sqlite=True, postgres=False):
        return False
    row = await tx.fetch_one(Sql("SELECT to_regclass($1) IS NOT NULL", (match["name"],)))
    exists = row is not None and bool(row[0])
    return exists is (match["drop"] is None)


async def _take_turn(tx: Tx) -> None:
    """Wait until no other process migrates; neither that nor a large index is a matter of seconds."""
    row = await tx.fetch_one(Sql("SELECT current_setting('lock_timeout')"))
    await tx.execute(Sql("SET LOCAL statement_timeout = 0"))
    await tx.execute(Sql("SET LOCAL lock_timeout = 0"))
    await tx.fetch(Sql("SELECT pg_advisory_xact_lock($1)", (_LOCK,)))
    # From here on a lock is one that requests hold, and those queue up behind the one that waits for it.
    await tx.fetch(Sql("SELECT set_config('lock_timeout', $1, true)", (row[0] if row else "0",)))


async def _migrate_model(tx: Tx, model: ModelSql, columns: Columns) -> None:
    if not columns:
        log.info("creating table %s", model.table.name)
        await tx.execute(Sql(ddl(CreateTable(model.table), model)))
    else:
        for field in model.meta.fields:
            if field.column not in columns:
                await _add_column(tx, model, field, columns)
        await _add_defaults(tx, model, columns)
    await migrate_decimals(tx, model)
    existing = await read_indexes(tx, model)
    for index in sorted(model.table.indexes, key=lambda index: str(index.name)):
        existing_index = existing.get(str(index.name))
        if existing_index is None:
            await _create_index(tx, model, index, has_rows=bool(columns))
        else:
            compare_index(model, index, existing_index)
    await refuse_old_promises(tx, model, existing)
    await migrate_search(tx, model)


async def _add_column(tx: Tx, model: ModelSql, field: FieldMeta, columns: Columns) -> None:
    table, column = quote(model.table.name, model.dialect), quote(field.column, model.dialect)
    clause = f"ALTER TABLE {table} ADD COLUMN {column} {type_ddl(model, field)}"
    if not field.nullable:
        clause += f" NOT NULL DEFAULT {await _value_for_old_rows(tx, model, field, columns)}"
    log.info("adding column %s.%s", model.table.name, field.column)
    await tx.execute(Sql(clause))
    await note_change(tx, model.table.name, "add", _first_values(field))
    if field.default_factory is not None:
        is_constant = field.default_factory in ALWAYS_EQUAL
        if field.nullable or not is_constant:
            await _fill(tx, model, field)
        if not field.nullable and not is_constant and by_dialect(model.dialect, sqlite=False, postgres=True):
            await tx.execute(Sql(f"ALTER TABLE {table} ALTER COLUMN {column} DROP DEFAULT"))


def _first_values(field: FieldMeta) -> dict[str, Any]:
    """What histories are told of a new column: the value that all rows got, if they got the same."""
    if field.default_factory is not None or field.secret:
        return {"column": field.column}
    # A nullable column is added without a default: the rows that are there have null.
    return {"column": field.column, "value": None if field.nullable else form_of(field.default)}


async def _add_defaults(tx: Tx, model: ModelSql, columns: Columns) -> None:
    """Give columns the defaults that they were made without; SQLite sets them only with the table."""
    if not by_dialect(model.dialect, sqlite=False, postgres=True):
        return
    missing = [
        f"ALTER COLUMN {quote(column.name, model.dialect)} SET DEFAULT {column.server_default.arg}"
        for column in model.table.columns
        if isinstance(column.server_default, sa.DefaultClause)
        and column.name in columns
        and not columns[column.name].has_default
    ]
    if missing:
        table = quote(model.table.name, model.dialect)
        await tx.execute(Sql(f"ALTER TABLE {table} {', '.join(missing)}"))


async def _value_for_old_rows(tx: Tx, model: ModelSql, field: FieldMeta, columns: Columns) -> str:
    """The SQL literal existing rows get in a new column that may not be null."""
    if field.default_factory is not None:
        return literal(_factory_value(model, field), field.kind, model.dialect)
    if field.has_default:
        return literal(field.default, field.kind, model.dialect)
    rows = await tx.fetch(Sql(f"SELECT 1 FROM {quote(model.table.name, model.dialect)} LIMIT 1"))
    if rows:
        raise DeclarationError(
            f"{model.meta.name}.{field.name}: the table {model.table.name!r} has rows and the new column"
            f" {field.column!r} has no value for them; {old_names(model, field, columns)}give the field a"
            " default, make it `| None`, or add and fill the column in a migration"
        )
    # No row will ever show this value, but SQLite adds no NOT NULL column without one.
    return literal(_EMPTY[field.kind], field.kind, model.dialect)


_BATCH = 500


async def _fill(tx: Tx, model: ModelSql, field: FieldMeta) -> None:
    """Give every row that is there a value of its own from the field's factory."""
    table, id_ = quote(model.table.name, model.dialect), quote(model.id.name, model.dialect)
    beyond = ""
    last: tuple[str, ...] = ()
    while True:
        text = f"SELECT {id_} FROM {table}{beyond} ORDER BY {id_} LIMIT {_BATCH}"
        ids = [row[0] for row in await tx.fetch(Sql(text, last))]
        if not ids:
            return
        beyond, last = f" WHERE {id_} > {_placeholder(1, model)}", (ids[-1],)
        values = [(id, model.encode(field, _factory_value(model, field))) for id in ids]
        await _update_each(tx, model, field, [pair for pair in values if pair[1] is not None])


async def _update_each(tx: Tx, model: ModelSql, field: FieldMeta, pairs: list[tuple[str, Any]]) -> None:
    if not pairs:
        return
    type_ = COLUMN_TYPES[model.dialect][field.kind][0]
    rows = ", ".join(
        f"({_placeholder(2 * i + 1, model, 'text')}, {_placeholder(2 * i + 2, model, type_)})"
        for i in range(len(pairs))
    )
    table, id_ = quote(model.table.name, model.dialect), quote(model.id.name, model.dialect)
    column = quote(field.column, model.dialect)
    await tx.execute(
        Sql(
            f'WITH "$made" (id, value) AS (VALUES {rows})'  # no table can be called like this
            f' UPDATE {table} SET {column} = "$made".value FROM "$made" WHERE {table}.{id_} = "$made".id',
            tuple(part for pair in pairs for part in pair),
        )
    )


def _placeholder(position: int, model: ModelSql, type_: str | None = None) -> str:
    # Without a type, every parameter in a list of VALUES would be text.
    placeholder = f"${position}" if type_ is None else f"CAST(${position} AS {type_})"
    return by_dialect(model.dialect, sqlite="?", postgres=placeholder)


def _factory_value(model: ModelSql, field: FieldMeta) -> Any:
    """One value of the field's factory, as a create would take it."""
    assert field.default_factory is not None
    try:
        return model.meta.validator.patch_from_code({field.name: field.default_factory()})[field.name]
    except ValidationFailed as error:
        raise DeclarationError(
            f"{model.meta.name}.{field.name}: its default_factory made a value for an existing row"
            f" of {model.table.name!r} that does not fit the field"
        ) from error


_EMPTY: dict[Kind, Any] = {
    Kind.TEXT: "",
    Kind.INT: 0,
    Kind.FLOAT: 0.0,
    Kind.BOOL: False,
    Kind.DECIMAL: Decimal(0),
    Kind.DATETIME: datetime(1970, 1, 1, tzinfo=UTC),
    Kind.DATE: date(1970, 1, 1),
    Kind.TIME: time(0),
    Kind.UUID: UUID(int=0),
    Kind.BYTES: b"",
    Kind.JSON: {},
}


async def _create_index(tx: Tx, model: ModelSql, index: sa.Index, *, has_rows: bool) -> None:
    names = ", ".join(column.name for column in index.columns)
    if has_rows and index.unique and (problem := await duplicates(tx, model, index)):
        raise DeclarationError(problem)
    log.info("creating index %s on %s (%s)", index.name, model.table.name, names)
    try:
        await tx.execute(Sql(ddl(CreateIndex(index), model)))
    except ConstraintViolation as error:  # a row came in between, from a writer that takes no lock
        raise DeclarationError(
            f"{model.meta.name}: {model.table.name!r} repeats values in {names}"
        ) from error
