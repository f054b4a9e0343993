"""What a table has and its model does not say: harmless, worth a warning, or a reason not to start.

The start stops where every create would fail (a column the model does not know must have a value) and
where stored values are of another type than the field. The first happens when a field is renamed or
dropped, the second when its type is changed. Nothing is dropped, renamed or converted here: the
message names the ways to do it.

SQLite checks types only by affinity: a column declared as a number keeps the text "seven" as it is,
and a number written into a text column comes back as text. So a changed type is no safer there.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from maniflex.db.port import Adapter, Executor
from maniflex.errors import DeclarationError
from maniflex.model.meta import FieldMeta, Kind
from maniflex.schema.derived import order_key_triggers, search_difference, search_triggers
from maniflex.schema.indexes import advised_name, advised_table, warn_of_missing_promises
from maniflex.schema.read import Column, Columns, has_type, is_derived, read_columns, type_ddl
from maniflex.sql.codec import literal
from maniflex.sql.decimal_order import has_order_key, is_order_column, order_column
from maniflex.sql.model import ModelSql
from maniflex.sql.search import VECTOR
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.tables import COLUMN_TYPES, quote

log = logging.getLogger("maniflex.migrate")
Warn: TypeAlias = Callable[..., None]  # with a text and its values, as a logger takes them


async def check_drift(adapter: Adapter, models: Sequence[ModelSql], application: str = "app:server") -> None:
    """The same look at tables that this start may not change, and at what they lack."""
    tables = [(model, await read_columns(adapter, model)) for model in models]
    await refuse_drift(adapter, tables, migrates=False)
    old_tables = await find_old_tables(adapter, tables)
    problems = []
    for model, columns in tables:
        if columns:
            await warn_of_missing_promises(adapter, model)
            if (difference := await search_difference(adapter, model)) is not None:
                log.warning(
                    "%s cannot be searched as it is declared: %s; run `maniflex migrate up %s`, or start once"
                    " with auto_migrate=True",
                    *(model.meta.name, difference, application),
                )
            continue
        ways = [f"run `maniflex migrate up {application}`, or start once with auto_migrate=True"]
        if keep := keeping_advice(model, old_tables.get(model.meta.name, ())):
            ways.insert(0, keep)
        problems.append(
            f"{model.meta.name}: there is no table {model.table.name!r}, so every request for it would fail;"
            f" {'; otherwise '.join(ways)}"
        )
    if problems:
        raise DeclarationError(*problems)


async def refuse_drift(
    run: Executor,
    tables: Sequence[tuple[ModelSql, Columns]],
    *,
    migrates: bool = True,
    warn: Warn = log.warning,
) -> None:
    """`DeclarationError` with every contradiction between the tables and their models; warn of the rest.

    Unless this start `migrates`, missing columns and indexes stay missing.
    """
    problems: list[str] = []
    for model, columns in tables:
        lost_marks = await find_lost_marks(run, model, columns)
        problems += [p async for p in _problems(run, model, columns, lost_marks, migrates, warn)]
        if not migrates:
            problems += _missing_columns(model, columns, lost_marks)
    if problems:
        raise DeclarationError(*problems)


def _missing_columns(model: ModelSql, columns: Columns, lost_marks: Mapping[str, LostMark]) -> Iterator[str]:
    """Fields without a column in a table that is there: no statement that names one succeeds."""
    table, marker = model.table.name, model.meta.soft_delete
    for field in model.meta.fields if columns else ():
        if lost_marks and marker is not None and field.name == marker.field:
            continue  # the advice for the rows that were marked otherwise makes its column
        if field.column not in columns:
            problem = (
                f"{model.meta.name}.{field.name}: the table {table!r} has no column {field.column!r}, so"
                f" every request for {model.meta.name} would fail; {old_names(model, field, columns)}start"
                " once with auto_migrate=True"
            )
            if has_order_key(field, model.dialect):  # more than a column, and nothing to write by hand
                yield problem
                continue
            yield (
                f"{problem}, or add the column and fill it for the rows there are in a migration:"
                f" ALTER TABLE {advised_table(model)}"
                f" ADD COLUMN {quote(field.column, model.dialect)} {type_ddl(model, field)}"
            )


# Types of tables made by hand on SQLite that keep the texts we write; worth a warning, no more.
_TOLERATED: dict[Kind, tuple[str, ...]] = {
    Kind.TEXT: (),
    Kind.INT: (),
    Kind.FLOAT: (),
    Kind.BOOL: ("bool", "tinyint"),
    Kind.DECIMAL: (),
    Kind.DATETIME: ("datetime", "timestamp"),
    Kind.DATE: ("date",),
    Kind.TIME: ("time",),
    Kind.UUID: ("uuid", "char", "varchar"),
    Kind.BYTES: (),
    Kind.JSON: ("json",),
}


async def _problems(
    run: Executor,
    model: ModelSql,
    columns: Columns,
    lost_marks: Mapping[str, LostMark],
    migrates: bool,
    warn: Warn,
) -> AsyncIterator[str]:
    fields = {field.column: field for field in model.meta.fields}
    for name, column in columns.items():
        field, own = fields.get(name), f" DROP COLUMN {quote(name, model.dialect)}"
        if field is not None:
            for problem in _contradiction(model, field, column, warn):
                yield problem
            if column.not_null and field.nullable and _none_by_default(field):
                statements = await nullable_statements(run, model, field)
                yield f"{_never_null(model, field)}{_in_migration(statements, own, migrates)}"
        elif name in lost_marks:
            yield await _deleted_rows(run, model, columns, lost_marks[name], migrates)
        elif not is_derived(column, columns):
            advice = _unknown_column(model, column, columns, warn)
            if advice is not None:
                yield f"{advice}{_in_migration(await discard_statements(run, model, name), own, migrates)}"


async def _deleted_rows(
    run: Executor, model: ModelSql, columns: Columns, lost_mark: LostMark, migrates: bool
) -> str:
    """Why rows that were deleted under a mark which is no longer declared stop the start."""
    name, mark, marker = model.meta.name, lost_mark.mark, model.meta.soft_delete
    own = f" DROP COLUMN {quote(mark.column, model.dialect)}"
    anew = ""
    if marker is not None and marker.timestamp is (mark.kind is Kind.DATETIME):
        anew = f', or declare {marker.field} with field(column="{mark.column}")'
    elif marker is not None:
        statements = await remark_statements(run, model, columns, mark)
        anew = f", or mark them by {marker.field} in a migration{_in_migration(statements, own, migrates)}"
    return (
        f"{name}: {lost_mark} of {model.table.name!r} marked as deleted by {mark.column!r} would be shown"
        f" again, because {name} no longer has that field. To keep them deleted, declare {mark.mixin} again"
        f" (class {name}(Model, {mark.mixin})){anew}. If they are not needed any more, delete them for good"
        f" and remove the column in a migration"
        f"{_in_migration(await removal_statements(run, model, mark), own, migrates)}"
    )


def _in_migration(statements: Sequence[str], own: str, migrates: bool) -> str:
    """The statements, after what has to be done when they drop more than their `own` column."""
    other_drops = [s for s in statements if s.startswith("DROP") or (" DROP COLUMN " in s and own not in s)]
    again = (
        ", and start once with auto_migrate=True afterwards: only that makes the triggers, search tables and"
        " indexes anew that other fields still need. The migration"
    )
    return f"{again if other_drops and not migrates else ''}: {'; '.join(statements)}"


def _unknown_column(model: ModelSql, column: Column, columns: Columns, warn: Warn) -> str | None:
    """Why a column without a field (it was renamed or dropped) stops the start; None if it does not."""
    name, table = model.meta.name, model.table.name
    new = [f for f in model.meta.fields if f.column not in columns and has_type(model, column, f.kind)]
    old = f'field(column="{column.name}")'
    ways = [f"if {name}.{f.name} is its new name, declare it with {old}" for f in new]
    if not column.required:
        warn("%s", "; ".join([f"{table}.{column.name} is in the database but not on {name}", *ways]))
        return None
    if not ways:
        ways = [f"if a field of {name} has taken its place, give that field {old}"]
    return (
        f"{name}: the table {table!r} has a column {column.name!r} that {name} does not know. It may not be"
        f" null and has no default, so every create would fail. To keep its values: {'; '.join(ways)}."
        " If they are not needed any more, remove it in a migration"
    )


def _contradiction(model: ModelSql, field: FieldMeta, column: Column, warn: Warn) -> Iterator[str]:
    name, place = model.meta.name, f"{model.table.name}.{column.name}"
    type_name = COLUMN_TYPES[model.dialect][field.kind][0]
    if not has_type(model, column, field.kind):
        difference = f"{place} is {column.type or 'of no type'} in the database, {name} expects {type_name}"
        if _tolerated(model, field, column):
            warn("%s", difference)
        else:
            yield (
                f"{name}.{field.name}: {difference}; stored values would be read as what they are not."
                " Give the field its old type back, or convert the column in a migration, or"
                f" {_beside(field, column)}"
            )
    if column.not_null and field.nullable and not _none_by_default(field):
        warn(
            "%s may not be null in the database, on %s it may: null is refused;"
            " let the column be null in a migration, or the field not",
            *(place, name),
        )
    if not column.not_null and not field.nullable and field.name != "id":
        warn(
            "%s may be null in the database, on %s it may not: rows without a value are shown with null;"
            " fill them in a migration, or declare the field `| None`",
            *(place, name),
        )


def _beside(field: FieldMeta, column: Column) -> str:
    """The advice to keep a column of the old type under another field, in words that need no second start."""
    if column.not_null:
        old = f'with a default of the old type, field(column="{column.name}", default=...)'
    else:
        old = f'that is `| None`, field(column="{column.name}", default=None)'
    return (
        f"declare the old column as another field {old}, and give {field.name} a new column,"
        f' field(column="{column.name}_new"), with a default or `| None` for the rows there are'
    )


def _none_by_default(field: FieldMeta) -> bool:
    return field.has_default and field.default is None and field.default_factory is None


def _never_null(model: ModelSql, field: FieldMeta) -> str:
    name, place = model.meta.name, f"{model.table.name}.{field.column}"
    return (
        f"{name}.{field.name}: {place} may not be null in the database, and on {name} it is null by default,"
        " so a create without it would fail. Give the field another default or none, or let the column be"
        " null in a migration"
    )


def _tolerated(model: ModelSql, field: FieldMeta, column: Column) -> bool:
    if not by_dialect(model.dialect, sqlite=True, postgres=False):
        return False
    if field.name in ("created_at", "updated_at") and column.type == "text":
        return True  # nobody but the framework writes them, so what a text column holds of them are times
    return not column.type or column.type.split("(")[0].strip() in _TOLERATED[field.kind]


def old_names(model: ModelSql, field: FieldMeta, columns: Columns) -> str:
    """The advice to keep a column under its old name, where there is one a new field may stand for."""
    field_columns = {f.column for f in model.meta.fields}
    names = [
        c.name
        for c in columns.values()
        if c.name not in field_columns and not is_derived(c, columns) and has_type(model, c, field.kind)
    ]
    if not names:
        return ""
    ways = " or ".join(f'field(column="{name}")' for name in names)
    return f"if it is an old field under a new name, declare it with {ways} and its values stay; otherwise "


# Rows that a soft delete marked in a column which the model no longer declares.
#
# Nothing would leave them out any more, so they would come back as records: the start stops instead. Only
# columns as `WithDeletedAt` and `WithIsDeleted` make them count as marks.


@dataclass(frozen=True, slots=True)
class Mark:
    """How a mixin marks a row as deleted."""

    mixin: str
    column: str
    kind: Kind
    not_null: bool
    condition: str  # of a deleted row, behind the column


@dataclass(frozen=True, slots=True)
class LostMark:
    """A mark that the model no longer declares, and how many rows bear it."""

    mark: Mark
    rows: int

    def __str__(self) -> str:
        return "1 row" if self.rows == 1 else f"{self.rows} rows"


_MARKS = (
    Mark("WithDeletedAt", "deleted_at", Kind.DATETIME, not_null=False, condition="IS NOT NULL"),
    Mark("WithIsDeleted", "is_deleted", Kind.BOOL, not_null=True, condition="IS TRUE"),
)


async def find_lost_marks(run: Executor, model: ModelSql, columns: Columns) -> Mapping[str, LostMark]:
    """The marks without a field that rows of the table bear, by their columns."""
    field_columns = {field.column for field in model.meta.fields}
    lost_marks: dict[str, LostMark] = {}
    for mark in _MARKS:
        column = columns.get(mark.column)
        if column is None or mark.column in field_columns or not _is_mark(model, column, mark):
            continue
        table = quote(model.table.name, model.dialect)
        condition = _deleted_condition(model, mark)
        row = await run.fetch_one(Sql(f"SELECT count(*) FROM {table} WHERE {condition}"))
        if row is not None and row[0]:
            lost_marks[mark.column] = LostMark(mark, row[0])
    return lost_marks


def _is_mark(model: ModelSql, column: Column, mark: Mark) -> bool:
    return has_type(model, column, mark.kind) and column.not_null is mark.not_null


def _deleted_condition(model: ModelSql, mark: Mark) -> str:
    return f"{quote(mark.column, model.dialect)} {mark.condition}"


async def removal_statements(run: Executor, model: ModelSql, mark: Mark) -> list[str]:
    """The statements that delete the marked rows for good, and the column with them."""
    delete = f"DELETE FROM {advised_table(model)} WHERE {_deleted_condition(model, mark)}"
    return [delete, *await discard_statements(run, model, mark.column)]


async def remark_statements(run: Executor, model: ModelSql, columns: Columns, mark: Mark) -> list[str]:
    """The statements that mark the same rows by the field that marks deleted rows of the model now."""
    assert model.meta.soft_delete is not None
    field, table = model.meta.by_name[model.meta.soft_delete.field], advised_table(model)
    column = quote(field.column, model.dialect)
    if model.meta.soft_delete.timestamp:  # when they were deleted is not known; nothing changed them since
        value = quote(model.meta.by_name["updated_at"].column, model.dialect)
    else:
        value = "TRUE"
    return [
        *(
            []
            if field.column in columns
            else [f"ALTER TABLE {table} ADD COLUMN {column} {_type(model, field)}"]
        ),
        f"UPDATE {table} SET {column} = {value} WHERE {_deleted_condition(model, mark)}",
        *await discard_statements(run, model, mark.column),
    ]


def _type(model: ModelSql, field: FieldMeta) -> str:
    live = "" if field.nullable else f" NOT NULL DEFAULT {literal(False, field.kind, model.dialect)}"
    return f"{type_ddl(model, field)}{live}"


# Tables that have no model and may be the old table of a model whose class was renamed.
#
# The new class gets a table of its own, empty, while the records stay in the old one: worth a word.


_COLUMNS = {
    # A virtual table may need a module that is not there.
    Dialect.SQLITE: """
SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c
 WHERE m.type = 'table' AND m.sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY m.name
""",
    Dialect.POSTGRES: """
SELECT c.relname::text, a.attname::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relkind IN ('r', 'p')
   AND a.attnum > 0 AND NOT a.attisdropped AND has_table_privilege(c.oid, 'SELECT') ORDER BY c.relname
""",
}
_OF_EVERY_MODEL = frozenset({"id", "created_at", "updated_at"})


async def find_old_tables(
    run: Executor, tables: Sequence[tuple[ModelSql, Columns]]
) -> Mapping[str, list[str]]:
    """For each model without a table, by its name: tables without a model that have its columns, and rows."""
    new = [model for model, columns in tables if not columns and _columns(model) - _OF_EVERY_MODEL]
    if not new:
        return {}
    others = await _tables_without_model(run, [model for model, _ in tables])
    old = {
        model.meta.name: [t for t, columns in others.items() if columns == _columns(model)] for model in new
    }
    tables_with_rows = {table for names in old.values() for table in names if await _has_rows(run, table)}
    return {name: [table for table in names if table in tables_with_rows] for name, names in old.items()}


def keeping_advice(model: ModelSql, old_tables: Sequence[str]) -> str:
    """How the model keeps the records of a table that may have been its own; empty without such a table."""
    if not old_tables:
        return ""
    name = model.meta.name
    tables = " or ".join(f"{table!r}" for table in old_tables)
    ways = " or ".join(f'class {name}(Model, table="{table}")' for table in old_tables)
    return (
        f"the database has {tables} with the same columns, with rows and without a model; if {name} is a new"
        f" name for that model, keep its table: {ways}"
    )


def _columns(model: ModelSql) -> frozenset[str]:
    return frozenset(field.column for field in model.meta.fields)


async def _tables_without_model(run: Executor, models: Sequence[ModelSql]) -> dict[str, set[str]]:
    columns: dict[str, set[str]] = {}
    for table, column in await run.fetch(Sql(_COLUMNS[run.dialect])):
        columns.setdefault(table, set()).add(column)
    model_tables = {model.table.name.lower() for model in models}
    return {
        table: {name for name in names if not is_order_column(name, names) and name != VECTOR}
        for table, names in columns.items()
        if table.lower() not in model_tables
    }


async def _has_rows(run: Executor, table: str) -> bool:
    text = f"SELECT 1 FROM {quote(table, run.dialect)} LIMIT 1"
    return await run.fetch_one(Sql(text)) is not None


# The statements that remove a column together with what the framework derived from it.
#
# SQLite drops no column that an index or a trigger names, PostgreSQL none that a generated column is made
# of. Triggers, order keys and search columns hold nothing that is not in the records; the next migration
# makes anew what other fields need of them. Two columns may share such a piece, and the statements for
# both are run one after the other, so dropping it says IF EXISTS.


_TRIGGERS = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ? ORDER BY name"
_INDEXES = """
SELECT name, sql FROM sqlite_master
 WHERE type = 'index' AND sql IS NOT NULL AND tbl_name = ? COLLATE NOCASE ORDER BY name
"""
_MADE_OF_IT = """
SELECT dependent_column FROM information_schema.column_column_usage
 WHERE table_schema = $1 AND table_name = $2 AND column_name = $3 ORDER BY 1
"""
# PostgreSQL drops them with the column, unasked: named, they tell that uniqueness has to be built anew.
_INDEXES_UNDER_CONDITION = """
SELECT DISTINCT x.relname::text FROM pg_attribute a
  JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.classid = 'pg_class'::regclass
                  AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum
  JOIN pg_index i ON i.indexrelid = d.objid AND i.indpred IS NOT NULL AND a.attnum <> ALL (i.indkey)
  JOIN pg_class x ON x.oid = i.indexrelid
 WHERE a.attrelid = to_regclass($1) AND a.attname = $2
   AND NOT EXISTS (SELECT 1 FROM pg_constraint c WHERE c.conindid = i.indexrelid)
 ORDER BY 1
"""
_TEXT = re.compile(r"'(?:[^']|'')*'")
_IDENTIFIER = re.compile(r'"((?:[^"]|"")+)"|\[([^\]]+)\]|`([^`]+)`|([\w$]+)')


async def discard_statements(run: Executor, model: ModelSql, column: str) -> list[str]:
    """The statements that remove the column, in the order in which the database takes them."""
    find_derived = by_dialect(model.dialect, sqlite=_derived_on_sqlite, postgres=_derived_on_postgres)
    return [*await find_derived(run, model, column), f"{_drop_column(model)}{quote(column, model.dialect)}"]


def _drop_column(model: ModelSql) -> str:
    return f"ALTER TABLE {advised_table(model)} DROP COLUMN "


async def _derived_on_postgres(run: Executor, model: ModelSql, column: str) -> list[str]:
    table = model.table.name
    indexes = await run.fetch(Sql(_INDEXES_UNDER_CONDITION, (quote(table, model.dialect), column)))
    columns = await run.fetch(Sql(_MADE_OF_IT, (model.schema, table, column)))
    return [
        *(f"DROP INDEX IF EXISTS {advised_name(model, row[0])}" for row in indexes),
        *(f"{_drop_column(model)}IF EXISTS {quote(row[0], model.dialect)}" for row in columns),
    ]


async def _derived_on_sqlite(run: Executor, model: ModelSql, column: str) -> list[str]:
    table, key, name = model.table.name, order_column(column), quote(column, model.dialect)
    ours = {*order_key_triggers(model), *search_triggers(model)}
    triggers = [t for t, sql in await run.fetch(Sql(_TRIGGERS, (table,))) if t in ours and name in sql]
    indexes = [
        index
        for index, sql in await run.fetch(Sql(_INDEXES, (table,)))
        if not {column.lower(), key.lower()}.isdisjoint(_names_in_index(sql))
    ]
    keys = await run.fetch(Sql("SELECT name FROM pragma_table_info(?) WHERE name = ?", (table, key)))
    return [
        *(f"DROP TRIGGER IF EXISTS {quote(trigger, model.dialect)}" for trigger in triggers),
        *(f"DROP INDEX IF EXISTS {quote(index, model.dialect)}" for index in indexes),
        *(f"{_drop_column(model)}{quote(row[0], model.dialect)}" for row in keys),
    ]


def _names_in_index(sql: str) -> Iterator[str]:
    """Every name behind the table in a CREATE INDEX: of its columns, and in its condition."""
    _, _, body = _TEXT.sub("", sql).partition("(")
    for names in _IDENTIFIER.findall(body):
        yield "".join(names).replace('""', '"').lower()


async def nullable_statements(run: Executor, model: ModelSql, field: FieldMeta) -> list[str]:
    """The statements that let the column of the field be null; SQLite does that only to a new column."""
    table, column = advised_table(model), quote(field.column, model.dialect)
    if by_dialect(model.dialect, sqlite=False, postgres=True):
        return [f"ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL"]
    new = quote(f"{field.column}$null", model.dialect)
    # The shell of SQLite does not know our collation, and the next migration makes order keys instead.
    type_ = type_ddl(model, field).partition(" COLLATE ")[0]
    return [
        f"ALTER TABLE {table} ADD COLUMN {new} {type_}",
        f"UPDATE {table} SET {new} = {column}",
        *await discard_statements(run, model, field.column),
        f"ALTER TABLE {table} RENAME COLUMN {new} TO {column}",
    ]
