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
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from maniflex.db.advice import advised_table
from maniflex.db.columns import COLUMN_TYPES, Column, Columns, has_type, is_derived, read_columns, type_ddl
from maniflex.db.deleted_rows import LostMark, find_lost_marks, remark_statements, removal_statements
from maniflex.db.discard import discard_statements, nullable_statements
from maniflex.db.indexes import warn_of_missing_promises
from maniflex.db.port import Adapter, Executor
from maniflex.db.renamed_tables import find_old_tables, keeping_advice
from maniflex.db.search_schema import search_difference
from maniflex.errors import DeclarationError
from maniflex.model.meta import FieldMeta, Kind
from maniflex.sql.decimal_order import has_order_key
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import by_dialect
from maniflex.sql.tables import quote

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
