"""Bring a database up to its models at start: add what is missing, stop where the two contradict.

Nothing is ever dropped, renamed or rewritten. Everything happens in one transaction under one lock,
so two processes that start together do not collide and a failure leaves no half-made schema.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, CreateTable

from maniflex.db.decimal_schema import migrate_decimals
from maniflex.db.drift import COLUMN_TYPES, Columns, old_names, read_columns, refuse_drift
from maniflex.db.port import Adapter, Tx
from maniflex.db.search_schema import migrate_search
from maniflex.errors import ConstraintViolation, DeclarationError, ValidationFailed
from maniflex.model.meta import FieldMeta, Kind
from maniflex.sql.decimal_order import decimal_column
from maniflex.sql.literal import literal
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Dialect, Sql
from maniflex.sql.tables import NAMED_BY_CONDITION, column_type, index_name, quoted, sa_dialect

log = logging.getLogger("maniflex.migrate")

_LOCK = 0x6D616E69666C6578 >> 1  # "maniflex"; any fixed number of 63 bits will do


@dataclass(frozen=True, slots=True)
class _Index:
    columns: tuple[str, ...]
    unique: bool
    predicate: str  # "" when it covers every row

    def __str__(self) -> str:
        kind = "unique" if self.unique else "not unique"
        condition = f" where {self.predicate}" if self.predicate else ""
        return f"{kind} on {', '.join(self.columns)}{condition}"

    @property
    def promise(self) -> tuple[bool, frozenset[str], str]:
        """What it means for the rows, which the order of its columns does not change."""
        return self.unique, frozenset(self.columns), self.predicate


async def migrate(adapter: Adapter, models: Sequence[ModelSql], extra: Sequence[Sql] = ()) -> None:
    """Create tables, columns and indexes that are missing, then run `extra`.

    `extra` is what a model cannot declare, in statements that do no harm when they are repeated.
    """
    async with adapter.transaction() as tx:
        if adapter.dialect is Dialect.POSTGRES:
            await _take_turn(tx)
        tables = [(model, await read_columns(tx, model)) for model in models]
        await refuse_drift(tx, tables)
        for model, columns in tables:
            await _migrate_model(tx, model, columns)
        for statement in extra:
            if not await _is_there(tx, statement):
                await tx.execute(statement)


_INDEX_UNLESS_THERE = re.compile(
    r"\s*CREATE\s+(?:UNIQUE\s+)?INDEX\s+IF\s+NOT\s+EXISTS\s+(\w+|\"[^\"]+\")", re.IGNORECASE
)


async def _is_there(tx: Tx, statement: Sql) -> bool:
    """Whether `statement` would make an index that exists: asking, PostgreSQL would lock out all writers."""
    named = _INDEX_UNLESS_THERE.match(statement.text)
    if named is None or tx.dialect is not Dialect.POSTGRES:
        return False
    row = await tx.fetch_one(Sql("SELECT to_regclass($1) IS NOT NULL", (named[1],)))
    return row is not None and bool(row[0])


async def _take_turn(tx: Tx) -> None:
    """Wait until no other process migrates; neither that nor a large index is a matter of seconds."""
    row = await tx.fetch_one(Sql("SELECT current_setting('lock_timeout')"))
    await tx.execute(Sql("SET LOCAL statement_timeout = 0"))
    await tx.execute(Sql("SET LOCAL lock_timeout = 0"))
    await tx.fetch(Sql("SELECT pg_advisory_xact_lock($1)", (_LOCK,)))
    # From here on a lock is one that requests hold, and those queue up behind whoever waits for it.
    await tx.fetch(Sql("SELECT set_config('lock_timeout', $1, true)", (row[0] if row else "0",)))


async def _migrate_model(tx: Tx, model: ModelSql, columns: Columns) -> None:
    if not columns:
        log.info("creating table %s", model.table.name)
        await tx.execute(Sql(_ddl(CreateTable(model.table), model)))
    else:
        for field in model.meta.fields:
            if field.column not in columns:
                await _add_column(tx, model, field, columns)
        await _add_defaults(tx, model, columns)
    await migrate_decimals(tx, model)
    existing = await _indexes(tx, model)
    for index in sorted(model.table.indexes, key=lambda index: str(index.name)):
        found = existing.get(str(index.name))
        if found is None:
            await _create_index(tx, model, index)
        else:
            _compare_index(model, index, found)
    await _refuse_old_promises(tx, model, existing)
    await migrate_search(tx, model)


def _ddl(element: Any, model: ModelSql) -> str:
    return str(element.compile(dialect=sa_dialect(model.dialect))).strip()


_SQLITE_INDEXES = """
SELECT l.name, l."unique", i.name, m.sql
  FROM pragma_index_list(?) l JOIN pragma_index_info(l.name) i
  LEFT JOIN sqlite_master m ON m.type = 'index' AND m.name = l.name
 ORDER BY l.name, i.seqno
"""
_POSTGRES_INDEXES = """
SELECT c.relname, i.indisunique AND i.indisvalid, a.attname, pg_get_expr(i.indpred, i.indrelid)
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
  CROSS JOIN LATERAL unnest(i.indkey[0 : i.indnkeyatts - 1]) WITH ORDINALITY k (attnum, place)
  LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum AND k.attnum <> 0
 WHERE i.indrelid = to_regclass($1) ORDER BY c.relname, k.place
"""


async def _indexes(tx: Tx, model: ModelSql) -> dict[str, _Index]:
    """The indexes of the table by name."""
    if model.dialect is Dialect.SQLITE:
        rows = await tx.fetch(Sql(_SQLITE_INDEXES, (model.table.name,)))
    else:
        rows = await tx.fetch(Sql(_POSTGRES_INDEXES, (quoted(model.table.name, model.dialect),)))
    columns: dict[str, list[str]] = {}
    for name, _, column, _ in rows:
        columns.setdefault(name, []).append(column or "an expression")
    return {
        row[0]: _Index(tuple(columns[row[0]]), bool(row[1]), _predicate(row[3], model.dialect))
        for row in rows
    }


def _predicate(text: str | None, dialect: Dialect) -> str:
    """The condition of a partial index, bare of what each database puts around it."""
    if text and dialect is Dialect.SQLITE:  # the whole statement
        _, *condition = re.split(r"\sWHERE\s", text, maxsplit=1, flags=re.IGNORECASE)
        text = " ".join(condition)
    return " ".join(re.sub(r'[()"`\[\]]', "", text or "").lower().split())


def _predicates(model: ModelSql) -> tuple[str, ...]:
    """How the condition "not deleted" may be written; the first is how we write it."""
    marker = model.meta.soft_delete
    if marker is None:
        return ("",)
    name = model.meta.by_name[marker.field].column.lower()
    if marker.timestamp:
        return (f"{name} is null",)
    forms = ("{} is false", "{} is 0", "{} = false", "{} = 0", "not {}", "{} is not true")
    return tuple(form.format(name) for form in forms)


def _compare_index(model: ModelSql, index: sa.Index, found: _Index) -> None:
    """Stop where a promise of uniqueness would not be kept; warn about any other difference."""
    predicates = _predicates(model) if index.unique else ("",)
    if index.info.get(NAMED_BY_CONDITION):  # another condition would be another index
        predicates = (found.predicate,)
    columns = tuple(column.name for column in index.columns)
    expected = _Index(columns, bool(index.unique), predicates[0])
    if found.predicate in predicates:
        found = replace(found, predicate=expected.predicate)
    if found == expected:
        return
    text = (
        f"{model.meta.name}: the index {index.name!r} of {model.table.name!r} should be {expected},"
        f" and the one in the database is {found}"
    )
    if expected.unique and found.promise != expected.promise:
        raise DeclarationError(f"{text}; drop it and it will be built anew")
    log.warning("%s", text)


async def _refuse_old_promises(tx: Tx, model: ModelSql, existing: Mapping[str, _Index]) -> None:
    """Stop at a unique index that we made and the model no longer declares: it would refuse equal values."""
    declared = {str(index.name) for index in model.table.indexes}
    known = {field.column for field in model.meta.fields}
    for name, found in existing.items():
        columns = [decimal_column(column) for column in found.columns]
        if name in declared or not found.unique or not known.issuperset(columns):
            continue
        if name != index_name("uq", model.table.name, *columns) or await _is_constraint(tx, model, name):
            continue
        raise DeclarationError(
            f"{model.meta.name}: {', '.join(columns)} of {model.table.name!r} is unique in the database and"
            f" no longer on {model.meta.name}, so equal values would be refused. Declare it unique again, or"
            f" drop the index in a migration: DROP INDEX {quoted(name, model.dialect)}"
        )


async def _is_constraint(tx: Tx, model: ModelSql, index: str) -> bool:
    """Whether a constraint stands on the index, which then is none of ours."""
    if model.dialect is not Dialect.POSTGRES:
        return False
    text = "SELECT 1 FROM pg_constraint WHERE conindid = to_regclass($1)"
    return await tx.fetch_one(Sql(text, (quoted(index, model.dialect),))) is not None


async def _add_column(tx: Tx, model: ModelSql, field: FieldMeta, columns: Columns) -> None:
    table, column = quoted(model.table.name, model.dialect), quoted(field.column, model.dialect)
    type_ = column_type(field.kind, model.dialect).compile(dialect=sa_dialect(model.dialect))
    clause = f"ALTER TABLE {table} ADD COLUMN {column} {type_}"
    if not field.nullable:
        clause += f" NOT NULL DEFAULT {await _value_for_old_rows(tx, model, field, columns)}"
    log.info("adding column %s.%s", model.table.name, field.column)
    await tx.execute(Sql(clause))
    if field.default_factory is not None:
        if field.nullable or field.default_factory not in _ALWAYS_EQUAL:
            await _fill(tx, model, field)
        if model.dialect is Dialect.POSTGRES and not field.nullable:
            await tx.execute(Sql(f"ALTER TABLE {table} ALTER COLUMN {column} DROP DEFAULT"))


async def _add_defaults(tx: Tx, model: ModelSql, columns: Columns) -> None:
    """Give columns the defaults that they were made without; SQLite sets them only with the table."""
    if model.dialect is not Dialect.POSTGRES:
        return
    missing = [
        f"ALTER COLUMN {quoted(column.name, model.dialect)} SET DEFAULT {column.server_default.arg}"
        for column in model.table.columns
        if isinstance(column.server_default, sa.DefaultClause)
        and column.name in columns
        and not columns[column.name].has_default
    ]
    if missing:
        table = quoted(model.table.name, model.dialect)
        await tx.execute(Sql(f"ALTER TABLE {table} {', '.join(missing)}"))


async def _value_for_old_rows(tx: Tx, model: ModelSql, field: FieldMeta, columns: Columns) -> str:
    """The SQL literal existing rows get in a new column that may not be null."""
    if field.default_factory is not None:
        return literal(_made(model, field), field.kind, model.dialect)
    if field.has_default:
        return literal(field.default, field.kind, model.dialect)
    rows = await tx.fetch(Sql(f"SELECT 1 FROM {quoted(model.table.name, model.dialect)} LIMIT 1"))
    if rows:
        raise DeclarationError(
            f"{model.meta.name}.{field.name}: the table {model.table.name!r} has rows and the new column"
            f" {field.column!r} has no value for them; {old_names(model, field, columns)}give the field a"
            " default, make it `| None`, or add and fill the column in a migration"
        )
    # No row will ever show this value, but SQLite adds no NOT NULL column without one.
    return literal(_EMPTY[field.kind], field.kind, model.dialect)


_ALWAYS_EQUAL = (list, dict)
_BATCH = 500
_EXAMPLES = 3  # of rows that are not told apart, in a message


async def _fill(tx: Tx, model: ModelSql, field: FieldMeta) -> None:
    """Give every row that is there a value of its own from the field's factory."""
    table, id_ = quoted(model.table.name, model.dialect), quoted(model.id.name, model.dialect)
    beyond = ""
    last: tuple[str, ...] = ()
    while True:
        text = f"SELECT {id_} FROM {table}{beyond} ORDER BY {id_} LIMIT {_BATCH}"
        ids = [row[0] for row in await tx.fetch(Sql(text, last))]
        if not ids:
            return
        beyond, last = f" WHERE {id_} > {_placeholder(1, model)}", (ids[-1],)
        made = [(id, model.encode(field, _made(model, field))) for id in ids]
        await _update_each(tx, model, field, [pair for pair in made if pair[1] is not None])


async def _update_each(tx: Tx, model: ModelSql, field: FieldMeta, pairs: list[tuple[str, Any]]) -> None:
    if not pairs:
        return
    type_ = COLUMN_TYPES[model.dialect][field.kind][0]
    rows = ", ".join(
        f"({_placeholder(2 * i + 1, model, 'text')}, {_placeholder(2 * i + 2, model, type_)})"
        for i in range(len(pairs))
    )
    table, id_ = quoted(model.table.name, model.dialect), quoted(model.id.name, model.dialect)
    column = quoted(field.column, model.dialect)
    await tx.execute(
        Sql(
            f'WITH "$made" (id, value) AS (VALUES {rows})'  # no table can be called like this
            f' UPDATE {table} SET {column} = "$made".value FROM "$made" WHERE {table}.{id_} = "$made".id',
            tuple(part for pair in pairs for part in pair),
        )
    )


def _placeholder(position: int, model: ModelSql, type_: str | None = None) -> str:
    if model.dialect is Dialect.SQLITE:
        return "?"
    # Without a type, every parameter in a list of VALUES would be text.
    return f"${position}" if type_ is None else f"CAST(${position} AS {type_})"


def _made(model: ModelSql, field: FieldMeta) -> Any:
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


async def _create_index(tx: Tx, model: ModelSql, index: sa.Index) -> None:
    names = ", ".join(column.name for column in index.columns)
    if index.unique and (examples := await _duplicates(tx, model, index)):
        raise DeclarationError(
            f"{model.meta.name}: {model.table.name!r} has rows with equal values in {names};"
            " the unique index cannot be built until they are told apart;"
            f" for example those of the ids {'; '.join(examples)}"
        )
    log.info("creating index %s on %s (%s)", index.name, model.table.name, names)
    try:
        await tx.execute(Sql(_ddl(CreateIndex(index), model)))
    except ConstraintViolation as error:  # a row came in between, from a writer that takes no lock
        raise DeclarationError(
            f"{model.meta.name}: {model.table.name!r} repeats values in {names}"
        ) from error


async def _duplicates(tx: Tx, model: ModelSql, index: sa.Index) -> list[str]:
    """A few groups of rows with equal values, by their ids: the values themselves may be secrets."""
    columns, rows = list(index.columns), sa.func.count()
    query: sa.Select[Any] = sa.select(sa.func.min(model.id), sa.func.max(model.id), rows)
    query = query.select_from(model.table).where(*(c.is_not(None) for c in columns), *model.live())
    query = query.group_by(*columns).having(rows > sa.literal_column("1"))
    query = query.order_by(sa.func.min(model.id)).limit(sa.literal_column(str(_EXAMPLES)))
    groups = await tx.fetch(Sql(_ddl(query.offset(sa.literal_column("0")), model)))
    return [
        f"{first!r} and {last!r}" + (f" ({count} rows)" if count > 2 else "") for first, last, count in groups
    ]
