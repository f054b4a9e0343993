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
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass

from maniflex.db.discard import discarding, loosening
from maniflex.db.indexes import warn_of_missing_promises
from maniflex.db.port import Adapter, Executor
from maniflex.errors import DeclarationError
from maniflex.model.meta import FieldMeta, Kind
from maniflex.sql.decimal_order import has_order_key, is_order_column
from maniflex.sql.model import ModelSql
from maniflex.sql.search import VECTOR
from maniflex.sql.statement import Dialect, Sql
from maniflex.sql.tables import column_type, quoted, sa_dialect

log = logging.getLogger("maniflex.migrate")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table as the database describes it."""

    name: str
    type: str
    not_null: bool
    has_default: bool

    @property
    def required(self) -> bool:
        """Whether every insert must give it a value."""
        return self.not_null and not self.has_default


Columns = Mapping[str, Column]

_SQLITE_COLUMNS = "SELECT name, type, \"notnull\", dflt_value IS NOT NULL, 'r' FROM pragma_table_info(?)"
# An enum takes texts, and a domain what the type takes that it stands on.
_POSTGRES_COLUMNS = """
SELECT a.attname,
       CASE t.typtype WHEN 'e' THEN 'user-defined' WHEN 'd' THEN format_type(t.typbasetype, NULL)
                      ELSE format_type(a.atttypid, NULL) END,
       a.attnotnull OR (t.typtype = 'd' AND t.typnotnull),
       a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL,
       c.relkind
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type t ON t.oid = a.atttypid
 WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum
"""
_WITH_VERSIONS = ("r", "p")  # kinds of PostgreSQL's tables; a view has no row versions


async def read_columns(run: Executor, model: ModelSql) -> Columns:
    """The columns of the model's table by name; none when there is no such table."""
    if model.dialect is Dialect.SQLITE:
        rows = await run.fetch(Sql(_SQLITE_COLUMNS, (model.table.name,)))
    else:
        rows = await run.fetch(Sql(_POSTGRES_COLUMNS, (quoted(model.table.name, model.dialect),)))
        model.versioned = all(_text(row[4]) in _WITH_VERSIONS for row in rows)
    return {row[0]: Column(row[0], str(row[1]).lower(), bool(row[2]), bool(row[3])) for row in rows}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


async def check_drift(adapter: Adapter, models: Sequence[ModelSql]) -> None:
    """The same look at tables that migrations of the application's own keep, and at what they left out."""
    tables = [(model, await read_columns(adapter, model)) for model in models]
    await refuse_drift(adapter, tables, migrates=False)
    for model, columns in tables:
        if columns:
            await warn_of_missing_promises(adapter, model)
        else:
            log.warning(
                "%s: there is no table %r, so every request for it fails; start once with auto_migrate=True,"
                " or make it in a migration",
                *(model.meta.name, model.table.name),
            )


async def refuse_drift(
    run: Executor, tables: Sequence[tuple[ModelSql, Columns]], *, migrates: bool = True
) -> None:
    """`DeclarationError` with every contradiction between the tables and their models; warn of the rest.

    Unless this start `migrates`, what is missing in a table stays missing.
    """
    problems = [p for model, columns in tables async for p in _problems(run, model, columns, migrates)]
    if not migrates:
        problems += [problem for model, columns in tables for problem in _missing_columns(model, columns)]
    if problems:
        raise DeclarationError(*problems)


def _missing_columns(model: ModelSql, columns: Columns) -> Iterator[str]:
    """Fields without a column in a table that is there: no statement that names one succeeds."""
    table = model.table.name
    for field in model.meta.fields if columns else ():
        if field.column not in columns:
            problem = (
                f"{model.meta.name}.{field.name}: the table {table!r} has no column {field.column!r}, so"
                f" every request for {model.meta.name} would fail; {old_names(model, field, columns)}start"
                " once with auto_migrate=True"
            )
            if has_order_key(field, model.dialect):  # more than a column, and nothing to write by hand
                yield problem
                continue
            type_ = column_type(field.kind, model.dialect).compile(dialect=sa_dialect(model.dialect))
            yield (
                f"{problem}, or add the column and fill it for the rows there are in a migration:"
                f" ALTER TABLE {quoted(table, model.dialect)}"
                f" ADD COLUMN {quoted(field.column, model.dialect)} {type_}"
            )


# What a column of each kind may be declared as; the first is what we create.
COLUMN_TYPES: dict[Dialect, dict[Kind, tuple[str, ...]]] = {
    Dialect.POSTGRES: {
        Kind.TEXT: ("text", "character varying", "character", "citext", "user-defined"),
        Kind.INT: ("bigint", "integer", "smallint"),
        Kind.FLOAT: ("double precision", "real"),
        Kind.BOOL: ("boolean",),
        Kind.DECIMAL: ("numeric",),
        Kind.DATETIME: ("timestamp with time zone",),
        Kind.DATE: ("date",),
        Kind.TIME: ("time without time zone",),
        Kind.UUID: ("uuid",),
        Kind.BYTES: ("bytea",),
        Kind.JSON: ("json", "jsonb"),
    },
    Dialect.SQLITE: {
        Kind.TEXT: ("text", "varchar", "char", "character", "nvarchar", "clob"),
        Kind.INT: ("bigint", "integer", "int", "smallint", "mediumint", "int8", "int2"),
        Kind.FLOAT: ("double", "real", "float", "double precision"),
        Kind.BOOL: ("boolean",),
        Kind.DECIMAL: ("decimal_text",),
        Kind.DATETIME: ("datetime_text",),
        Kind.DATE: ("date_text",),
        Kind.TIME: ("time_text",),
        Kind.UUID: ("uuid_text",),
        Kind.BYTES: ("blob",),
        Kind.JSON: ("json_text",),
    },
}


# Types of tables made by hand on SQLite that keep the texts we write; worth a warning, no more.
_TOLERATED: Mapping[Kind, tuple[str, ...]] = {
    Kind.BOOL: ("bool", "tinyint"),
    Kind.DATETIME: ("datetime", "timestamp"),
    Kind.DATE: ("date",),
    Kind.TIME: ("time",),
    Kind.UUID: ("uuid", "char", "varchar"),
    Kind.JSON: ("json",),
}


async def _problems(run: Executor, model: ModelSql, columns: Columns, migrates: bool) -> AsyncIterator[str]:
    known = {field.column: field for field in model.meta.fields}
    for name, column in columns.items():
        field, own = known.get(name), f" DROP COLUMN {quoted(name, model.dialect)}"
        if field is not None:
            for problem in _contradiction(model, field, column):
                yield problem
            if column.not_null and field.nullable and _none_by_default(field):
                statements = await loosening(run, model, field)
                yield f"{_never_null(model, field)}{_in_migration(statements, own, migrates)}"
        elif not _is_derived(column, columns):
            advice = _unknown_column(model, column, columns)
            if advice is not None:
                yield f"{advice}{_in_migration(await discarding(run, model, name), own, migrates)}"


def _is_derived(column: Column, columns: Columns) -> bool:
    """Whether a column is no field's: the order of a decimal, or the words of a search."""
    return is_order_column(column.name, columns) or (column.name == VECTOR and column.type == "tsvector")


def _in_migration(statements: Sequence[str], own: str, migrates: bool) -> str:
    """The statements, after what has to be done when they drop more than their `own` column."""
    derived = [s for s in statements if s.startswith("DROP") or (" DROP COLUMN " in s and own not in s)]
    again = (
        ", and start once with auto_migrate=True afterwards: only that makes the triggers, search tables and"
        " indexes anew that other fields still need. The migration"
    )
    return f"{again if derived and not migrates else ''}: {'; '.join(statements)}"


def _unknown_column(model: ModelSql, column: Column, columns: Columns) -> str | None:
    """Why a column without a field (it was renamed or dropped) stops the start; None if it does not."""
    name, table = model.meta.name, model.table.name
    new = [f for f in model.meta.fields if f.column not in columns and _fits(model, f, column)]
    old = f'field(column="{column.name}")'
    ways = [f"if {name}.{f.name} is its new name, declare it with {old}" for f in new]
    if not column.required:
        log.warning("%s", "; ".join([f"{table}.{column.name} is in the database but not on {name}", *ways]))
        return None
    if not ways:
        ways = [f"if a field of {name} has taken its place, give that field {old}"]
    return (
        f"{name}: the table {table!r} has a column {column.name!r} that {name} does not know. It may not be"
        f" null and has no default, so every create would fail. To keep its values: {'; '.join(ways)}."
        " If they are not needed any more, remove it in a migration"
    )


def _contradiction(model: ModelSql, field: FieldMeta, column: Column) -> Iterator[str]:
    name, place = model.meta.name, f"{model.table.name}.{column.name}"
    expected = COLUMN_TYPES[model.dialect][field.kind][0]
    if not _fits(model, field, column):
        difference = f"{place} is {column.type or 'of no type'} in the database, {name} expects {expected}"
        if _tolerated(model, field, column):
            log.warning("%s", difference)
        else:
            yield (
                f"{name}.{field.name}: {difference}; stored values would be read as what they are not."
                " Give the field its old type back, or convert the column in a migration, or declare the old"
                f' column as another field, field(column="{column.name}"), and give this one a new column'
            )
    if column.not_null and field.nullable and not _none_by_default(field):
        log.warning(
            "%s may not be null in the database, on %s it may: null is refused;"
            " let the column be null in a migration, or the field not",
            *(place, name),
        )
    if not column.not_null and not field.nullable and field.name != "id":
        log.warning(
            "%s may be null in the database, on %s it may not: rows without a value are shown with null;"
            " fill them in a migration, or declare the field `| None`",
            *(place, name),
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


def _fits(model: ModelSql, field: FieldMeta, column: Column) -> bool:
    return column.type.split("(")[0].strip() in COLUMN_TYPES[model.dialect][field.kind]


def _tolerated(model: ModelSql, field: FieldMeta, column: Column) -> bool:
    if model.dialect is not Dialect.SQLITE:
        return False
    if field.name in ("created_at", "updated_at") and column.type == "text":
        return True  # nobody but the framework writes them, so what a text column holds of them are times
    return not column.type or column.type.split("(")[0].strip() in _TOLERATED.get(field.kind, ())


def old_names(model: ModelSql, field: FieldMeta, columns: Columns) -> str:
    """The advice to keep a column under its old name, where there is one a new field may stand for."""
    known = {f.column for f in model.meta.fields}
    names = [
        c.name
        for c in columns.values()
        if c.name not in known and not _is_derived(c, columns) and _fits(model, field, c)
    ]
    if not names:
        return ""
    ways = " or ".join(f'field(column="{name}")' for name in names)
    return f"if it is an old field under a new name, declare it with {ways} and its values stay; otherwise "
